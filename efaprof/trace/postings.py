"""What kernels that post by themselves spent an operation's issue on, part by part, from POST records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from efaprof.trace.decode import records
from efaprof.trace.layout import POST, Shape
from efaprof.trace.marks import read_marks
from efaprof.trace.merge import windows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from efaprof.trace.marks import Marks
    from efaprof.trace.merge import Slice
    from efaprof.trace.survey import Survey

# In the order in which they abut; see format.h.
PARTS = ("order", "slot", "space", "build", "turn", "fence", "doorbell")
_DECODE = 0
_SEQ_MASK = np.uint64((1 << 48) - 1)


@dataclass(slots=True)
class PostTotals:
    """Sums over the operations of decode steps that kernels posted themselves."""

    operations: int = 0
    doorbells: float = 0.0
    sum_ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    max_ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))


def read_postings(survey: Survey) -> PostTotals | None:
    """Totals of a run's decode steps; None when no kernel posted by itself in them."""
    if not survey.records.get(Shape.POST):
        return None
    totals = PostTotals()
    decode = {marks.ring: _decode_ranges(marks) for marks in read_marks(survey)}
    for window in windows(survey.rings):
        for piece in window.slices:
            _take(totals, piece, decode)
    return totals if totals.operations else None


def _decode_ranges(marks: Marks) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """First sequence of each step and the end of the last one, and which steps are decode steps."""
    return marks.step_seqs, marks.kind[marks.step_rows[:-1]] == _DECODE


def _take(totals: PostTotals, piece: Slice, decode: dict[int, tuple[NDArray[np.int64], NDArray[np.bool_]]]) -> None:
    chunk = piece.loaded.chunk
    is_post = np.zeros(len(chunk.kinds), np.bool_)
    is_post[piece.low : piece.high] = (chunk.kinds[piece.low : piece.high] >> 8) == Shape.POST
    if not is_post.any():
        return
    body = records(chunk, is_post, POST)
    ring, seq = (body["op"] >> np.uint64(48)).astype(np.int64), (body["op"] & _SEQ_MASK).astype(np.int64)
    is_counted = np.zeros(len(body), np.bool_)
    for one in np.unique(ring):
        if int(one) not in decode:
            continue
        seqs, is_decode = decode[int(one)]
        rows = np.flatnonzero(ring == one)
        at = np.searchsorted(seqs, seq[rows], side="right") - 1
        inside = (at >= 0) & (at < len(is_decode))
        is_counted[rows[inside]] = is_decode[at[inside]]
    body = body[is_counted]
    if not len(body):
        return
    clock, end = piece.loaded.ring.clock, body["t_end"].astype(np.int64)
    end_ns = clock.to_ns(end)
    totals.operations += len(body)
    totals.doorbells += float((1 / np.maximum(body["batch"], 1)).sum())
    for part in PARTS:
        took_ns = end_ns - clock.to_ns(end - body[part].astype(np.int64))
        totals.sum_ns[part] += int(took_ns.sum())
        totals.max_ns[part] = max(totals.max_ns[part], int(took_ns.max()))
