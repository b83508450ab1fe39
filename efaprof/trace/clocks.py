"""Ticks of a run's clock to int64 nanoseconds of CLOCK_MONOTONIC, and how wrong that can be.

The recorder samples (ticks, MONOTONIC) as close together as it can; between two samples time is a straight line, before
the first and after the last it goes on with the nearest slope. A sample whose bracket (the ticks it took) is far wider
than usual was interrupted and is not used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from efaprof.errors import TraceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

WIDE_BRACKET = 4  # times the median bracket
PLAUSIBLE_TICKS_PER_NS = (0.25, 16.0)
# Farther than this part of the sampled span from the common line, a sample is damage: no clock drifts so fast.
OUTLIER_DRIFT = 1e-3
OUTLIER_FLOOR_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class ClockSamples:
    """Readings of one boot, in order of ticks."""

    ticks: NDArray[np.int64]
    bracket_ticks: NDArray[np.int64]
    monotonic_ns: NDArray[np.int64]
    realtime_ns: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ClockMap:
    """Piecewise line from ticks to nanoseconds; segment i holds from ticks[i] on, segment 0 also before it."""

    ticks: NDArray[np.int64]
    base_ns: NDArray[np.int64]
    slope: NDArray[np.float64]  # ns per tick
    sample_error_ns: float  # brackets and residuals of the samples used
    slope_error: float  # of the outermost segments, ns per ns, for extrapolation
    last_ticks: int

    def to_ns(self, ticks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Nanoseconds of CLOCK_MONOTONIC; keeps the order of its input times."""
        if not len(ticks) or self is IDENTITY:
            return ticks
        ends = np.searchsorted(self.ticks, (ticks.min(), ticks.max()), side="right")
        if ends[0] == ends[1] or len(self.ticks) == 1:
            one = max(int(ends[0]) - 1, 0)
            return _line(ticks, self.ticks[one], self.base_ns[one], self.slope[one])
        segment = np.maximum(np.searchsorted(self.ticks, ticks, side="right") - 1, 0)
        return _line(ticks, self.ticks[segment], self.base_ns[segment], self.slope[segment])

    def error_ns(self, first_ticks: int, last_ticks: int) -> int:
        """Bound on the error of any time between these two, extrapolation included."""
        outside = max(int(self.ticks[0]) - first_ticks, last_ticks - self.last_ticks, 0)
        return math.ceil(self.sample_error_ns + outside * float(self.slope.max()) * self.slope_error)


def _line(
    ticks: NDArray[np.int64], start: NDArray[np.int64], base: NDArray[np.int64], slope: NDArray[np.float64]
) -> NDArray[np.int64]:
    exact = (ticks - start) * slope
    moved: NDArray[np.int64] = base + np.rint(exact, out=exact).astype(np.int64)
    return moved


IDENTITY = ClockMap(  # of clocks whose ticks are nanoseconds already
    np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1), 0.0, 0.0, (1 << 63) - 1
)


@dataclass(frozen=True, slots=True)
class Shift:
    """A line from one clock's nanoseconds to another's: `from_ns` becomes `to_ns`, and goes on with `slope`."""

    from_ns: int
    to_ns: int
    slope: float

    def to_ns_of(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """The other clock's times."""
        moved: NDArray[np.int64] = self.to_ns + np.rint((times - self.from_ns) * self.slope).astype(np.int64)
        return moved

    def moved(self, clock: ClockMap) -> ClockMap:
        """A clock's map onto the other clock."""
        if clock is IDENTITY:
            start = np.array([self.from_ns])
            return replace(clock, ticks=start, base_ns=self.to_ns_of(start), slope=np.array([self.slope]))
        return replace(clock, base_ns=self.to_ns_of(clock.base_ns), slope=clock.slope * self.slope)


def fit(samples: ClockSamples, where: str) -> ClockMap:
    """Map for the ticks of one boot; TraceError when there are too few samples to know the rate.

    One sample gives an offset and no rate, and nothing else in a trace gives one: a guess would move every time.
    """
    kept = _usable(samples)
    if len(kept.ticks) < 2:
        raise TraceError(
            f"{where} has {len(kept.ticks)} clock samples, and ticks need two to become nanoseconds",
            hint="the recorder was killed before its second sample; record again",
        )
    slope = np.diff(kept.monotonic_ns) / np.diff(kept.ticks)
    rate = float(np.median(1 / slope)) if (slope > 0).all() else 0.0
    if not PLAUSIBLE_TICKS_PER_NS[0] <= rate <= PLAUSIBLE_TICKS_PER_NS[1]:
        raise TraceError(f"{where} has clock samples that contradict each other", hint="record again")
    bracket_ns = kept.bracket_ticks * float(np.median(slope))
    span = float(min(kept.monotonic_ns[1] - kept.monotonic_ns[0], kept.monotonic_ns[-1] - kept.monotonic_ns[-2]))
    return ClockMap(
        ticks=kept.ticks[:-1],
        base_ns=kept.monotonic_ns[:-1],
        slope=slope,
        sample_error_ns=max(float(bracket_ns.max()), _residual_ns(kept)),
        slope_error=2 * float(bracket_ns.max()) / span,
        last_ticks=int(kept.ticks[-1]),
    )


def _usable(samples: ClockSamples) -> ClockSamples:
    """Samples in order, each tick once, without interrupted ones."""
    order = np.argsort(samples.ticks, kind="stable")
    ticks, bracket = samples.ticks[order], samples.bracket_ticks[order]
    mono, real = samples.monotonic_ns[order], samples.realtime_ns[order]
    keep = _near_line(ticks, mono)
    keep[1:] &= (np.diff(ticks) > 0) & (np.diff(mono) > 0)
    if keep.sum() > 2:
        keep &= bracket <= WIDE_BRACKET * max(int(np.median(bracket[keep])), 1)
    return ClockSamples(ticks[keep], bracket[keep], mono[keep], real[keep])


def _near_line(ticks: NDArray[np.int64], mono: NDArray[np.int64]) -> NDArray[np.bool_]:
    if len(ticks) < 3:
        return np.ones(len(ticks), np.bool_)
    moved = np.diff(ticks)
    rate = float(np.median(np.diff(mono)[moved > 0] / moved[moved > 0])) if (moved > 0).any() else 0.0
    away = mono - mono[0] - (ticks - ticks[0]) * rate
    away -= np.median(away)
    spread = float(np.median(np.abs(ticks - np.median(ticks))))  # a quarter of the span, and no outlier moves it
    near: NDArray[np.bool_] = np.abs(away) <= OUTLIER_FLOOR_NS + OUTLIER_DRIFT * rate * 4 * spread
    return near


def _residual_ns(samples: ClockSamples) -> float:
    """Largest distance of a sample from the line through its neighbours: drift that a straight piece cannot follow."""
    if len(samples.ticks) < 3:
        return 0.0
    before, here, after = samples.ticks[:-2], samples.ticks[1:-1], samples.ticks[2:]
    low, high = samples.monotonic_ns[:-2], samples.monotonic_ns[2:]
    expected = low + (here - before) * ((high - low) / (after - before))
    return float(np.abs(samples.monotonic_ns[1:-1] - expected).max())
