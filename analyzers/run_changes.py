"""Change between two groups of runs, the unit being the run: Welch's t on log means, equivalence, power (METHOD §5).

Arrays have runs on axis 0; any further axes are measures, each treated on its own. Changes are differences of logs:
`expm1` of one is the relative change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[np.float64]

LEVEL = 0.95
TAIL = (1 - LEVEL) / 2  # of one bound of the two-sided interval
EQUIVALENCE_TAIL = 0.05  # of each of the two one-sided tests
POWER = 0.90
MIN_RUNS = 3  # on each side; with fewer the noise between runs is not known
MOST_RUNS = 200  # on each side, that are ever recommended
# A few runs can show too little noise by luck: plans take a noise that the true one exceeds in one of five such cases.
_NOISE_CONFIDENCE = 0.80


@dataclass(frozen=True, slots=True)
class Change:
    """Second group less first, with its standard error and degrees of freedom."""

    value: Values
    error: Values
    freedom: Values
    noise: Values  # standard deviation between runs of one group, pooled
    noise_freedom: int

    def half_width(self, tail: float = TAIL) -> Values:
        """What to go to either side for an interval that leaves out `tail` at each end."""
        return _t_quantile(1 - tail, self.freedom) * self.error

    def p_above(self, limit: float | Values) -> Values:
        """One-sided p of "the change is at most `limit`"."""
        from scipy.special import stdtr

        distance = self.value - limit
        # Without any noise the sign decides; a change of just the limit is not above it.
        t = np.divide(distance, self.error, out=np.where(distance > 0, np.inf, -np.inf), where=self.error > 0)
        return np.asarray(stdtr(self.freedom, -t), dtype=np.float64)

    def is_within(self, limit: float | Values) -> NDArray[np.bool_]:
        """Two one-sided tests: the change is shown to be smaller than `limit`, up and down."""
        inside: NDArray[np.bool_] = np.abs(self.value) + self.half_width(EQUIVALENCE_TAIL) < limit
        return inside


def change_of(first: Values, second: Values) -> Change:
    """Change of the mean from one group to the other: Welch's error; at least two runs in each."""
    counts = len(first), len(second)
    spread = first.var(axis=0, ddof=1), second.var(axis=0, ddof=1)
    parts = spread[0] / counts[0], spread[1] / counts[1]
    total = parts[0] + parts[1]
    pooled_freedom = sum(counts) - 2
    below = parts[0] ** 2 / (counts[0] - 1) + parts[1] ** 2 / (counts[1] - 1)
    freedom = np.divide(total**2, below, out=np.full_like(total, pooled_freedom), where=below > 0)
    pooled = ((counts[0] - 1) * spread[0] + (counts[1] - 1) * spread[1]) / pooled_freedom
    value = second.mean(axis=0) - first.mean(axis=0)
    return Change(value, np.sqrt(total), freedom, np.sqrt(pooled), pooled_freedom)


def adjusted(p: Values) -> Values:
    """Benjamini-Hochberg: each p value of the last axis as the false discovery rate at which it would be called."""
    count = p.shape[-1]
    order = np.argsort(p, axis=-1)
    scaled = np.take_along_axis(p, order, axis=-1) * count / np.arange(1, count + 1)
    lowest = np.minimum.accumulate(scaled[..., ::-1], axis=-1)[..., ::-1]
    found = np.empty_like(p)
    np.put_along_axis(found, order, np.minimum(lowest, 1.0), axis=-1)
    return found


def smallest_detectable(change: Change, margin: float | Values) -> Values:
    """Relative change that this many runs would have called a regression with probability POWER."""
    both = change.half_width(TAIL) + change.half_width(1 - POWER)
    return np.expm1(np.log1p(margin) + both)


def recommended_runs(noise: Values, freedom: int, *, effect: float, margin: float) -> NDArray[np.int64]:
    """Runs on each side for a true relative change of `effect` to be called with probability POWER.

    `noise` is the pooled standard deviation of log means with its degrees of freedom. MOST_RUNS + 1 means that not
    even MOST_RUNS are enough.
    """
    from scipy.special import chdtri, nctdtr

    assumed = np.asarray(noise * np.sqrt(freedom / chdtri(freedom, _NOISE_CONFIDENCE)))
    distance = np.log1p(effect) - np.log1p(margin)
    runs = np.arange(MIN_RUNS, MOST_RUNS + 1)
    degrees = np.asarray(2 * runs - 2, dtype=np.float64)
    needed = _t_quantile(1 - TAIL, degrees)
    error = np.maximum(assumed[..., None], 1e-12) * np.sqrt(2.0 / runs)
    # Beyond 37 the noncentral distribution is numerically all on one side.
    missed = nctdtr(degrees, np.minimum(distance / error, 37.0), needed)
    is_enough = missed <= 1 - POWER
    return np.where(is_enough.any(axis=-1), runs[np.argmax(is_enough, axis=-1)], MOST_RUNS + 1)


def _t_quantile(probability: float, freedom: Values) -> Values:
    from scipy.special import stdtrit

    return np.asarray(stdtrit(freedom, probability), dtype=np.float64)
