"""One arm at one load: its mean ITL with the error of the right unit, and what a reader must know beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from efaprof.analyzers import waves as wave_cut
from efaprof.analyzers.chunks import ChunkStats, Stalls
from efaprof.analyzers.means import Mean, from_interval
from efaprof.analyzers.serving import Cell, CellKey, Format, RequestCounts, Summary
from efaprof.trace.layers import Provenance

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

MAX_LAG1 = 0.2


class Unit(StrEnum):
    """What was counted as one independent observation."""

    WAVE = "wave"  # requests that ran together
    ASSUMED_WAVE = "assumed-wave"  # summary only: ⌈requests/concurrency⌉ waves, their requests taken as identical
    BATCH = "batch"  # our own run: batches of consecutive steps
    RUN = "run"  # several runs of the same load


@dataclass(frozen=True, slots=True, eq=False)
class LoadPoint:
    """One arm at one load."""

    key: CellKey
    sources: tuple[str, ...]
    formats: tuple[Format, ...]
    mean: Mean  # ITL, ms
    per_user_tok_s: float  # mean over requests of 1000/ITL; 1000/mean ITL where requests are not known
    unit: Unit
    units: int
    sessions_ns: tuple[int | None, ...]
    counts: RequestCounts
    per_user_provenance: Provenance = Provenance.MEASURED
    unit_means_ms: NDArray[np.float64] | None = None  # one mean per unit; None for summaries
    icc: float | None = None
    icc_provenance: Provenance = Provenance.MEASURED
    lag1: float | None = None
    wave_kind: wave_cut.WaveKind | None = None
    warmup_waves: int = 0
    cold_ttft: float | None = None
    chunks: ChunkStats | None = None
    stall_ms_per_token: float | None = None  # part of the mean ITL that stalls added
    model: str | None = None
    concurrency_provenance: Provenance = Provenance.MEASURED
    ops_per_step: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def runs(self) -> int:
        """Runs that were pooled."""
        return len(self.sources)


def load_points(cells: Iterable[Cell], *, warmup_waves: int | None = None) -> list[LoadPoint]:
    """Load points in order of load; cells of the same load are runs of it. `warmup_waves` None means detect them."""
    groups: list[list[Cell]] = []
    for cell in sorted(cells, key=lambda cell: (cell.key.concurrency, cell.key.isl or 0, cell.key.osl or 0)):
        for group in groups:
            if group[0].key.matches(cell.key):
                group.append(cell)
                break
        else:
            groups.append([cell])
    return [_pool([_single(cell, warmup_waves) for cell in group]) for group in groups]


def _single(cell: Cell, warmup: int | None) -> LoadPoint:
    if cell.requests is not None and len(cell.requests.itl_ms):
        return _from_requests(cell, warmup)
    return _from_summary(cell)


def _from_requests(cell: Cell, warmup: int | None) -> LoadPoint:
    requests = cell.requests
    assert requests is not None
    waves = wave_cut.cut(requests, cell.key.concurrency)
    dropped = wave_cut.warmup_waves(waves, requests.itl_ms) if warmup is None else min(warmup, waves.count - 1)
    found = wave_cut.clustered_mean(waves, requests.itl_ms, skip=dropped)
    kept = requests.itl_ms[waves.wave >= dropped]
    stalls = cell.chunks.stalls if cell.chunks else None
    point = _bare(cell, found.mean, float((1000.0 / kept).mean()), Unit.WAVE, found.waves)
    return replace(
        point,
        unit_means_ms=found.wave_means,
        icc=found.icc,
        lag1=found.lag1,
        wave_kind=waves.kind,
        warmup_waves=dropped,
        cold_ttft=wave_cut.cold_start(waves, requests.ttft_ms),
        stall_ms_per_token=stalls.excess_ms / int((requests.tokens - 1).sum()) if stalls else None,
        warnings=(*cell.warnings, *_drift_warnings(cell.source, found.lag1)),
    )


def _drift_warnings(source: str, lag1: float | None) -> list[str]:
    if lag1 is None or lag1 < MAX_LAG1:
        return []
    return [f"{source}: wave means drift or hang together (lag-1 {lag1:.2f}): the interval is too narrow"]


def _bare(cell: Cell, mean: Mean, tok_s: float, unit: Unit, units: int) -> LoadPoint:
    """What is said of a cell whatever its data are."""
    return LoadPoint(
        key=cell.key,
        sources=(cell.source,),
        formats=(cell.format,),
        mean=mean,
        per_user_tok_s=tok_s,
        unit=unit,
        units=units,
        sessions_ns=(cell.session_ns,),
        counts=cell.counts,
        chunks=cell.chunks,
        model=cell.model,
        concurrency_provenance=cell.concurrency_provenance,
        ops_per_step=cell.ops_per_step,
        warnings=cell.warnings,
    )


def _from_summary(cell: Cell) -> LoadPoint:
    """Batches of our own run, or ⌈requests/concurrency⌉ waves with intraclass correlation 1."""
    summary = cell.summary
    given = summary.per_user_tok_s
    tok_s = 1000.0 / summary.mean_itl_ms if given is None else given
    if summary.batches is not None:
        mean = from_interval(summary.mean_itl_ms, summary.lo_itl_ms, summary.hi_itl_ms, summary.batches)
        point = _bare(cell, mean, tok_s, Unit.BATCH, summary.batches)
    else:
        units = math.ceil(summary.requests / max(cell.key.concurrency, 1))
        point = _bare(cell, _summary_mean(summary, units), tok_s, Unit.ASSUMED_WAVE, units)
        point = replace(point, icc=1.0, icc_provenance=Provenance.ASSUMED)
    return replace(point, per_user_provenance=Provenance.DERIVED) if given is None else point


def _summary_mean(summary: Summary, waves: int) -> Mean:
    """The spread over requests (ddof = 0) taken as that over waves, which correlation 1 means."""
    if summary.std_itl_ms is None or waves < 2 or summary.requests < 2:
        return Mean(summary.mean_itl_ms, None, None)
    variance = summary.std_itl_ms**2 * summary.requests / (summary.requests - 1)
    return Mean(summary.mean_itl_ms, math.sqrt(variance / waves), float(waves - 1))


def _pool(points: Sequence[LoadPoint]) -> LoadPoint:
    """Several runs of one load: the run is the unit."""
    if len(points) == 1:
        return points[0]
    means = np.array([point.mean.value for point in points])
    count = len(points)
    ops = [point.ops_per_step for point in points if point.ops_per_step is not None]
    stalls = [point.stall_ms_per_token for point in points if point.stall_ms_per_token is not None]
    return replace(
        points[0],
        sources=tuple(source for point in points for source in point.sources),
        formats=tuple(dict.fromkeys(form for point in points for form in point.formats)),
        mean=Mean(float(means.mean()), float(means.std(ddof=1)) / math.sqrt(count), float(count - 1)),
        per_user_tok_s=float(np.mean([point.per_user_tok_s for point in points])),
        unit=Unit.RUN,
        units=count,
        unit_means_ms=means,
        icc=None,
        icc_provenance=Provenance.MEASURED,
        lag1=None,
        wave_kind=None,
        warmup_waves=sum(point.warmup_waves for point in points),
        cold_ttft=max((point.cold_ttft for point in points if point.cold_ttft is not None), default=None),
        counts=sum((point.counts for point in points), RequestCounts()),
        chunks=_pool_chunks([point.chunks for point in points if point.chunks is not None]),
        stall_ms_per_token=float(np.mean(stalls)) if stalls else None,
        sessions_ns=tuple(session for point in points for session in point.sessions_ns),
        ops_per_step=float(np.mean(ops)) if ops else None,
        warnings=tuple(dict.fromkeys(warning for point in points for warning in point.warnings)),
    )


def _pool_chunks(chunks: Sequence[ChunkStats]) -> ChunkStats | None:
    """Counts add up; percentiles of several runs do not, so they are left out."""
    if not chunks:
        return None
    stalls = [one.stalls for one in chunks if one.stalls is not None]
    return ChunkStats(
        gaps=sum(one.gaps for one in chunks),
        coalesced_chunks=sum(one.coalesced_chunks for one in chunks),
        coalesced_tokens=sum(one.coalesced_tokens for one in chunks),
        unplaced_tokens=sum(one.unplaced_tokens for one in chunks),
        surplus_chunks=sum(one.surplus_chunks for one in chunks),
        p50_ms=None,
        p99_ms=None,
        long_gaps=sum(one.long_gaps for one in chunks),
        stalls=Stalls(
            sum(one.events for one in stalls),
            sum(one.hits for one in stalls),
            sum(one.excess_ms for one in stalls),
            sum(one.lone_gaps for one in stalls),
        )
        if stalls
        else None,
        candidates_not_kept=sum(one.candidates_not_kept for one in chunks),
    )
