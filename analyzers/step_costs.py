"""What steps of real programs cost by layer: the exclusive sweep over libfabric calls, completions and named stretches.

Only what was recorded can be told apart: within a step, time in which nothing known ran is idle; between the end of a
step and the next begin it is launch, as no work for the next step had been enqueued. Where a GPU's work was recorded,
that says both: gaps are launch where the launch of what follows began after the gap did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.analyzers.exclusive import sweep
from efaprof.analyzers.intervals import EMPTY, IntervalSet, merge, subtract, union
from efaprof.analyzers.spread import Spread, add_counts, code_counts, spreads
from efaprof.analyzers.steps import classified
from efaprof.trace.layers import Layer, Match

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from efaprof.analyzers.steps import FoundSteps, ProcessSteps
    from efaprof.trace.reader import Tables

    Times = NDArray[np.int64]

_COLUMNS = [
    "process", "kind", "direction", "nest", "bytes", "eagain", "post_ns", "return_ns", "doorbell_ns", "done_ns",
    "match",
]  # fmt: skip
_OPEN = (Match.IN_FLIGHT.value, Match.UNEXPLAINED.value)
_LAYERS = tuple(Layer)
_SUMS = ("operations", "bytes", "eagain", "unfinished", "clip_ns")
_FOLD = 16


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Steps of a run with their layers."""

    frame: pl.DataFrame  # one row per (rank, step), as `attribution.decode_split` needs it; also tokens and batch
    latencies: dict[Layer, Spread]  # of one operation, in decode steps
    kinds: dict[str, tuple[int, int]]  # operations sent in decode steps, and their bytes
    stamped: float | None  # of them, those with a completion or known to have none; None: there are none


@dataclass(frozen=True, slots=True)
class RunSteps:
    """A run, the steps found in it, and the rank of each process that has some."""

    tables: Tables
    found: FoundSteps
    ranks: Mapping[int, int]


@dataclass(slots=True)
class _Rank:
    """What accumulates over chunks of operations of one process."""

    tables: Tables
    rank: int
    steps: ProcessSteps
    kind: tuple[str, ...]
    is_decode: NDArray[np.bool_]
    sums: dict[str, Times]
    libfabric: list[IntervalSet] = field(default_factory=list)
    nic: list[IntervalSet] = field(default_factory=list)
    buckets: dict[Layer, list[pl.DataFrame]] = field(default_factory=dict)
    kinds: list[pl.DataFrame] = field(default_factory=list)

    def step_of(self, time: Times) -> tuple[Times, NDArray[np.bool_]]:
        """The step that each time lies in, and whether it lies in one."""
        at = np.searchsorted(self.steps.begin_ns, time, side="right") - 1
        return np.maximum(at, 0), (at >= 0) & (time < self.steps.until_ns[np.maximum(at, 0)])

    def take(self, own: pl.DataFrame) -> None:
        """Operations that the program itself called."""
        post, returned = own["post_ns"].to_numpy(), own["return_ns"].to_numpy()
        self.libfabric.append(union(post, returned))
        is_sent = ((own["direction"] == "tx") & (own["match"] != Match.FAILED_POST.value)).fill_null(value=False)
        sent = own.filter(is_sent)
        if sent.is_empty():
            return
        doorbell, done = (sent[name].fill_null(0).to_numpy() for name in ("doorbell_ns", "done_ns"))
        has_nic = (sent["doorbell_ns"].is_not_null() & sent["done_ns"].is_not_null()).to_numpy()
        self.nic.append(union(doorbell[has_nic], done[has_nic]))
        at, inside = self.step_of(sent["post_ns"].to_numpy())
        open_ = sent["match"].cast(pl.String).is_in(_OPEN).to_numpy()
        values = {
            "operations": None, "bytes": sent["bytes"].to_numpy(), "eagain": sent["eagain"].to_numpy(),
            "unfinished": open_, "clip_ns": np.where(has_nic, np.maximum(doorbell - done, 0), 0),
        }  # fmt: skip
        for name, weights in values.items():
            counted = np.bincount(at[inside], None if weights is None else weights[inside], minlength=self.steps.count)
            self.sums[name] += np.rint(counted).astype(np.int64)
        chosen = inside & self.is_decode[at]
        nic_ns = np.maximum(done - doorbell, 0)
        self._spread(Layer.LIBFABRIC, (sent["return_ns"] - sent["post_ns"]).to_numpy()[chosen])
        self._spread(Layer.NIC, nic_ns[chosen & has_nic])
        of_kind = sent.filter(pl.Series(chosen)).group_by(pl.col("kind").cast(pl.String))
        is_open = pl.col("match").cast(pl.String).is_in(_OPEN)
        self.kinds.append(
            of_kind.agg(count=pl.len().cast(pl.Int64), bytes=pl.sum("bytes").cast(pl.Int64), open=is_open.sum())
        )

    def _spread(self, layer: Layer, ns: Times) -> None:
        parts = self.buckets.setdefault(layer, [])
        parts.append(code_counts(np.zeros(len(ns), np.uint32), ns))
        if len(parts) > _FOLD:
            self.buckets[layer] = [add_counts(parts, ["code"])]


