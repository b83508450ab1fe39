"""The critical path of each step: backward from its end through what came last (METHOD §2).

A gate is a wait that ended at G; its window reaches back to the end of the gate before it, or to the step's begin. The
operation that came last let it go, and the walk follows it to its sender: over the receiver's thread, the NIC, the
library, the proxy and the lane that issued it, and where it waited for one of them, over the operations served before.

    P ···· enter ── publish ── seen ── call ── returned ── arrival ── signal ── G
      rest    kernel      ring     proxy  libfabric     nic       rx       poll

At the lane of another rank a rank's own walk ends: the rest of the window is own computing, and skew. A gate whose
operation was there before polling began let nobody wait: the walk goes along the own lane. The job's walk goes on along
the late lane instead and has no skew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.analyzers.intervals import IntervalSet, union
from efaprof.analyzers.stamps import LABEL, LAYERS, NO_TIME, Stamp
from efaprof.native_graph import WINDOW
from efaprof.trace.layers import Layer
from efaprof.trace.schema import Phase

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from efaprof.analyzers.graph import RankSteps, StepGraph

    Times = NDArray[np.int64]

NOBODY = -1
# Which stages say that an operation's time in a layer is on the path.
WALKED_STAGES: dict[Layer, tuple[Stamp, ...]] = {
    Layer.KERNEL: (Stamp.PUBLISH,),
    Layer.RING: (Stamp.SEEN,),
    Layer.PROXY: (Stamp.CALL,),
    Layer.LIBFABRIC: (Stamp.RETURN,),
    Layer.NIC: (Stamp.ARRIVAL, Stamp.DONE),
    Layer.RX: (Stamp.SIGNAL,),
}
# Layers of an operation whose U is the union over the operations walked: from … to ….
_SPANS: tuple[tuple[Layer, Stamp, Stamp], ...] = (
    (Layer.KERNEL, Stamp.ENTER, Stamp.PUBLISH),
    (Layer.RING, Stamp.PUBLISH, Stamp.SEEN),
    (Layer.PROXY, Stamp.SEEN, Stamp.CALL),
    (Layer.PROXY, Stamp.DONE, Stamp.TOLD),
    (Layer.LIBFABRIC, Stamp.CALL, Stamp.RETURN),
    (Layer.NIC, Stamp.RETURN, Stamp.ARRIVAL),
    (Layer.NIC, Stamp.SEEN, Stamp.FENCED),
    (Layer.RX, Stamp.ARRIVAL, Stamp.SIGNAL),
)


@dataclass(frozen=True, slots=True)
class Walked:
    """Rank-local walks of a chunk."""

    windows: pl.DataFrame  # one row per gate and per stretch after a step's last gate
    overlapped: pl.DataFrame  # one row per (rank, step): <layer>_overlapped_ns = U − C


def walk(graph: StepGraph) -> Walked:
    """The rank-local walk of every step that is not context.

    `windows` has rank, step, end_ns, wall_ns; layer and phase of the gate (null after the last one); peer and channel
    of the operation that let it go (null: none did); `<layer>_ns`, which sum to wall_ns; `<layer>_walked`, the
    operations on the path there, those that the window cuts in part; true_skew_ns, the part of skew in which the late
    rank computed; late_rank and clip_ns. An operation walked over only in the next chunk adds nothing to U here.
    """
    windows, overlapped = [], []
    for own in graph.ranks:
        found, step, visited = _walk_rank(graph, own)
        windows.append(found)
        overlapped.append(_overlapped(graph, own, found, step, visited))
    return Walked(pl.concat(windows), pl.concat(overlapped))


def walk_job(graph: StepGraph) -> pl.DataFrame:
    """One row per step: `<layer>_ns` from the end of the rank that ended last, back to the last end of the step before.

    Steps are matched by their number. Without a step before, the walk goes back to the first begin.
    """
    marks = pl.concat(
        pl.DataFrame({"step": _numbers(graph, own), "begin_ns": own.time[:-1][~own.is_context],
                      "end_ns": own.time[1:][~own.is_context], "node": own.marks[1:][~own.is_context]})
        for own in graph.ranks
    )  # fmt: skip
    ends = (
        marks.group_by("step")
        .agg(pl.col("node").sort_by("end_ns").last(), pl.max("end_ns"), pl.min("begin_ns"))
        .sort("step")
    )
    begins, end = ends["begin_ns"].to_numpy(), ends["end_ns"].to_numpy()
    low = np.maximum(np.append(NO_TIME, end[:-1]), begins.min(initial=np.iinfo(np.int64).max))
    before = [own.time[:-1][~own.is_context][:1] for own in graph.ranks]
    has_context = any(own.is_context.any() for own in graph.ranks)
    low[:1] = max(times.max() for times in before) if has_context else begins[:1]
    asked = np.zeros(len(ends), WINDOW)
    asked["low"], asked["start"], asked["rank"] = low, ends["node"].to_numpy(), NOBODY
    found = graph.events.walk(asked, np.zeros(max(graph.stamps.count, 1), np.uint8))
    return pl.DataFrame({"step": ends["step"], "wall_ns": ends["end_ns"].to_numpy() - low, **_layers(found)})


def _numbers(graph: StepGraph, own: RankSteps) -> NDArray[np.int64]:
    return graph.steps.filter(pl.col("rank") == own.rank)["step"].cast(pl.Int64).to_numpy()


def _walk_rank(graph: StepGraph, own: RankSteps) -> tuple[pl.DataFrame, NDArray[np.int64], NDArray[np.uint8]]:
    """Windows of one rank, the position of each one's step, and the operations walked over."""
    gates = graph.gates
    end = gates.end[own.gates]
    step = np.searchsorted(own.time[:-1], end, side="left") - 1
    is_counted = (step >= 0) & (end <= own.time[-1])
    is_counted[is_counted] &= ~own.is_context[step[is_counted]]
    before = np.append(NO_TIME, end[:-1])[is_counted]
    rows, step, end = own.gates[is_counted], step[is_counted], end[is_counted]
    tails = np.flatnonzero(~own.is_context)
    last = own.time[:-1].copy()
    np.maximum.at(last, step, end)
    asked = np.zeros(len(rows) + len(tails), WINDOW)
    asked["start"] = np.append(graph.events.events.gate_base + rows, own.marks[1:][tails])
    asked["low"] = np.append(np.maximum(before, own.time[step]), last[tails])
    asked["rank"] = own.rank
    visited = np.zeros(max(graph.stamps.count, 1), np.uint8)
    found = graph.events.walk(asked, visited)
    at = np.append(step, tails)
    number = np.full(len(own.is_context), NOBODY)
    number[~own.is_context] = _numbers(graph, own)
    operation = found["operation"]
    columns = graph.stamps.columns
    end = np.append(end, own.time[1:][tails])
    is_tail = np.arange(len(asked)) >= len(rows)
    nobody = is_tail | (operation == NOBODY)
    frame = pl.DataFrame(
        {
            "rank": np.full(len(asked), own.rank),
            "step": number[at],
            "end_ns": end,
            "wall_ns": end - asked["low"],
            "layer": _masked(np.append(gates.layer[rows], tails * 0), is_tail),
            "phase": _masked(np.append(gates.phase[rows], tails * 0), is_tail),
            "peer": _masked(_taken(columns["rank"], operation), nobody),
            "channel": _masked(_taken(columns["channel"], operation), nobody),
            **_layers(found),
            **{
                f"{layer}_walked": found["walked"][:, list(stages)].sum(axis=1)
                for layer, stages in WALKED_STAGES.items()
            },
            "true_skew_ns": found["late_own_ns"],
            "clip_ns": found["clip_ns"],
            "late_rank": _masked(found["late_rank"].astype(np.int64), found["late_rank"] == NOBODY),
        }
    )
    words = pl.Series(Phase.categories, dtype=Phase)
    return frame.with_columns(phase=words.gather(frame["phase"])), at, visited


