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

from efaprof.analyzers.intervals import IntervalSet, side_by_side, union
from efaprof.analyzers.stamps import LABEL, LAYERS, Stamp
from efaprof.native_graph import WINDOW
from efaprof.native_wide import NO_TIME
from efaprof.trace.layers import Layer
from efaprof.trace.schema import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

    from efaprof.analyzers.graph import RankSteps, StepGraph

    Times = NDArray[np.int64]
    Columns = dict[str, NDArray[Any]]

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
    """Rank-local walks of a chunk; its rows are the steps of all ranks by rank and time, without the context."""

    rank: NDArray[np.int64]  # of each row
    step: NDArray[np.int64]
    columns: Columns  # one entry per gate and per stretch after a step's last gate; NOBODY where there is none
    row: NDArray[np.int64]  # that each window belongs to
    overlaps: Columns  # <layer>_overlapped_ns = U − C of each row

    @property
    def windows(self) -> pl.DataFrame:
        """Windows as a table.

        rank, step, end_ns, wall_ns; layer and phase of the gate (null after the last one); peer and channel of the
        operation that let it go (null: none did); `<layer>_ns`, which sum to wall_ns; `<layer>_walked`, the operations
        on the path there, those that the window cuts in part; true_skew_ns, the part of skew in which the late rank
        computed; late_rank and clip_ns.
        """
        series = {name: pl.Series(values) for name, values in self.columns.items()}
        for name in ("layer", "phase", "peer", "channel", "late_rank"):
            if (is_null := self.columns[name] == NOBODY).any():
                series[name] = series[name].set(pl.Series(is_null), None)
        words = pl.Series(Phase.categories, dtype=Phase)
        return pl.DataFrame({"rank": self.rank[self.row], "step": self.step[self.row], **series}).with_columns(
            phase=words.gather(series["phase"])
        )

    @property
    def overlapped(self) -> pl.DataFrame:
        """One row per (rank, step): `<layer>_overlapped_ns`."""
        return pl.DataFrame({"rank": self.rank, "step": self.step, **self.overlaps})

    def total(self, name: str) -> NDArray[np.float64]:
        """Sum of a column of windows in each row."""
        return np.bincount(self.row, self.columns[name], len(self.rank)).astype(np.float64)


def walk(graph: StepGraph) -> Walked:
    """The rank-local walk of every step that is not context.

    An operation walked over only in the next chunk adds nothing to U here.
    """
    windows, rows, overlaps, ranks, steps = [], [], [], [], []
    done = 0
    for own in graph.ranks:
        found, step, visited = _walk_rank(graph, own)
        numbers = own.numbers[~own.is_context]
        windows.append(found)
        rows.append(step - int(own.is_context.sum()) + done)
        overlaps.append(_overlapped(graph, own, found, step, visited))
        ranks.append(np.full(len(numbers), own.rank))
        steps.append(numbers)
        done += len(numbers)
    return Walked(
        np.concatenate(ranks), np.concatenate(steps), _joined(windows), np.concatenate(rows), _joined(overlaps)
    )


def _joined(parts: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([one[name] for one in parts]) for name in parts[0]}


def walk_job(graph: StepGraph) -> pl.DataFrame:
    """The job's walk as a table."""
    return pl.DataFrame(job_path(graph))


def job_path(graph: StepGraph) -> Columns:
    """One row per step: `<layer>_ns` from the end of the rank that ended last, back to the last end of the step before.

    Steps are matched by their number. Without a step before, the walk goes back to the first begin.
    """
    number = np.concatenate([own.numbers[~own.is_context] for own in graph.ranks])
    begin = np.concatenate([own.time[:-1][~own.is_context] for own in graph.ranks])
    end = np.concatenate([own.time[1:][~own.is_context] for own in graph.ranks])
    node = np.concatenate([own.marks[1:][~own.is_context] for own in graph.ranks])
    # Of those that ended at one time the first rank's.
    order = np.lexsort((-np.arange(len(number)), end, number))
    number, begin, end, node = number[order], begin[order], end[order], node[order]
    starts = np.flatnonzero(np.append(True, number[1:] != number[:-1])[: len(number)])
    last = np.append(starts, len(number))[1:] - 1
    begins = np.minimum.reduceat(begin, starts) if len(starts) else begin
    step, end, node = number[starts], end[last], node[last]
    low = np.maximum(np.append(NO_TIME, end[:-1]), begins.min(initial=np.iinfo(np.int64).max))
    before = [own.time[:-1][~own.is_context][:1] for own in graph.ranks]
    has_context = any(own.is_context.any() for own in graph.ranks)
    low[:1] = max(times.max() for times in before) if has_context else begins[:1]
    asked = np.zeros(len(step), WINDOW)
    asked["low"], asked["start"], asked["rank"] = low, node, NOBODY
    found = graph.events.walk(asked, np.zeros(max(graph.stamps.count, 1), np.uint8))
    return {"step": step, "wall_ns": end - low, **_layers(found)}


