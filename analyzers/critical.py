"""Critical path, overlapped and recoverable time of a run's steps, chunk after chunk (METHOD §2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.analyzers.graph import EMPTY_CHUNK, build
from efaprof.analyzers.replay import STANDARD, recoverable
from efaprof.analyzers.stamps import LAYERS, Limits
from efaprof.analyzers.walk import WALKED_STAGES, walk, walk_job
from efaprof.trace.layers import Layer
from efaprof.trace.widerow import DispatchChunk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from efaprof.analyzers.replay import Change

WALKED = tuple(layer for layer in LAYERS if layer is not Layer.LAUNCH)
_COSTS = (*(f"{layer}_ns" for layer in WALKED), *(f"{layer}_walked" for layer in WALKED_STAGES), "true_skew_ns")


@dataclass(slots=True)
class CriticalPath:
    """Walks and replays chunks of steps in order; the last step of each is the context of the next."""

    limits: Limits = field(default_factory=Limits)
    changes: Sequence[Change] = STANDARD
    cut_edges: int = 0  # stamps that contradict each other
    _context: DispatchChunk = EMPTY_CHUNK

    def split(self, chunk: DispatchChunk) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        """(one row per rank and step, one per window, one per step of the job), as `split_chunk` gives them."""
        found, windows, job, cut_edges = split_chunk(chunk, self._context, self.limits, self.changes)
        self.cut_edges += cut_edges
        self._context = last_steps(chunk)
        return found, windows, job


def split_chunk(
    chunk: DispatchChunk, context: DispatchChunk, limits: Limits, changes: Sequence[Change]
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, int]:
    """(one row per rank and step, one per window, one per step of the job, stamps that contradict each other).

    The first has `<layer>_ns`, which sum to the step's wall time, `<layer>_overlapped_ns`, `<layer>_walked`,
    true_skew_ns, walk_clip_ns and `<change>_recoverable_ns`; the others are those of efaprof.analyzers.walk.
    `context` are the steps before the chunk's.
    """
    graph = build(chunk, context, limits)
    walked, job = walk(graph), walk_job(graph)
    found = (
        walked.windows.group_by("rank", "step")
        .agg(pl.sum(*_COSTS), walk_clip_ns=pl.sum("clip_ns"))
        .join(walked.overlapped, on=["rank", "step"])
    )
    if changes:
        found = found.join(recoverable(graph, changes), on=["rank", "step"])
    return found, walked.windows, job, graph.events.cut_edges


def last_steps(chunk: DispatchChunk) -> DispatchChunk:
    """The last step of every rank, with what belongs to it."""
    last = chunk.steps.filter(pl.col("begin_ns") == pl.col("begin_ns").max().over("rank"))
    numbers = last["step"].unique()
    rows = np.flatnonzero(np.isin(chunk.columns["step"], numbers.to_numpy()))
    return DispatchChunk(
        steps=last,
        operations={name: values[rows] for name, values in chunk.columns.items()},
        waits=chunk.waits.filter(pl.col("step").is_in(numbers.implode())),
        computes=chunk.computes.filter(pl.col("begin_ns") >= last["begin_ns"].min()),
    )
