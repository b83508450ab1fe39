"""Where steps and their phases begin, from the MARK records of a run's command rings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from efaprof.trace.layout import RINGS_APART, Phase
from efaprof.trace.stages import u48

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from efaprof.trace.clocks import ClockMap
    from efaprof.trace.survey import Ring, Survey


@dataclass(frozen=True, slots=True)
class Marks:
    """MARK records of one command ring, in order: where each (step, layer, phase) begins. No wider than they are."""

    ring: int
    is_first: bool  # of the rank's rings: what is no operation (steps, gates, computing) stands with it
    process: int
    rank: int
    clock: ClockMap
    first_seq: NDArray[np.int64]
    step: NDArray[np.uint32]
    layer: NDArray[np.uint16]
    phase: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    step_rows: NDArray[np.uint32]  # rows that begin a step; the last one only ends the step before it
    step_seqs: NDArray[np.int64]  # first sequence of each step, and the end of the last one
    step_ns: NDArray[np.int64]  # when each of them began

    @property
    def steps(self) -> int:
        """Whole steps."""
        return max(len(self.step_rows) - 1, 0)


def read_marks(survey: Survey) -> list[Marks]:
    """Marks of each command ring that has at least one whole step, in order of ring."""
    return list(survey.marks)


def find_marks(
    rings: Sequence[Ring], bodies: Sequence[NDArray[np.void]], facts: Mapping[tuple[int, str], int]
) -> tuple[Marks, ...]:
    """`read_marks` of a run, from the MARK records in each of its files."""
    found: list[Marks] = []
    clock_of = {ring.process: ring.clock for ring in rings}
    for number in np.unique(np.concatenate([np.unique(body["ring"]) for body in bodies])).tolist():
        written = [
            (ring.process, rows)
            for ring, body in zip(rings, bodies, strict=True)
            if len(rows := body if (own := body["ring"] == number).all() else body[own])
        ]
        body, process = _in_order(written)
        rank = facts.get((process, "job.rank"), number % RINGS_APART)
        # Sequences only grow: a flipped bit in one must not make a step of as many operations.
        first_seq = np.minimum.accumulate(u48(body["first_seq"])[::-1])[::-1]
        step_rows = np.flatnonzero(body["phase"] == Phase.STEP)
        marks = Marks(
            ring=number,
            is_first=not any((process, rank) == (one.process, one.rank) for one in found),
            process=process,
            rank=rank,
            clock=clock_of[process],
            first_seq=np.ascontiguousarray(first_seq),
            step=body["step"].copy(),
            layer=body["layer"].copy(),
            phase=_byte(body["phase"]),
            kind=_byte(body["x"]),
            step_rows=step_rows.astype(np.uint32),
            step_seqs=first_seq[step_rows],
            step_ns=clock_of[process].to_ns(body["t_end"][step_rows].astype(np.int64)),
        )
        if marks.steps:
            found.append(marks)
    return tuple(found)


def _byte(numbers: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """Numbers of words; there are fewer words than that, and what is none stays none."""
    return np.minimum(numbers, 0xFF).astype(np.uint8)


def _in_order(written: Sequence[tuple[int, NDArray[np.void]]]) -> tuple[NDArray[np.void], int]:
    """Records of all files in order of time, and the process that wrote the first of them."""
    body = written[0][1] if len(written) == 1 else np.concatenate([rows for _, rows in written])
    process = np.repeat([process for process, _ in written], [len(rows) for _, rows in written])
    ticks = body["t_end"]
    if (ticks[1:] < ticks[:-1]).any():
        order = np.argsort(ticks, kind="stable")
        body, process = body[order], process[order]
    return body, int(process[0])