def _taken(values: NDArray[np.int64], rows: NDArray[np.int32]) -> NDArray[np.int64]:
    return values[rows] if len(values) else np.full(len(rows), NOBODY)


def _masked(values: NDArray[np.int64], is_null: NDArray[np.bool_]) -> pl.Series:
    return pl.Series(values).set(pl.Series(is_null), None) if is_null.any() else pl.Series(values)


def _layers(found: NDArray[np.void]) -> dict[str, NDArray[np.int64]]:
    """Columns of the layers that a walk can give."""
    return {
        f"{layer}_ns": np.ascontiguousarray(found["ns"][:, LABEL[layer]])
        for layer in LAYERS
        if layer is not Layer.LAUNCH
    }


def _overlapped(
    graph: StepGraph, own: RankSteps, walked: pl.DataFrame, step: NDArray[np.int64], visited: NDArray[np.uint8]
) -> pl.DataFrame:
    """U − C: how long a layer was open somewhere among the operations walked over, beyond its part of the path."""
    stamps, rows = graph.stamps, np.flatnonzero(visited)
    spans: dict[Layer, list[tuple[Times, Times]]] = {}
    for layer, first, last in _SPANS:
        spans.setdefault(layer, []).append((stamps.at(first)[rows], stamps.at(last)[rows]))
    fenced, seen = stamps.at(Stamp.FENCED)[rows], stamps.at(Stamp.SEEN)[rows]
    spans[Layer.PROXY][0] = (np.where(fenced == NO_TIME, seen, fenced), stamps.at(Stamp.CALL)[rows])
    posted = stamps.columns["is_posted"][rows]
    if posted.any():  # it waits before it writes, and rings the doorbell itself
        enter, publish = spans[Layer.KERNEL][0]
        enter_or_fenced = np.where(posted & (fenced != NO_TIME), fenced, enter)
        spans[Layer.KERNEL][0] = (enter_or_fenced, np.where(posted, stamps.at(Stamp.RETURN)[rows], publish))
        spans[Layer.NIC][1] = (np.where(posted, enter, seen), fenced)
    completed = np.flatnonzero(visited & 2)
    spans[Layer.NIC].append((stamps.at(Stamp.RETURN)[completed], stamps.at(Stamp.DONE)[completed]))
    spans[Layer.KERNEL].append(_gaps(graph, rows))
    opened = {layer: _union(parts) for layer, parts in spans.items()} | {Layer.COMPUTE: own.computes}
    is_own = ~own.is_context
    begin, end = own.time[:-1][is_own], own.time[1:][is_own]
    columns = {}
    for layer, spans_of in opened.items():
        cost = np.bincount(step, walked[f"{layer}_ns"].to_numpy(), len(is_own))[is_own]
        columns[f"{layer}_overlapped_ns"] = spans_of.covered_within(begin, end) - cost.astype(np.int64)
    return pl.DataFrame({"rank": np.full(len(begin), own.rank), "step": _numbers(graph, own), **columns})


def _gaps(graph: StepGraph, rows: NDArray[np.intp]) -> tuple[Times, Times]:
    """From the publication of one operation to the issue of the next of its run."""
    events, count = graph.events.events, graph.stamps.count
    enter = rows + Stamp.ENTER * count
    before = events.before[enter]
    joined = (before >= 0) & (before < events.stages * count)
    return events.time[before[joined]], events.time[enter[joined]]


def _union(parts: list[tuple[Times, Times]]) -> IntervalSet:
    begin, end = (np.concatenate(one) for one in zip(*parts, strict=True))
    known = (begin != NO_TIME) & (end != NO_TIME)
    return union(begin[known], end[known])
