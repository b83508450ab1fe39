"""Operations of our own dispatch paths as wide rows, in chunks of whole steps: flat memory, any number of ranks.

The stages of an operation stand in several rings, in the order in which they ended; its (ring, seq) says where they
belong. Sequences are dense, so a chunk of steps is a range of sequences per ring and every stage is one scatter into it
(efaprof/trace/widerow.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from efaprof.trace.marks import Marks, read_marks
from efaprof.trace.merge import windows
from efaprof.trace.stages import OtherParts, StageParts, take_stages
from efaprof.trace.widerow import DispatchChunk, assemble

if TYPE_CHECKING:
    from collections.abc import Iterator

    from efaprof.trace.merge import Slice
    from efaprof.trace.survey import Survey

CHUNK_OPS = 1 << 18
# A chunk is handed out when all its completions are here and this much time has passed, for arrivals that were held …
GRACE_NS = 20_000_000
# … or when this much has passed: what has not completed by then stays open in the table.
PATIENCE_NS = 1_000_000_000


def has_steps(survey: Survey) -> bool:
    """The run holds marked steps of our own dispatch paths."""
    return len(survey.marks.body) > 0


def chunks(survey: Survey, *, chunk_ops: int = CHUNK_OPS) -> Iterator[DispatchChunk]:
    """All whole steps in order, at least one a chunk and about `chunk_ops` operations."""
    rings = read_marks(survey)
    if not rings:
        return
    cuts = _cuts(rings, chunk_ops)
    pending = _Pending(rings)
    done = 0
    for window in windows(survey.rings):
        for piece in window.slices:
            pending.take(piece)
        while done < len(cuts) - 1 and pending.is_settled(cuts[done + 1]):
            yield pending.hand_out(cuts[done], cuts[done + 1])
            done += 1
    for first, last in zip(cuts[done:-1], cuts[done + 1 :], strict=True):
        yield pending.hand_out(first, last)


def _cuts(rings: list[Marks], chunk_ops: int) -> list[int]:
    """Step positions where chunks begin, and the end; steps that a rank did not finish are left out."""
    steps = min(marks.steps for marks in rings)
    cuts, taken = [0], 0
    for position in range(1, steps + 1):
        total = sum(marks.seq_at(position) - marks.seq_at(0) for marks in rings)
        if total - taken >= chunk_ops or position == steps:
            cuts.append(position)
            taken = total
    return cuts


class _Pending:
    """Records read and not yet handed out."""

    def __init__(self, rings: list[Marks]) -> None:
        self._rings = rings
        self._stages = {marks.ring: StageParts() for marks in rings}
        self._others = {marks.process: OtherParts() for marks in rings}
        self._reached_ns = np.iinfo(np.int64).min
        self._handed_out = 0  # steps before this position
        self._wire: dict[tuple[int, int], int] = {}  # (ring, peer and channel) → next wire sequence

    def take(self, piece: Slice) -> None:
        """Keep the dispatch records of a slice."""
        self._reached_ns = max(self._reached_ns, int(piece.loaded.order_ns[piece.high - 1]))
        others = self._others.get(piece.loaded.ring.process)
        if others is not None:
            others.take(piece)
            take_stages(piece, self._stages)

    def is_settled(self, position: int) -> bool:
        """Nothing more is to come for the steps before this position."""
        end = max(marks.time_at(position) for marks in self._rings)
        if self._reached_ns < end + GRACE_NS:
            return False
        if self._reached_ns >= end + PATIENCE_NS:
            return True
        return all(
            self._stages[marks.ring].completed_before(marks.seq_at(position))
            >= marks.seq_at(position) - marks.seq_at(self._handed_out)
            for marks in self._rings
        )

    def hand_out(self, first: int, last: int) -> DispatchChunk:
        """The steps [first, last) as tables; later records stay pending."""
        stages = {
            marks.ring: self._stages[marks.ring].split(marks.seq_at(last), marks.time_at(last)) for marks in self._rings
        }
        waits = {
            marks.process: self._others[marks.process].split_waits(int(marks.step[marks.step_rows[last]]))
            for marks in self._rings
        }
        arrivals = {process: parts.take_arrivals() for process, parts in self._others.items()}
        chunk, rest = assemble(self._rings, (first, last), stages, waits, arrivals, self._wire)
        for process, left in rest.items():
            self._others[process].give_back(left)
        self._handed_out = last
        return chunk
