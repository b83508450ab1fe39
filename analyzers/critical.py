"""Critical path, overlapped and recoverable time of a run's steps, chunk after chunk (METHOD §2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.analyzers.graph import EMPTY_CHUNK, build
from efaprof.analyzers.replay import STANDARD, saved_ns
from efaprof.analyzers.stamps import LAYERS, Limits
from efaprof.analyzers.walk import WALKED_STAGES, job_path, walk
from efaprof.trace.layers import Layer
from efaprof.trace.widerow import DispatchChunk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from efaprof.analyzers.replay import Change
    from efaprof.analyzers.walk import Columns, Walked

WALKED: tuple[Layer, ...] = tuple(layer for layer in LAYERS if layer is not Layer.LAUNCH)
_COSTS = (*(f"{layer}_ns" for layer in WALKED), *(f"{layer}_walked" for layer in WALKED_STAGES), "true_skew_ns")


@dataclass(slots=True)
class CriticalPath:
    """Walks and replays chunks of steps in order; the last step of each is the context of the next."""

    limits: Limits = field(default_factory=Limits)
    changes: Sequence[Change] = STANDARD
    cut_edges: int = 0  # stamps that contradict each other
    _context: DispatchChunk = EMPTY_CHUNK

    def split(self, chunk: DispatchChunk) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        """(one row per rank and step, one per window, one per step of the job).

        The first has rank, step and the costs of `ChunkPath`; the others are those of efaprof.analyzers.walk.
        """
        path = split_chunk(chunk, self._context, self.limits, self.changes)
        self.cut_edges += path.cut_edges
        self._context = last_steps(chunk)
        keys = {"rank": path.walked.rank, "step": path.walked.step}
        return pl.DataFrame(keys | path.costs), path.walked.windows, pl.DataFrame(path.job)


@dataclass(frozen=True, slots=True)
class ChunkPath:
    """Walks and replays of one chunk."""

    walked: Walked
    costs: Columns  # of its rows: <layer>_ns, which sum to the wall time, <layer>_overlapped_ns, <layer>_walked,
    # true_skew_ns, walk_clip_ns and <change>_recoverable_ns
    job: Columns
    cut_edges: int  # stamps that contradict each other


def split_chunk(chunk: DispatchChunk, context: DispatchChunk, limits: Limits, changes: Sequence[Change]) -> ChunkPath:
    """Costs of a chunk's steps; `context` are the steps before."""
    graph = build(chunk, context, limits)
    walked = walk(graph)
    costs: Columns = {name: walked.total(name) for name in _COSTS}
    costs = {name: values if name.endswith("_walked") else whole(values) for name, values in costs.items()}
    costs |= {"walk_clip_ns": whole(walked.total("clip_ns")), **walked.overlaps}
    if changes:
        costs |= saved_ns(graph, changes)
    return ChunkPath(walked, costs, job_path(graph), graph.events.cut_edges)


def whole(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Sums of whole numbers as such."""
    found: NDArray[np.int64] = np.rint(values).astype(np.int64)
    return found


def last_steps(chunk: DispatchChunk) -> DispatchChunk:
    """The last step of every rank, with what belongs to it."""
    rank, begin = chunk.step_rows.numbers("rank"), chunk.step_rows.numbers("begin_ns")
    order = np.lexsort((begin, rank))
    is_last = np.append(rank[order][1:] != rank[order][:-1], True)[: len(order)]
    last = chunk.step_rows.at(np.sort(order[is_last]))
    numbers, begin_ns = last.numbers("step"), int(last.numbers("begin_ns").min())
    rows = np.flatnonzero(np.isin(chunk.columns["step"], numbers))
    return DispatchChunk(
        steps=last,
        operations={name: values[rows] for name, values in chunk.columns.items()},
        waits=chunk.wait_rows.at(np.flatnonzero(np.isin(chunk.wait_rows.numbers("step"), numbers))),
        computes=chunk.compute_rows.at(np.flatnonzero(chunk.compute_rows.numbers("begin_ns") >= begin_ns)),
    )