def step_costs(runs: Sequence[RunSteps]) -> StepCosts:
    """Costs of the steps found in the runs of one job."""
    taken = [one for run in runs for one in _of_run(run)]
    frames = [_frame(one) for one in taken]
    kinds = _by_kind(taken)
    operations = sum(count for count, _, _ in kinds.values())
    unfinished = sum(left for _, _, left in kinds.values())
    return StepCosts(
        frame=pl.concat(frames, how="diagonal").with_columns(pl.selectors.ends_with("_ns").fill_null(0)),
        latencies=_latencies(taken),
        kinds={kind: (count, size) for kind, (count, size, _) in kinds.items()},
        stamped=1 - unfinished / operations if operations else None,
    )


def _of_run(run: RunSteps) -> list[_Rank]:
    """The run's ranks with all that its operations say."""
    posted = _posted(run.tables, run.found)
    own = {}
    for steps in run.found.processes:
        kind = classified(steps.kind, posted[steps.process])
        own[steps.process] = _Rank(
            tables=run.tables,
            rank=run.ranks[steps.process],
            steps=steps,
            kind=kind,
            is_decode=np.array([one == "decode" for one in kind], np.bool_),
            sums={name: np.zeros(steps.count, np.int64) for name in _SUMS},
        )
    for chunk in run.tables.chunks("ops", _COLUMNS):
        for (process,), rows in chunk.filter(pl.col("nest") == 0).group_by("process", maintain_order=True):
            if process in own:
                own[int(str(process))].take(rows)
    return list(own.values())


def step_gaps(tables: Tables, found: FoundSteps) -> dict[int, tuple[IntervalSet, IntervalSet]]:
    """Decode steps of each process, and what of them is launch or idle."""
    ranks = {one.process: one.process for one in found.processes}
    gaps = {}
    for one in _of_run(RunSteps(tables, found, ranks)):
        decode = union(one.steps.begin_ns[one.is_decode], one.steps.until_ns[one.is_decode])
        known = (spans for layer, spans in _open_in(one).items() if layer not in {Layer.LAUNCH, Layer.IDLE})
        gaps[one.steps.process] = decode, subtract(decode, _joined(list(known)))
    return gaps


def _posted(tables: Tables, found: FoundSteps) -> dict[int, Times]:
    """Data operations of each step: counted only where a kind is not said."""
    counts = {one.process: np.zeros(one.count, np.int64) for one in found.processes}
    unsaid = [one for one in found.processes if None in one.kind]
    if not unsaid:
        return counts
    for chunk in tables.chunks("ops", ["process", "direction", "nest", "post_ns"]):
        sent = chunk.filter(pl.col("nest") == 0, pl.col("direction") == "tx")
        for one in unsaid:
            post = sent.filter(pl.col("process") == one.process)["post_ns"].to_numpy()
            at = np.searchsorted(one.begin_ns, post, side="right") - 1
            inside = (at >= 0) & (post < one.until_ns[np.maximum(at, 0)])
            counts[one.process] += np.bincount(at[inside], minlength=one.count)
    return counts


