"""The page that bench/experiment.py writes: what clients saw beside what the traces say, and whether the two agree."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from efaprof.analyzers.batches import t_quantile
from efaprof.session import host

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BASELINE = "dense"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval, in milliseconds."""

    value: float
    half: float

    def __str__(self) -> str:
        return f"{self.value:7.2f} ±{self.half:.2f}"

    def meets(self, other: Estimate) -> bool | None:
        """Whether the intervals have a value in common; None where there are none: of one round."""
        room = self.half + other.half
        return None if math.isnan(room) else abs(self.value - other.value) <= room

    def minus(self, other: Estimate) -> Estimate:
        """Difference of two independent means."""
        return Estimate(self.value - other.value, math.hypot(self.half, other.half))


def mean_of(values: list[float]) -> Estimate:
    """Mean of rounds, by t."""
    if len(values) < 2:
        return Estimate(values[0], math.nan)
    error = statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(statistics.fmean(values), t_quantile(0.975, len(values) - 1) * error)


@dataclass(frozen=True, slots=True)
class Cell:
    """A load."""

    concurrency: int
    isl: int


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the server."""

    is_prefill: bool
    sequences: int  # that got a token from it
    begin_ns: int
    end_ns: int


def mean_gap_ms(steps: Sequence[Step]) -> float:
    """Mean time between two tokens of a sequence; steps in order.

    A token comes when its step ends; what lies before the step since the last one's end is part of the gap. In a
    prefill those wait that have a token and get the next one later: who is in the next decode step, less those that
    get their first token in this prefill or in one still to come.
    """
    total = weight = waiting = 0
    ends = [steps[0].begin_ns, *(step.end_ns for step in steps[:-1])]
    for step, before_ns in zip(reversed(steps), reversed(ends), strict=True):
        if step.is_prefill:
            waiting = max(waiting - step.sequences, 0)
        else:
            waiting = step.sequences
            weight += step.sequences
        total += (step.end_ns - before_ns) * waiting
    return total / weight / 1e6


@dataclass(frozen=True, slots=True)
class Trace:
    """What one recorded run says, milliseconds."""

    itl: float  # mean that its clients saw
    token: float  # mean time between two tokens of a sequence while they measured
    decode: float  # mean decode step
    layers: dict[str, float]


Traces = dict[tuple[str, Cell], list[Trace]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """An arm against the baseline under one load."""

    arm: str
    cell: Cell
    itl: Estimate
    tax: Estimate  # that clients saw
    traced: Estimate  # difference of the traces' time per token
    longer: Estimate  # difference of decode steps
    outside: tuple[float, float]  # of what clients saw, not in steps: arm, baseline
    layers: dict[str, float]  # difference of decode steps by layer

    @property
    def agrees(self) -> bool | None:
        """Whether clients and traces say the same, within their intervals; None: one round has none."""
        return self.tax.meets(self.traced)

    @property
    def residual(self) -> float:
        """What the layers do not explain of the tax."""
        return self.tax.value - sum(self.layers.values())


def compare(traces: Traces, documents: Mapping[int, dict[str, Any]], arm: str) -> list[Comparison]:
    """An arm against the baseline, all loads; `documents` are what `efaprof tax` says, by length of prompt."""
    names = list(dict.fromkeys(name for runs in traces.values() for run in runs for name in run.layers))
    found = []
    for cell in [cell for one, cell in traces if one == arm]:
        own, base = traces[arm, cell], traces[BASELINE, cell]
        itl, tax = _seen_by_clients(documents[cell.isl], arm, cell)
        means = [{name: statistics.fmean(one.layers.get(name, 0.0) for one in runs) for name in names}
                 for runs in (own, base)]  # fmt: skip
        found.append(
            Comparison(
                arm=arm,
                cell=cell,
                itl=itl,
                tax=tax,
                traced=mean_of([one.token for one in own]).minus(mean_of([one.token for one in base])),
                longer=mean_of([one.decode for one in own]).minus(mean_of([one.decode for one in base])),
                outside=(_outside(own), _outside(base)),
                layers={name: means[0][name] - means[1][name] for name in names},
            )
        )
    return found


def _outside(runs: list[Trace]) -> float:
    return statistics.fmean(one.itl - one.token for one in runs)


def _seen_by_clients(document: dict[str, Any], arm: str, cell: Cell) -> tuple[Estimate, Estimate]:
    """Inter-token latency of the arm, and its tax."""
    one = next(c for c in document["cells"] if c["concurrency"] == cell.concurrency)
    itl = _estimate_of(one["arms"][arm]["itl_ms"])
    return itl, itl.minus(_estimate_of(one["arms"][BASELINE]["itl_ms"]))


def _estimate_of(value: dict[str, Any]) -> Estimate:
    """A value of a document with its interval."""
    half = math.nan if value["hi"] is None else (value["hi"] - value["lo"]) / 2
    return Estimate(value["value"], half)


def table(compared: list[Comparison]) -> list[str]:
    """Lines for one arm."""
    arm, names = compared[0].arm, list(compared[0].layers)
    lines = [
        "| concurrency | isl | ITL, ms | tax seen by clients | tax in the traces | meet "
        f"| ITL outside steps: {arm}, {BASELINE} | decode step longer by | " + " | ".join(names) + " | residual |",
        "|" + "---|" * (9 + len(names)),
    ]  # fmt: skip
    return [*lines, *(_row(one) for one in compared)]


def _row(one: Comparison) -> str:
    meet = {True: "yes", False: "NO", None: "–"}[one.agrees]
    parts = " | ".join(f"{part:.2f}" for part in one.layers.values())
    return (
        f"| {one.cell.concurrency} | {one.cell.isl} | {one.itl} | {one.tax} | {one.traced} | {meet} "
        f"| {one.outside[0]:.2f}, {one.outside[1]:.2f} | {one.longer} | {parts} | {one.residual:.2f} |"
    )


def agreement(compared: Sequence[Comparison]) -> str:
    """One sentence on whether the taxes of clients and traces agree."""
    checked = [one for one in compared if one.agrees is not None]
    if not checked:
        return "Clients and traces are not compared: one round has no intervals."
    against = [one for one in checked if not one.agrees]
    if not against:
        return f"The tax that clients saw meets that of the traces within intervals in all {len(checked)} cells."
    cells = ", ".join(f"{one.arm} at concurrency {one.cell.concurrency}, isl {one.cell.isl}" for one in against)
    return f"The tax that clients saw is NOT that of the traces: {cells}."


def page(head: Sequence[str], compared: Mapping[str, list[Comparison]], documents: Mapping[int, dict[str, Any]]) -> str:
    """The whole result in markdown; `head` says what was run, `compared` is by arm."""
    machine = host.describe()
    lines = [
        f"# Serving arms over load, {time.strftime('%Y-%m-%d')}",
        "",
        f"{machine.cpu_model}, {machine.cpus} cores.",
        *head,
        agreement([one for cells in compared.values() for one in cells]),
    ]
    for arm, cells in compared.items():
        lines += ["", f"## {arm} against {BASELINE}", "", *table(cells)]
    for isl, document in documents.items():
        if not document["invariance"]:
            continue  # one load
        lines += ["", f"## Does it depend on the load? (isl {isl})", ""]
        for arm, found in document["invariance"].items():
            change = "" if found.get("change") is None else f", change {100 * found['change']:+.1f} %"
            lines.append(f"- {arm}: {found['outcome']}{change}")
    return "\n".join(lines) + "\n"
