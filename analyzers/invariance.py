"""Load invariance: is the time per token the same at every load? An equivalence test (TOST), and what it would prove.

ln T is regressed on log2(load) with HC3 errors; `change` is the fitted change of T over the whole sweep. The arm is
`flat` when the 90 % interval of the change lies inside ±margin (two one-sided tests at 5 %). A flat line alone says
nothing about the issue rate: for that, the operations per rank and step must have grown over the sweep.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from efaprof.analyzers.load_points import Unit
from efaprof.analyzers.means import Mean
from efaprof.trace.layers import Provenance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from efaprof.analyzers.batches import Estimate
    from efaprof.analyzers.load_points import LoadPoint

    Floats = NDArray[np.float64]

MARGIN = 0.05
TIGHT_MARGIN = 0.02
TOST_LEVEL = 0.90  # two one-sided tests at 5 %
SLOPE_LEVEL = 0.95
NEEDED_GROWTH = 0.5  # operations must grow by half before flatness says something about the issue rate


class Outcome(StrEnum):
    """What the sweep shows."""

    FLAT = "flat"
    LOAD_SENSITIVE = "load-sensitive"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Leverage:
    """Whether the sweep could have shown an issue-rate limit at all."""

    growth: float | None  # of operations per rank and step, first to last load: 0.5 is +50 %
    provenance: Provenance
    is_informative: bool
    statement: str


@dataclass(frozen=True, slots=True)
class Flatness:
    """Outcome for one arm; `change` and its bounds are shares (0.01 is +1 % over the sweep)."""

    outcome: Outcome
    change: float
    lo: float | None  # 90 %, the equivalence test's
    hi: float | None
    lo95: float | None
    hi95: float | None
    is_slope_significant: bool
    margin: float
    tight_margin: float
    is_within_tight: bool
    loads: tuple[int, ...]
    units: int
    unit: Unit
    is_one_run_per_load: bool
    leverage: Leverage


def flatness(
    points: Sequence[LoadPoint], leverage: Leverage, *, margin: float = MARGIN, tight_margin: float = TIGHT_MARGIN
) -> Flatness | None:
    """Equivalence test over the arm's loads (equal lengths, in order of load); None with fewer than two loads."""
    loads = tuple(dict.fromkeys(point.key.concurrency for point in points))
    if len(loads) < 2:
        return None
    slope, units = _slope(points)
    doublings = math.log2(loads[-1] / loads[0])
    lo, hi = _changes(slope.interval(TOST_LEVEL), doublings)
    lo95, hi95 = _changes(slope.interval(SLOPE_LEVEL), doublings)
    is_significant = lo95 is not None and hi95 is not None and (lo95 > 0 or hi95 < 0)
    if lo is not None and hi is not None and -margin < lo and hi < margin:
        outcome = Outcome.FLAT
    else:
        outcome = Outcome.LOAD_SENSITIVE if is_significant else Outcome.INCONCLUSIVE
    return Flatness(
        outcome=outcome,
        change=math.expm1(slope.value * doublings),
        lo=lo,
        hi=hi,
        lo95=lo95,
        hi95=hi95,
        is_slope_significant=is_significant,
        margin=margin,
        tight_margin=tight_margin,
        is_within_tight=lo is not None and hi is not None and -tight_margin < lo and hi < tight_margin,
        loads=loads,
        units=units,
        unit=points[0].unit,
        is_one_run_per_load=all(point.runs == 1 for point in points),
        leverage=leverage,
    )


def _changes(slope: Estimate, doublings: float) -> tuple[float | None, float | None]:
    """Bounds of a slope as shares over the sweep."""
    bounds = [None if bound is None else math.expm1(bound * doublings) for bound in (slope.lo, slope.hi)]
    return bounds[0], bounds[1]


def _slope(points: Sequence[LoadPoint]) -> tuple[Mean, int]:
    """Slope of ln T on log2(load) and the number of observations: over units, else over points."""
    if all(point.unit_means_ms is not None for point in points):
        blocks = [point.unit_means_ms for point in points if point.unit_means_ms is not None]
        x = np.concatenate(
            [np.full(len(block), math.log2(point.key.concurrency)) for point, block in zip(points, blocks, strict=True)]
        )
        return hc3_slope(x, np.log(np.concatenate(blocks))), len(x)
    return _slope_of_means(points), len(points)


def hc3_slope(x: Floats, y: Floats) -> Mean:
    """Slope of y on x by least squares with the HC3 error: residuals divided by (1 − leverage), t with n − 2."""
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ y) / spread
    if len(x) < 3:
        return Mean(slope, None, None)
    residual = y - y.mean() - slope * centred
    hat = 1.0 / len(x) + centred**2 / spread
    # A point with leverage 1 is fitted exactly: it says nothing about the error, and the others carry it.
    scaled = np.where(hat < 1 - 1e-12, residual / np.maximum(1.0 - hat, 1e-12), 0.0)
    return Mean(slope, math.sqrt(float((centred**2 * scaled**2).sum())) / spread, float(len(x) - 2))


def _slope_of_means(points: Sequence[LoadPoint]) -> Mean:
    """Where only means and their errors are known: the slope is a weighted sum of ln means, so its error follows."""
    x = np.array([math.log2(point.key.concurrency) for point in points])
    centred = x - x.mean()
    weights = centred / float(centred @ centred)
    slope = float(weights @ np.log([point.mean.value for point in points]))
    parts: list[tuple[float, float]] = []
    for weight, point in zip(weights, points, strict=True):
        if point.mean.error is None or point.mean.freedom is None:
            return Mean(slope, None, None)
        parts.append(((float(weight) * point.mean.error / point.mean.value) ** 2, point.mean.freedom))
    variance = sum(part for part, _ in parts)
    spread = sum(part**2 / freedom for part, freedom in parts)
    return Mean(slope, math.sqrt(variance), variance**2 / spread if spread > 0 else float(len(points)))


def leverage(
    points: Sequence[LoadPoint],
    *,
    given_ops: Mapping[int, float],
    predicted_ops: Callable[[int], float],
    assumption: str,
) -> Leverage:
    """Growth of operations per rank and step from the first load to the last.

    Taken, in this order, from runs that measured it, from `given_ops` (load → count, stated by the user), from
    `predicted_ops` (with its `assumption`, in words). Only the first two can make flatness informative.
    """
    first, last = points[0], points[-1]
    counts = [_ops(point, given_ops) for point in (first, last)]
    if counts[0] is not None and counts[1] is not None and counts[0] > 0:
        growth = counts[1] / counts[0] - 1
        informative = growth >= NEEDED_GROWTH
        claim = (
            "flatness is evidence against an issue-rate limit"
            if informative
            else "flatness proves nothing about the issue rate"
        )
        text = f"measured operations per rank and step grow {growth:+.0%} over the sweep: {claim}"
        return Leverage(growth, Provenance.MEASURED, informative, text)
    growth = predicted_ops(last.key.concurrency) / predicted_ops(first.key.concurrency) - 1
    text = (
        f"operations per rank and step were not measured (predicted {growth:+.0%}, {assumption}; "
        f"{NEEDED_GROWTH:+.0%} would be needed): flatness proves nothing about the issue rate"
    )
    return Leverage(growth, Provenance.ASSUMED, is_informative=False, statement=text)


def _ops(point: LoadPoint, given: Mapping[int, float]) -> float | None:
    return point.ops_per_step if point.ops_per_step is not None else given.get(point.key.concurrency)
