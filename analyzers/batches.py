"""Intervals inside one run: batches of consecutive steps, t distribution (METHOD §4); steps are autocorrelated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from efaprof.analyzers.student import t_quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIN_BATCHES = 10
MAX_LAG1 = 0.2
LEVEL = 0.95
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval; `lo` and `hi` are None where fewer than two batches exist."""

    value: float
    lo: float | None
    hi: float | None


@dataclass(frozen=True, slots=True)
class Batching:
    """How steps were grouped: every estimate of a run uses the same grouping."""

    batch_steps: int  # consecutive steps in one batch
    batches: int
    lag1: float | None  # autocorrelation of batch means; None with fewer than four batches

    @property
    def is_sound(self) -> bool:
        """Enough batches, and their means are nearly independent."""
        return self.batches >= MIN_BATCHES and self.lag1 is not None and self.lag1 < MAX_LAG1


def choose_batching(step_values: NDArray[np.float64]) -> Batching:
    """Smallest batch whose means have lag-1 autocorrelation under MAX_LAG1, keeping at least MIN_BATCHES batches.

    When no size gets there, the largest one that keeps MIN_BATCHES batches, with the lag-1 that it has.
    """
    steps = len(step_values)
    size = 1
    while True:
        means = _means(step_values, size)
        lag1 = _lag1(means)
        found = Batching(size, len(means), lag1)
        if found.is_sound or steps // (size * 2) < MIN_BATCHES:
            return found
        size *= 2


def estimate(step_values: NDArray[np.float64], batching: Batching) -> Estimate:
    """Mean over all steps with a t interval from the whole batches' means; units are those of `step_values`."""
    if not len(step_values):
        return Estimate(float("nan"), None, None)
    means = _means(step_values, batching.batch_steps)
    centre = float(step_values.mean())
    if len(means) < 2:
        return Estimate(centre, None, None)
    half = t_quantile((1 + LEVEL) / 2, len(means) - 1) * float(means.std(ddof=1) / np.sqrt(len(means)))
    return Estimate(centre, centre - half, centre + half)


def _means(values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    whole = len(values) // size
    means: NDArray[np.float64] = values[: whole * size].reshape(whole, size).mean(axis=1)
    return means


def _lag1(means: NDArray[np.float64]) -> float | None:
    if len(means) < 4:
        return None
    centred = means - means.mean()
    power = float(centred @ centred)
    # Means that are equal but for rounding have no correlation, only the rounding's.
    if power <= len(means) * (ROUNDING * float(means.mean())) ** 2:
        return 0.0
    return float(centred[1:] @ centred[:-1]) / power
