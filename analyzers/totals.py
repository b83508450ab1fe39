"""What accumulates over the chunks of a run's steps: costs per step, latencies, and sums of everything else.

Chunks are analysed side by side, each with the last steps of the one before as its context, and taken up in order.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.analyzers.counts import count_steps, operation_spans, posted_by_kernel
from efaprof.analyzers.critical import WALKED, last_steps, split_chunk
from efaprof.analyzers.graph import EMPTY_CHUNK
from efaprof.analyzers.layers import LayerSplitter
from efaprof.analyzers.outstanding import outstanding_at
from efaprof.analyzers.spread import SpreadTotals
from efaprof.analyzers.walk import NOBODY
from efaprof.native_wide import NO_TIME
from efaprof.trace import schema
from efaprof.trace.ahead import ahead
from efaprof.trace.steptable import StepTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from efaprof.analyzers.by import PathBy
    from efaprof.analyzers.replay import Change
    from efaprof.analyzers.stamps import Limits
    from efaprof.trace.layers import Layer
    from efaprof.trace.widerow import Columns, DispatchChunk

_STAGES = ("publish_ns", "seen_ns", "call_ns", "return_ns", "done_ns", "told_ns")
_POSTED_STAGES = ("publish_ns", "return_ns", "done_ns")
_DECODE = schema.StepKind.categories.to_list().index("decode")
_KINDS = len(schema.CommandKind.categories)
_MOST_WORKERS = 4  # each holds the graph of a chunk
_FOLD = 64  # frames, before they are added up


@dataclass(frozen=True, slots=True)
class Asked:
    """What is wanted of every chunk."""

    limits: Limits
    changes: Sequence[Change]
    path_by: PathBy | None


@dataclass(frozen=True, slots=True)
class Walked:
    """One chunk along its critical path; what is summed is that of decode steps."""

    costs: Columns  # one row per (rank, step)
    late: pl.DataFrame  # per (rank, late_rank)
    groups: pl.DataFrame | None
    job: dict[Layer, int]  # ns, summed over steps
    job_steps: int
    cut_edges: int


@dataclass(slots=True)
class Totals:
    """Sums over chunks."""

    asked: Asked
    costs: StepTable = field(default_factory=lambda: StepTable({"kind": schema.StepKind}))  # one row per (rank, step)
    late: list[pl.DataFrame] = field(default_factory=list)
    groups: list[pl.DataFrame] = field(default_factory=list)
    job: dict[Layer, int] = field(default_factory=dict)
    job_steps: int = 0
    cut_edges: int = 0
    spreads: dict[Layer, SpreadTotals] = field(default_factory=dict)
    kinds: NDArray[np.int64] = field(default_factory=lambda: np.zeros((2, _KINDS), np.int64))  # operations, bytes
    operations: int = 0
    stamped: int = 0

    def take(self, chunks: Iterable[DispatchChunk]) -> None:
        """Everything in these chunks, which are read once and in order."""
        splitter = LayerSplitter()
        for chunk, walked in _walked(chunks, self.asked):
            self._count(chunk)
            if walked is None:
                self.costs.append(_swept(chunk, splitter, self.asked))
            else:
                self._add(walked)

    def _add(self, walked: Walked) -> None:
        self.costs.append(walked.costs)
        self.late = _folded([*self.late, walked.late], ["rank", "late_rank"])
        if walked.groups is not None:
            self.groups = _folded([*self.groups, walked.groups], ["key"])
        self.job = {layer: self.job.get(layer, 0) + ns for layer, ns in walked.job.items()}
        self.job_steps += walked.job_steps
        self.cut_edges += walked.cut_edges

    def _count(self, chunk: DispatchChunk) -> None:
        own = _decoding(chunk)
        if own is None:
            return
        count, posted = len(own["seq"]), posted_by_kernel(own)
        self.operations += count
        lacks_stage = _lacks(own, _STAGES)
        if posted.any():
            lacks_stage = np.where(posted, _lacks(own, _POSTED_STAGES), lacks_stage)
        self.stamped += count - int(np.count_nonzero(lacks_stage))
        kind, size = np.maximum(own["kind"], 0), np.maximum(own["bytes"], 0)
        self.kinds[0] += np.bincount(kind, minlength=_KINDS)
        self.kinds[1] += np.bincount(kind, size, _KINDS).astype(np.int64)
        for layer, (begin, end) in operation_spans(own).items():
            if layer not in self.spreads:
                self.spreads[layer] = SpreadTotals()
            self.spreads[layer].add(begin, end)


def _walked(chunks: Iterable[DispatchChunk], asked: Asked) -> Iterator[tuple[DispatchChunk, Walked | None]]:
    """Each chunk with what its walks say, None where the first one has no waits to walk from."""
    workers = min(_MOST_WORKERS, len(os.sched_getaffinity(0)))
    running: deque[tuple[DispatchChunk, Future[Walked]]] = deque()
    context, is_walked = EMPTY_CHUNK, None
    # Beside that many this thread has its hands full.
    chunks = ahead(iter(chunks)) if workers > 2 else chunks
    with ThreadPoolExecutor(workers, "analyse") as pool:
        for chunk in chunks:
            is_walked = len(chunk.wait_rows) > 0 if is_walked is None else is_walked
            if not is_walked:
                yield chunk, None
                continue
            running.append((chunk, pool.submit(_walk, chunk, context, asked)))
            context = last_steps(chunk)
            if len(running) > workers:
                done, result = running.popleft()
                yield done, result.result()
        for done, result in running:
            yield done, result.result()


def _walk(chunk: DispatchChunk, context: DispatchChunk, asked: Asked) -> Walked:
    path, counted = split_chunk(chunk, context, asked.limits, asked.changes), count_steps(chunk)
    rank, step = path.walked.rank, path.walked.step
    is_decode = counted["kind"] == _DECODE  # both by rank and time
    windows = path.walked.columns
    rows = np.flatnonzero(is_decode[path.walked.row])
    late = rows[windows["late_rank"][rows] != NOBODY]
    skew = {name: windows[name][late] for name in ("late_rank", "skew_ns", "true_skew_ns")}
    steps = np.flatnonzero(np.isin(path.job["step"], step[is_decode]))
    return Walked(
        costs=counted | path.costs | outstanding_at(chunk, asked.limits.window, rank, step),
        late=added([pl.DataFrame({"rank": rank[path.walked.row[late]], **skew})], ["rank", "late_rank"]),
        groups=None if asked.path_by is None else _grouped(path.walked.windows[rows], asked.path_by),
        job={layer: int(path.job[f"{layer}_ns"][steps].sum()) for layer in WALKED},
        job_steps=len(steps),
        cut_edges=path.cut_edges,
    )


def _grouped(windows: pl.DataFrame, by: PathBy) -> pl.DataFrame:
    sums = pl.sum("wall_ns", *(f"{layer}_ns" for layer in WALKED))
    return windows.group_by(pl.col(by.value).alias("key")).agg(sums, windows=pl.len().cast(pl.Int64))


def _swept(chunk: DispatchChunk, splitter: LayerSplitter, asked: Asked) -> Columns:
    """Costs by the exclusive sweep."""
    table = splitter.split(chunk)
    columns: Columns = {name: _filled(table[name]) for name in table.columns}
    return columns | outstanding_at(chunk, asked.limits.window, columns["rank"], columns["step"])


def _filled(values: pl.Series) -> NDArray[np.int64]:
    if isinstance(values.dtype, pl.Enum):
        values = values.to_physical()
    return values.cast(pl.Int64).fill_null(0).to_numpy()


def _folded(frames: list[pl.DataFrame], keys: list[str]) -> list[pl.DataFrame]:
    """The same sums in at most _FOLD frames."""
    return frames if len(frames) <= _FOLD else [added(frames, keys)]


def added(frames: list[pl.DataFrame], keys: list[str]) -> pl.DataFrame:
    """Sums of all frames together."""
    return pl.concat(frames).group_by(*keys).agg(pl.all().sum())


def _decoding(chunk: DispatchChunk) -> Columns | None:
    """Operations of decode steps; None where there is no such step."""
    is_decode, number = chunk.step_rows.numbers("kind") == _DECODE, chunk.step_rows.numbers("step")
    if not is_decode.any():
        return None
    steps = np.unique(number[is_decode])
    if not np.setdiff1d(number[~is_decode], steps).size:
        return chunk.columns
    rows = np.flatnonzero(np.isin(chunk.columns["step"], steps))
    return {name: values[rows] for name, values in chunk.columns.items()}


def _lacks(own: Columns, stages: Sequence[str]) -> NDArray[np.bool_]:
    lacks = np.zeros(len(own["seq"]), np.bool_)
    for stage in stages:
        lacks |= own[stage] == NO_TIME
    return lacks
