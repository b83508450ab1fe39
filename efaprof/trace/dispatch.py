"""Operations of our own dispatch paths as wide rows, in chunks of whole steps: flat memory, any number of ranks.

The stages of an operation stand in several rings, in the order in which they ended; its (ring, seq) says where they
belong. Sequences are dense, so a chunk of steps is a range of sequences per ring and every stage is one store into its
columns (efaprof/native_wide.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from efaprof.native_wide import Clock, Flows, WideRows
from efaprof.trace.bulk import is_bulk, resolve
from efaprof.trace.clocks import IDENTITY
from efaprof.trace.layout import Shape
from efaprof.trace.marks import Marks, read_marks
from efaprof.trace.rawfile import read_chunk, read_slots, slot_buffer
from efaprof.trace.stages import OtherParts
from efaprof.trace.turns import turns
from efaprof.trace.widerow import DispatchChunk, assemble

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from efaprof.trace.clocks import ClockMap
    from efaprof.trace.survey import Ring, Survey
    from efaprof.trace.turns import Turn

CHUNK_OPS = 1 << 16
_OF_OPERATIONS = frozenset({Shape.STAGE, Shape.POST, Shape.RX, Shape.WAIT})
# A chunk is handed out when all its completions are here and this much time has passed, for arrivals that were held …
GRACE_NS = 20_000_000
# … or when this much has passed: what has not completed by then stays open in the table.
PATIENCE_NS = 1_000_000_000


def chunks(survey: Survey, *, chunk_ops: int = CHUNK_OPS) -> Iterator[DispatchChunk]:
    """All whole steps in order, at least one a chunk and about `chunk_ops` operations."""
    found = _chunks(survey, chunk_ops)
    return map(resolve, found) if is_bulk(survey) else found


def _chunks(survey: Survey, chunk_ops: int) -> Iterator[DispatchChunk]:
    rings = read_marks(survey)
    if not rings:
        return
    cuts = _cuts(rings, chunk_ops)
    raws = [ring for ring in survey.rings if ring.shapes & _OF_OPERATIONS]
    pending = _Pending(rings, raws, cuts)
    done, chunks_in_all = 0, len(cuts) - 1
    for turn in turns(raws):
        pending.take(turn)
        while done < chunks_in_all and pending.is_settled(done):
            yield pending.hand_out(done)
            done += 1
    for chunk in range(done, chunks_in_all):
        yield pending.hand_out(chunk)


def _cuts(rings: list[Marks], chunk_ops: int) -> list[int]:
    """Step positions where chunks begin, and the end; steps that a rank did not finish are left out."""
    steps = min(marks.steps for marks in rings)
    begins = sum(marks.step_seqs[: steps + 1] for marks in rings)
    before = np.asarray(begins) - np.asarray(begins)[0]
    cuts = [0]
    while cuts[-1] < steps:
        reached = int(np.searchsorted(before, before[cuts[-1]] + chunk_ops))
        cuts.append(min(max(reached, cuts[-1] + 1), steps))
    return cuts


class _Pending:
    """Records read and not yet handed out."""

    def __init__(self, rings: list[Marks], raws: list[Ring], cuts: list[int]) -> None:
        self._rings, self._cuts = rings, cuts
        seqs: NDArray[np.int64] = np.array([marks.step_seqs[cuts] for marks in rings])
        self._wide = WideRows([marks.ring for marks in rings], seqs)
        self._others = {marks.process: OtherParts() for marks in rings}
        self._clocks: dict[int, Clock] = {}
        self._flows = Flows()
        self._reached_ns = np.iinfo(np.int64).min
        self._buffer = slot_buffer(max((part.end - part.begin for ring in raws for part in ring.parts), default=0))

    def take(self, turn: Turn) -> None:
        """Keep the dispatch records of the next part."""
        ring, part = turn.ring, turn.part
        self._reached_ns = turn.reached_ns
        others = self._others.get(ring.process)
        if others is None:
            return
        if part.is_whole:
            slots, starts = read_slots(ring.raw, part.begin, part.end, self._buffer), None
        else:
            chunk = read_chunk(ring.raw, part.begin, part.end, self._buffer)
            slots, starts = chunk.slots, chunk.starts
        others.take(slots, ring.clock, self._wide.take(self._clock(ring.clock), slots, starts))

    def _clock(self, clock: ClockMap) -> Clock:
        if id(clock) not in self._clocks:
            segments = 0 if clock is IDENTITY else len(clock.ticks)
            self._clocks[id(clock)] = Clock(clock.ticks[:segments], clock.base_ns[:segments], clock.slope[:segments])
        return self._clocks[id(clock)]

    def is_settled(self, chunk: int) -> bool:
        """Nothing more is to come for this chunk, or those before it."""
        end = max(int(marks.step_ns[self._cuts[chunk + 1]]) for marks in self._rings)
        if self._reached_ns < end + GRACE_NS:
            return False
        return self._reached_ns >= end + PATIENCE_NS or int(self._wide.completed[chunk]) == self._wide.rows(chunk)

    def hand_out(self, chunk: int) -> DispatchChunk:
        """The steps of a chunk as tables; later records stay pending."""
        steps = self._cuts[chunk], self._cuts[chunk + 1]
        computes = {
            marks.ring: self._others[marks.process].split_computes(marks.ring, int(marks.step_ns[steps[1]]))
            for marks in self._rings
            if marks.is_first
        }
        waits = {
            marks.process: self._others[marks.process].split_waits(int(marks.step[marks.step_rows[steps[1]]]))
            for marks in self._rings
            if marks.is_first
        }
        arrivals = {process: parts.take_arrivals() for process, parts in self._others.items()}
        stages = self._wide.hand_out(chunk)
        found, rest = assemble(self._rings, steps, stages, computes, waits, arrivals, self._flows)
        for process, left in rest.items():
            self._others[process].give_back(left)
        return found