def _walk_rank(graph: StepGraph, own: RankSteps) -> tuple[Columns, NDArray[np.int64], NDArray[np.uint8]]:
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
    operation = found["operation"]
    columns = graph.stamps.columns
    end = np.append(end, own.time[1:][tails])
    after_last = np.full(len(tails), NOBODY)
    nobody = (np.arange(len(asked)) >= len(rows)) | (operation == NOBODY)
    windows = {
        "end_ns": end,
        "wall_ns": end - asked["low"],
        "layer": np.append(gates.layer[rows], after_last),
        "phase": np.append(gates.phase[rows], after_last),
        "peer": np.where(nobody, NOBODY, _taken(columns["rank"], operation)),
        "channel": np.where(nobody, NOBODY, _taken(columns["channel"], operation)),
        **_layers(found),
        **{f"{layer}_walked": found["walked"][:, list(stages)].sum(axis=1) for layer, stages in WALKED_STAGES.items()},
        "true_skew_ns": found["late_own_ns"],
        "clip_ns": found["clip_ns"],
        "late_rank": found["late_rank"].astype(np.int64),
    }
    return windows, np.append(step, tails), visited


def _taken(values: NDArray[np.int64], rows: NDArray[np.int32]) -> NDArray[np.int64]:
    return values[rows] if len(values) else np.full(len(rows), NOBODY)


def _layers(found: NDArray[np.void]) -> dict[str, NDArray[np.int64]]:
    """Columns of the layers that a walk can give."""
    return {
        f"{layer}_ns": np.ascontiguousarray(found["ns"][:, LABEL[layer]])
        for layer in LAYERS
        if layer is not Layer.LAUNCH
    }


def _overlapped(
    graph: StepGraph, own: RankSteps, walked: Columns, step: NDArray[np.int64], visited: NDArray[np.uint8]
) -> Columns:
    """U − C: how long a layer was open somewhere among the operations walked over, beyond its part of the path."""
    stamps, found = graph.stamps, np.flatnonzero(visited)
    rows = side_by_side(found)
    spans: dict[Layer, list[tuple[Times, Times]]] = {}
    for layer, first, last in _SPANS:
        spans.setdefault(layer, []).append((stamps.at(first)[rows], stamps.at(last)[rows]))
    fenced, seen = stamps.at(Stamp.FENCED)[rows], stamps.at(Stamp.SEEN)[rows]
    is_free = fenced == NO_TIME
    if is_free.all():
        spans[Layer.NIC].pop(1)
    else:
        spans[Layer.PROXY][0] = (np.where(is_free, seen, fenced), stamps.at(Stamp.CALL)[rows])
    posted = stamps.columns["is_posted"][rows]
    if posted.any():  # it waits before it writes, and rings the doorbell itself
        enter, publish = spans[Layer.KERNEL][0]
        enter_or_fenced = np.where(posted & (fenced != NO_TIME), fenced, enter)
        spans[Layer.KERNEL][0] = (enter_or_fenced, np.where(posted, stamps.at(Stamp.RETURN)[rows], publish))
        if not is_free.all():
            spans[Layer.NIC][1] = (np.where(posted, enter, seen), fenced)
    completed = side_by_side(np.flatnonzero(visited & 2))
    spans[Layer.NIC].append((stamps.at(Stamp.RETURN)[completed], stamps.at(Stamp.DONE)[completed]))
    spans[Layer.KERNEL].append(_gaps(graph, found))
    opened = {layer: _union(parts) for layer, parts in spans.items()} | {Layer.COMPUTE: own.computes}
    is_own = ~own.is_context
    begin, end = own.time[:-1][is_own], own.time[1:][is_own]
    columns = {}
    for layer, spans_of in opened.items():
        cost = np.bincount(step, walked[f"{layer}_ns"], len(is_own))[is_own]
        columns[f"{layer}_overlapped_ns"] = spans_of.covered_within(begin, end) - cost.astype(np.int64)
    return columns


def _gaps(graph: StepGraph, rows: NDArray[np.intp]) -> tuple[Times, Times]:
    """From the publication of one operation to the issue of the next of its run."""
    events, count = graph.events.events, graph.stamps.count
    enter = rows + Stamp.ENTER * count
    before = events.before[enter]
    joined = (before >= 0) & (before < events.stages * count)
    return events.time[before[joined]], events.time[enter[joined]]


def _union(parts: list[tuple[Times, Times]]) -> IntervalSet:
    begin, end = (np.concatenate(one) for one in zip(*parts, strict=True))
    return union(begin, end)