def _open_in(one: _Rank) -> dict[Layer, IntervalSet]:
    """What is open when, by layer."""
    tables, process = one.tables, one.steps.process
    opened = {Layer.LIBFABRIC: _joined(one.libfabric), Layer.NIC: _joined(one.nic)}
    reads = tables.reads.filter(pl.col("process") == process, pl.col("nest") == 0).select("begin_ns", "end_ns")
    opened[Layer.POLL] = _stretches(reads.collect())
    named = (
        tables.spans.filter(
            pl.col("process") == process,
            pl.col("source") == "annotation",
            pl.col("what") == "range",
            pl.col("category") > 0,
        )
        .select("begin_ns", "end_ns", "category")
        .collect()
    )
    for (category,), rows in named.group_by("category"):
        number = int(str(category)) - 1
        if number < len(_LAYERS):
            layer = _LAYERS[number]
            opened[layer] = merge(opened.get(layer, EMPTY), _stretches(rows))
    work = tables.device_work.filter(pl.col("process") == process).select("begin_ns", "end_ns", "correlation").collect()
    if len(work):
        opened[Layer.COMPUTE] = merge(opened.get(Layer.COMPUTE, EMPTY), _stretches(work))
        opened[Layer.LAUNCH] = _launch_gaps(work, tables.spans.filter(pl.col("process") == process))
    elif one.steps.has_ends:
        between = union(one.steps.end_ns, one.steps.until_ns)
        opened[Layer.LAUNCH] = merge(opened.get(Layer.LAUNCH, EMPTY), between)
    return opened


def _joined(parts: list[IntervalSet]) -> IntervalSet:
    if not parts:
        return EMPTY
    return union(np.concatenate([one.begin for one in parts]), np.concatenate([one.end for one in parts]))


def _stretches(rows: pl.DataFrame) -> IntervalSet:
    return union(rows["begin_ns"].to_numpy(), rows["end_ns"].to_numpy())


def _launch_gaps(work: pl.DataFrame, spans: pl.LazyFrame) -> IntervalSet:
    """Gaps in a GPU's work that ended with work whose launch began after the gap did."""
    calls = (
        spans.filter(pl.col("correlation") > 0)
        .select("correlation", launched_ns=pl.col("begin_ns"))
        .unique("correlation")
        .collect()
    )
    ordered = (
        work.with_columns(pl.col("correlation").cast(pl.UInt64))
        .join(calls, on="correlation", how="left")
        .sort("begin_ns")
    )
    begin, end = ordered["begin_ns"].to_numpy(), np.maximum.accumulate(ordered["end_ns"].to_numpy())
    launched = ordered["launched_ns"].fill_null(np.iinfo(np.int64).min).to_numpy()
    is_launch = (begin[1:] > end[:-1]) & (launched[1:] >= end[:-1])
    return union(end[:-1][is_launch], begin[1:][is_launch])


def _frame(one: _Rank) -> pl.DataFrame:
    steps = one.steps
    used = {layer: spans for layer, spans in _open_in(one).items() if len(spans.begin)}
    found = sweep(used, steps.begin_ns, steps.until_ns)
    columns = {f"{layer}_ns": ns for layer, ns in found.exclusive.items()}
    columns |= {f"{layer}_overlapped_ns": ns for layer, ns in found.overlapped.items()}
    return pl.DataFrame(
        {
            "rank": np.full(steps.count, one.rank, np.int64),
            "step": steps.number,
            "kind": list(one.kind),
            "begin_ns": steps.begin_ns,
            "wall_ns": steps.until_ns - steps.begin_ns,
            **columns,
            "queue_ns": np.zeros(steps.count, np.int64),
            **one.sums,
            "tokens": pl.Series(steps.tokens, dtype=pl.Int64),
            "batch": pl.Series(steps.batch, dtype=pl.Int64),
        }
    )


def _latencies(ranks: list[_Rank]) -> dict[Layer, Spread]:
    found = {}
    for layer in (Layer.LIBFABRIC, Layer.NIC):
        parts = [part for one in ranks for part in one.buckets.get(layer, ())]
        if parts and (spread := spreads(add_counts(parts, ["code"]), ["code"])):
            found[layer] = spread[0,]
    return found


def _by_kind(ranks: list[_Rank]) -> dict[str, tuple[int, int, int]]:
    """Operations of each kind, the most frequent first: how many, their bytes, how many did not end."""
    parts = [part for one in ranks for part in one.kinds]
    if not parts:
        return {}
    total = pl.concat(parts).group_by("kind").agg(pl.sum("count", "bytes", "open").cast(pl.Int64))
    ordered = total.sort("count", "kind", descending=[True, False])
    return {kind: (count, size, left) for kind, count, size, left in ordered.iter_rows()}
