"""What recording itself cost, from above: every record at the price that was measured when recording began."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from efaprof.analyzers.recorded import WHOLE_RUN
from efaprof.report import units
from efaprof.report.units import DERIVED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from efaprof.analyzers.recorded import Recorded
    from efaprof.report.decode_report import DecodeSection
    from efaprof.trace.reader import Tables
    from efaprof.trace.rundir import Run

_NS_PER_US = 1e3


@dataclass(frozen=True, slots=True)
class SelfCost:
    """Records of all threads one after the other, though most are written side by side: an upper bound."""

    records: int
    event_ns: float  # of one record
    share: float  # of the time of the ranks, or of the processes where there are no steps
    us_per_step: float | None


def self_cost(runs: Sequence[tuple[Run, Tables]], recorded: Recorded, steps: DecodeSection | None) -> SelfCost | None:
    """The bound over these runs; None where an older efaprof did not measure what a record costs."""
    prices = [run.manifest.event_cost_ns for run, _ in runs]
    known = [price for price in prices if price is not None]
    if len(known) < len(prices):
        return None
    counts = [sum(tables.facts.records.values()) for _, tables in runs]
    spent_ns = sum(count * price for count, price in zip(counts, known, strict=True))
    time_ns, step_us = _time(recorded, steps)
    if not time_ns:
        return None
    share = spent_ns / time_ns
    return SelfCost(sum(counts), max(known), share, None if step_us is None else share * step_us)


def _time(recorded: Recorded, steps: DecodeSection | None) -> tuple[float, float | None]:
    """Time that ranks spent in steps of any kind, and one step; without steps, the run of each process."""
    if steps is not None:
        return float(steps.decode.step_costs["wall_ns"].sum()), steps.decode.split.wall_us.value
    whole = next((one.length_ns for one in recorded.windows if one.window == WHOLE_RUN), 0)
    return float(whole * recorded.processes), None


def self_cost_words(found: SelfCost | None) -> str:
    """For a line of the report; empty where nothing is known."""
    if found is None:
        return ""
    if found.us_per_step is None:
        return f"self cost ≤ {units.percent(found.share)} {DERIVED}"
    return (
        f"self cost ≤ {units.duration(found.us_per_step * _NS_PER_US)} a step ({units.percent(found.share)}) {DERIVED}"
    )


def self_cost_document(found: SelfCost | None) -> dict[str, Any] | None:
    """`self_cost` of the report's document."""
    if found is None:
        return None
    return {
        "records": found.records,
        "event_ns": found.event_ns,
        "share": found.share,
        "us_per_step": found.us_per_step,
        "formula": "records × event_ns / time of the ranks: an upper bound, threads write side by side",
        "provenance": "derived",
    }
