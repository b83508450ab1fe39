"""Waves: requests that ran together. They shared every decode step: a wave, not a request, is one observation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from efaprof.analyzers.means import Mean

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from efaprof.analyzers.serving import Requests

    Floats = NDArray[np.float64]

# Leading waves are warm-up when their ITL is off the rest by both of these; a slow first TTFT alone is not.
WARMUP_MADS = 5.0
WARMUP_SHARE = 0.05
MIN_WAVES_LEFT = 3
COLD_TTFT = 2.0  # a first wave whose TTFT is this many times the later ones' is called cold
MIN_LAG1_WAVES = 4


class WaveKind(StrEnum):
    """How the requests were cut into waves."""

    SYNCHRONOUS = "synchronous"  # they started and ended together: cut where one ends before the next starts
    STAGGERED = "staggered"  # they overlap in a chain: `concurrency` requests at a time, in order of start
    SUBMISSION = "submission"  # the export has no times: `concurrency` requests at a time, in order of submission


@dataclass(frozen=True, slots=True, eq=False)
class Waves:
    """The wave of every request, numbered from 0 in time."""

    kind: WaveKind
    wave: NDArray[np.int64]
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class ClusteredMean:
    """Mean ITL over requests whose error comes from the waves' means."""

    mean: Mean
    waves: int
    requests: int
    icc: float | None  # intraclass correlation of requests in a wave; None when every wave is one request
    lag1: float | None  # autocorrelation of the waves' means; above 0.2 the interval is too narrow
    wave_means: Floats


def cut(requests: Requests, concurrency: int) -> Waves:
    """Cut requests (in order of start) into waves; see WaveKind for the three ways."""
    count = len(requests.itl_ms)
    by_count = np.arange(count) // max(concurrency, 1)
    if requests.start_ns is None or requests.end_ns is None:
        return Waves(WaveKind.SUBMISSION, by_count, int(by_count[-1]) + 1 if count else 0)
    together = _in_flight_together(requests.start_ns, requests.end_ns)
    # Short requests break a chain of overlaps into small groups that still share their steps with the neighbours:
    # then waves of full size are the honest, wider unit.
    expected = math.ceil(count / max(concurrency, 1))
    if count and together[-1] + 1 > 1.1 * expected + 1:
        return Waves(WaveKind.STAGGERED, by_count, int(by_count[-1]) + 1)
    return Waves(WaveKind.SYNCHRONOUS, together, int(together[-1]) + 1 if count else 0)


def _in_flight_together(start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    wave = np.empty(len(start_ns), np.int64)
    number, first_end = -1, -1
    for row, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        if number < 0 or start >= first_end:
            number, first_end = number + 1, end
        else:
            first_end = min(first_end, end)
        wave[row] = number
    return wave


def warmup_waves(waves: Waves, itl_ms: Floats) -> int:
    """Leading waves whose mean ITL is off that of all later ones by 5 MAD and 5 %, at most a third of them."""
    means = _means(waves, itl_ms)
    dropped = 0
    while dropped < waves.count // 3 and waves.count - dropped > MIN_WAVES_LEFT:
        rest = means[dropped + 1 :]
        centre = float(np.median(rest))
        scale = 1.4826 * float(np.median(np.abs(rest - centre)))
        if abs(means[dropped] - centre) <= max(WARMUP_MADS * scale, WARMUP_SHARE * centre):
            break
        dropped += 1
    return dropped


def cold_start(waves: Waves, ttft_ms: Floats) -> float | None:
    """Ratio of the first wave's TTFT to the later ones' where it is above COLD_TTFT; TTFT does not enter ITL."""
    if waves.count < 2:
        return None
    later = float(np.median(ttft_ms[waves.wave > 0]))
    ratio = float(np.median(ttft_ms[waves.wave == 0])) / later if later > 0 else 0.0
    return ratio if ratio > COLD_TTFT else None


def clustered_mean(waves: Waves, itl_ms: Floats, *, skip: int = 0) -> ClusteredMean:
    """Mean ITL over the requests of all waves but the first `skip`, with the error that the spread of waves gives.

    Waves of unequal size enter with their size: error² = K/(K−1) · Σ (n_k (m_k − m))² / N².
    """
    kept = waves.wave >= skip
    wave, values = waves.wave[kept] - skip, itl_ms[kept]
    count = waves.count - skip
    sizes = np.bincount(wave, minlength=count).astype(np.float64)
    means = np.bincount(wave, weights=values, minlength=count) / sizes
    mean = float(values.mean())
    error: float | None = None
    if count > 1:
        error = math.sqrt(count / (count - 1) * float(((sizes * (means - mean)) ** 2).sum())) / len(values)
    return ClusteredMean(
        mean=Mean(mean, error, float(count - 1) if count > 1 else None),
        waves=count,
        requests=len(values),
        icc=intraclass_correlation(wave, values, sizes, means),
        lag1=lag1(means),
        wave_means=means,
    )


def intraclass_correlation(wave: NDArray[np.int64], values: Floats, sizes: Floats, means: Floats) -> float | None:
    """One-way ANOVA estimate, in [−1/(n−1), 1]; None when it is not defined (one wave, or no two requests in any)."""
    count, total = len(sizes), len(values)
    if count < 2 or total <= count:
        return None
    grand = float(values.mean())
    between = float((sizes * (means - grand) ** 2).sum()) / (count - 1)
    within = float(((values - means[wave]) ** 2).sum()) / (total - count)
    typical = (total - float((sizes**2).sum()) / total) / (count - 1)
    spread = between + (typical - 1) * within
    return (between - within) / spread if spread > 0 else None


def lag1(means: Floats) -> float | None:
    """Autocorrelation of consecutive wave means; None with fewer than four waves."""
    if len(means) < MIN_LAG1_WAVES:
        return None
    centred = means - means.mean()
    power = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / power if power > 0 else 0.0


def _means(waves: Waves, values: Floats) -> Floats:
    sizes = np.bincount(waves.wave, minlength=waves.count)
    means: Floats = np.bincount(waves.wave, weights=values, minlength=waves.count) / sizes
    return means
