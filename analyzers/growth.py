"""How far a kernel counter moved from sample to sample, where it may be set back to zero, wrap or be stuck."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WRAPS_AT = 1 << 32  # older counters have 32 bits; 64 do not wrap within a recording
_NEAR_END, _NEAR_START = 3 * _WRAPS_AT // 4, _WRAPS_AT // 4
_STUCK_AT = _WRAPS_AT - 1  # InfiniBand's own 32-bit counters stay there


@dataclass(frozen=True, slots=True)
class Growth:
    """Steps between the samples of one counter."""

    steps: NDArray[np.int64]  # never negative
    is_reset: NDArray[np.bool_]  # the count began anew: the step is what has been counted since, a lower bound
    is_wrapped: NDArray[np.bool_]
    is_stuck: bool  # it reached the highest value that it has and says no more

    @property
    def total(self) -> int:
        """All of them."""
        return int(self.steps.sum())


def growth(values: NDArray[np.int64]) -> Growth:
    """Growth over samples in order of time: one step fewer than there are samples.

    A count that fell from the last quarter of 32 bits into the first wrapped; any other fall is a reset.
    """
    before, now = values[:-1], values[1:]
    has_fallen = now < before
    is_wrapped = has_fallen & (before >= _NEAR_END) & (before < _WRAPS_AT) & (now < _NEAR_START)
    is_reset = has_fallen & ~is_wrapped
    steps = np.where(is_reset, now, now - before + np.where(is_wrapped, _WRAPS_AT, 0))
    is_stuck = bool(values.size and values[-1] == _STUCK_AT)
    return Growth(steps.astype(np.int64), is_reset, is_wrapped, is_stuck)
