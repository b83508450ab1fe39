"""Where steps and their phases begin, from the MARK records of a run's command rings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from efaprof.trace.layout import RINGS_APART, Phase
from efaprof.trace.stages import u48

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from efaprof.trace.clocks import ClockMap
    from efaprof.trace.survey import Survey


@dataclass(frozen=True, slots=True)
class Marks:
    """MARK records of one command ring, in order: where each (step, layer, phase) begins."""

    ring: int
    is_first: bool  # of the rank's rings: what is no operation (steps, gates, computing) stands with it
    process: int
    rank: int
    clock: ClockMap
    first_seq: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    step: NDArray[np.int64]
    layer: NDArray[np.int64]
    phase: NDArray[np.int64]
    kind: NDArray[np.int64]
    step_rows: NDArray[np.int64]  # rows that begin a step; the last one only ends the step before it
    step_seqs: NDArray[np.int64]  # first sequence of each step, and the end of the last one

    @property
    def steps(self) -> int:
        """Whole steps."""
        return max(len(self.step_rows) - 1, 0)

    def time_at(self, position: int) -> int:
        """Begin of the step at this position, ns."""
        return int(self.time_ns[self.step_rows[position]])


def read_marks(survey: Survey) -> list[Marks]:
    """Marks of each command ring that has at least one whole step, in order of ring."""
    body, process = survey.marks.body, survey.marks.process
    clock_of = {ring.process: ring.clock for ring in survey.rings}
    seq = u48(body["first_seq"])
    found: list[Marks] = []
    for ring in np.unique(body["ring"]):
        rows = np.flatnonzero(body["ring"] == ring)
        rows = rows[np.argsort(body["t_end"][rows], kind="stable")]
        own = int(process[rows[0]])
        rank = survey.facts.get((own, "job.rank"), int(ring) % RINGS_APART)
        phase = body["phase"][rows].astype(np.int64)
        # Sequences only grow: a flipped bit in one must not make a step of as many operations.
        first_seq = np.minimum.accumulate(seq[rows][::-1])[::-1]
        step_rows = np.flatnonzero(phase == Phase.STEP)
        marks = Marks(
            ring=int(ring),
            is_first=not any((own, rank) == (one.process, one.rank) for one in found),
            process=own,
            rank=rank,
            clock=clock_of[own],
            first_seq=first_seq,
            time_ns=survey.marks.time_ns[rows],
            step=body["step"][rows].astype(np.int64),
            layer=body["layer"][rows].astype(np.int64),
            phase=phase,
            kind=body["x"][rows].astype(np.int64),
            step_rows=step_rows,
            step_seqs=first_seq[step_rows],
        )
        if marks.steps:
            found.append(marks)
    return found
