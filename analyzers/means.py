"""A mean with its standard error and degrees of freedom; t intervals and Welch differences follow from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from efaprof.analyzers.batches import Estimate
from efaprof.analyzers.student import t_quantile

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean; `error` (its standard error) and `freedom` are None where fewer than two units were observed."""

    value: float
    error: float | None
    freedom: float | None

    def interval(self, level: float = LEVEL) -> Estimate:
        """Two-sided t interval at `level`."""
        if self.error is None or self.freedom is None:
            return Estimate(self.value, None, None)
        half = t_quantile((1 + level) / 2, self.freedom) * self.error
        return Estimate(self.value, self.value - half, self.value + half)


def difference(first: Mean, second: Mean) -> Mean:
    """Difference first − second of independent means: Welch's error and the Welch-Satterthwaite degrees of freedom."""
    value = first.value - second.value
    if first.error is None or second.error is None or first.freedom is None or second.freedom is None:
        return Mean(value, None, None)
    variances = first.error**2, second.error**2
    total = sum(variances)
    spread = variances[0] ** 2 / first.freedom + variances[1] ** 2 / second.freedom
    freedom = total**2 / spread if spread > 0 else first.freedom + second.freedom
    return Mean(value, math.sqrt(total), freedom)


def from_interval(value: float, lo: float | None, hi: float | None, units: int) -> Mean:
    """The mean whose 95 % t interval over `units` units is [lo, hi]: how a run's own report is read back."""
    if lo is None or hi is None or units < 2:
        return Mean(value, None, None)
    freedom = float(units - 1)
    return Mean(value, (hi - lo) / 2 / t_quantile((1 + LEVEL) / 2, freedom), freedom)
