"""The event graph of a chunk of steps: what each rank's lane, proxy, NIC and receiver did, and what each waited for.

A lane does one thing after the other: it computes, issues operations, and waits at gates. Operations that are issued
without anything else in between are one run; only the first of a run stands on the lane by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from efaprof.analyzers.gates import read_gates, sorted_rows
from efaprof.analyzers.intervals import IntervalSet, count_until, side_by_side, union
from efaprof.analyzers.stamps import LABEL, Limits, Stamp, Stamps, read_stamps
from efaprof.native_graph import EventGraph, Events
from efaprof.native_wide import NO_TIME, NONE
from efaprof.trace import schema
from efaprof.trace.frames import empty
from efaprof.trace.layers import Layer
from efaprof.trace.widerow import DispatchChunk

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from efaprof.analyzers.gates import Gates, Numbers

    Times = NDArray[np.int64]
    Ids = NDArray[np.int32]

EMPTY_CHUNK = DispatchChunk(empty(schema.STEPS), empty(schema.DISPATCH), empty(schema.WAITS), empty(schema.COMPUTES))


@dataclass(frozen=True, slots=True)
class RankSteps:
    """Steps of one rank in order: marks[i] is the node where step i begins, marks[i + 1] where it ends."""

    rank: int
    numbers: NDArray[np.int64]  # of the steps
    marks: NDArray[np.int64]
    time: Times
    is_context: NDArray[np.bool_]
    gates: NDArray[np.int64]  # rows of `Gates`
    computes: IntervalSet


@dataclass(frozen=True, slots=True)
class StepGraph:
    """A chunk's events, and where its steps and gates stand among them."""

    events: EventGraph
    stamps: Stamps
    gates: Gates
    ranks: tuple[RankSteps, ...]
    frozen: NDArray[np.uint8]  # nodes of the context


def build(chunk: DispatchChunk, context: DispatchChunk = EMPTY_CHUNK, limits: Limits | None = None) -> StepGraph:
    """The graph of a chunk. `context` are the steps before it: chains lead into them, nothing of them is counted."""
    limits = limits or Limits()
    steps = sorted_rows([context.step_rows, chunk.step_rows], ("rank", "begin_ns", "step", "end_ns"), by=2)
    computes = sorted_rows([context.compute_rows, chunk.compute_rows], ("rank", "begin_ns", "end_ns"), by=3)
    waits = len(context.wait_rows) + len(chunk.wait_rows)
    room = 2 * waits + 2 * len(computes["rank"]) + len(steps["rank"]) + len(np.unique(steps["rank"]))
    stamps = read_stamps(context.columns, chunk.columns, limits, room=room)
    gates = read_gates([context.wait_rows, chunk.wait_rows], stamps)
    nodes = _Nodes(stamps, gates, computes, steps)
    ranks = tuple(nodes.lane(int(rank)) for rank in np.unique(nodes.step_rank))
    made = nodes.events(ranks, limits)
    return StepGraph(
        events=EventGraph(made),
        stamps=stamps,
        gates=gates,
        ranks=ranks,
        frozen=nodes.frozen(),
    )


class _Nodes:
    """Lays the nodes out: stages │ gate ends │ gate begins │ compute begins │ compute ends │ marks."""

    def __init__(self, stamps: Stamps, gates: Gates, computes: Numbers, steps: Numbers) -> None:
        self._stamps, self._gates = stamps, gates
        self._compute_rank = computes["rank"]
        self._compute_begin, self._compute_end = computes["begin_ns"], computes["end_ns"]
        self.step_rank, self._step_number = steps["rank"], steps["step"]
        self._step_begin, self._step_end = steps["begin_ns"], steps["end_ns"]
        self._is_context = steps["part"] == 0
        self.gate_base = stamps.stages * stamps.count
        begins = self.gate_base + gates.count
        self._gate_begin_base = begins
        self._compute_base = begins + gates.count
        marks = self._compute_base + 2 * len(self._compute_rank)
        ranks = np.unique(self.step_rank)
        self._mark_base = {int(rank): marks + at for at, rank in self._mark_places(ranks)}
        count = marks + len(self.step_rank) + len(ranks)
        self.time, self.before, self.label = stamps.time, stamps.before, stamps.label
        self.label[self.gate_base :] = LABEL[Layer.IDLE]
        self.lane_of = np.full(count, NONE, np.int16)
        self._until = np.full(int(ranks.max(initial=0)) + 1, NO_TIME, np.int64)  # of each rank's context
        self._fill_plain()

    def _mark_places(self, ranks: NDArray[np.int64]) -> list[tuple[int, int]]:
        """(first mark, rank): every rank has one more mark than steps."""
        return [(int(np.searchsorted(self.step_rank, rank)) + number, int(rank)) for number, rank in enumerate(ranks)]

    def _fill_plain(self) -> None:
        gates, computes = self._gates, len(self._compute_rank)
        ends = slice(self.gate_base, self.gate_base + gates.count)
        begins = slice(self._gate_begin_base, self._gate_begin_base + gates.count)
        self.time[ends], self.time[begins] = gates.end, gates.begin
        self.label[ends] = gates.label
        self.before[ends] = np.arange(begins.start, begins.stop)
        self.lane_of[ends] = self.lane_of[begins] = gates.rank
        low, high = self._compute_base, self._compute_base + computes
        self.time[low:high], self.time[high : high + computes] = self._compute_begin, self._compute_end
        self.label[high : high + computes] = LABEL[Layer.COMPUTE]
        self.before[high : high + computes] = np.arange(low, high)
        self.lane_of[low:high] = self.lane_of[high : high + computes] = self._compute_rank

    def lane(self, rank: int) -> RankSteps:
        """Connect what one rank's lane did, in order of time."""
        steps = np.flatnonzero(self.step_rank == rank)
        marks = self._mark_base[rank] + np.arange(len(steps) + 1)
        self.time[marks] = np.append(self._step_begin[steps], self._step_end[steps[-1]])
        self.lane_of[marks] = rank
        is_context = self._is_context[steps]
        if is_context.any():
            self._until[rank] = self._step_end[steps[is_context]].max()
        gates = np.flatnonzero(self._gates.rank == rank)
        computes = np.flatnonzero(self._compute_rank == rank)
        self._connect(rank, marks, gates, computes)
        return RankSteps(
            rank=rank,
            numbers=self._step_number[steps],
            marks=marks,
            time=self.time[marks],
            is_context=is_context,
            gates=gates,
            computes=union(self._compute_begin[computes], self._compute_end[computes]),
        )

    def _connect(
        self, rank: int, marks: NDArray[np.int64], gates: NDArray[np.int64], computes: NDArray[np.int64]
    ) -> None:
        stamps, count = self._stamps, len(self._compute_rank)
        first = np.concatenate([self._gate_begin_base + gates, self._compute_base + computes, marks])
        last = np.concatenate([self.gate_base + gates, self._compute_base + count + computes, marks])
        order = np.lexsort((self.time[last], self.time[first]))
        first, last = first[order], last[order]
        enter, publish = stamps.at(Stamp.ENTER), stamps.at(Stamp.PUBLISH)
        rows = np.flatnonzero((stamps.columns["rank"] == rank) & (enter != NO_TIME) & (publish != NO_TIME))
        place: slice | NDArray[np.intp] = side_by_side(rows)
        entered = enter[place]
        if (entered[1:] < entered[:-1]).any():
            rows = place = rows[np.argsort(entered, kind="stable")]
            entered = enter[rows]
        issued = np.append(NO_TIME, publish[place])
        issued_id = np.append(np.int32(NONE), rows.astype(np.int32) + np.int32(Stamp.PUBLISH * stamps.count))
        # What is not issuing follows what is not issuing, or the last operation issued before it began.
        before = np.searchsorted(issued[1:], self.time[first], side="right")
        other, other_time = np.append(NONE, last[:-1]), np.append(NO_TIME, self.time[last[:-1]])
        self.before[first] = np.where(issued[before] > other_time, issued_id[before], other)
        # An operation follows the one issued before it, or what was done in between.
        at = count_until(self.time[first], entered - 1)
        in_between = np.append(NO_TIME, self.time[last])[at]
        is_joined = issued[:-1] > in_between
        # Nodes of the first stage are numbered as operations are.
        self.before[place] = np.where(is_joined, issued_id[:-1], np.append(NONE, last).astype(np.int32)[at])
        self.label[place] = np.where(is_joined, np.uint8(LABEL[Layer.KERNEL]), np.uint8(LABEL[Layer.IDLE]))
        self.lane_of[place] = np.where(is_joined, np.int16(NONE), np.int16(rank))

    def frozen(self) -> NDArray[np.uint8]:
        """Nodes of the context, which a replay leaves where they were."""
        frozen = np.zeros(len(self.time), np.uint8)
        whole = np.tile(self._stamps.is_context, self._stamps.stages)
        frozen[: len(whole)] = whole
        rest = self.lane_of[len(whole) :]
        frozen[len(whole) :] = self.time[len(whole) :] <= self._until[rest]
        return frozen

    def events(self, ranks: tuple[RankSteps, ...], limits: Limits) -> Events:
        """Everything as arrays."""
        stamps = self._stamps
        by_rank = {one.rank: one.computes for one in ranks}
        sets = [by_rank.get(rank) for rank in range(max(by_rank, default=-1) + 1)]
        known = [one for one in sets if one is not None]
        service_ns = limits.service_ns(stamps.columns["bytes"])
        return Events(
            time=self.time,
            before=self.before,
            also=stamps.also,
            gate_first=self._gates.first,
            gate_also=self._gates.also,
            label=self.label,
            lane=self.lane_of,
            compute_first=np.append(0, np.cumsum([0 if one is None else len(one.begin) for one in sets])),
            compute_begin=np.concatenate([one.begin for one in known]),
            compute_end=np.concatenate([one.end for one in known]),
            compute_before=np.concatenate([one.covered_before for one in known]),
            starts_ring=stamps.starts_ring.astype(np.uint8),
            service_ns=service_ns,
            sent_before=None if service_ns is None else stamps.sent_before(),
            operations=stamps.count,
            stages=stamps.stages,
            gate_base=self.gate_base,
            seen_stage=Stamp.SEEN,
            return_stage=Stamp.RETURN,
            done_stage=Stamp.DONE,
            compute_label=LABEL[Layer.COMPUTE],
            late_label=LABEL[Layer.SKEW],
            idle_label=LABEL[Layer.IDLE],
            missing_label=LABEL[Layer.UNATTRIBUTED],
        )
