"""When communication was going on, and how much of it at once: one pass over operations in order of their post."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LONG_AGO = np.iinfo(np.int64).min
_NEVER = np.iinfo(np.int64).max


@dataclass(slots=True)
class ActiveTime:
    """Length of the union of intervals that come in order of their begin."""

    active_ns: int = 0
    first_ns: int | None = None
    _reach_ns: int = _LONG_AGO

    def add(self, begin_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> None:
        """More intervals, none beginning before the last ones did."""
        if not len(begin_ns):
            return
        if self.first_ns is None:
            self.first_ns = int(begin_ns[0])
        reach = np.maximum.accumulate(np.concatenate([[self._reach_ns], end_ns]))
        self.active_ns += int(np.maximum(end_ns - np.maximum(begin_ns, reach[:-1]), 0).sum())
        self._reach_ns = int(reach[-1])

    @property
    def last_ns(self) -> int | None:
        """Latest end so far."""
        return None if self.first_ns is None else self._reach_ns


@dataclass(slots=True)
class Outstanding:
    """How many operations were posted and not completed: highest, and summed over time."""

    highest: int = 0
    summed_ns: int = 0  # of the completed ones: mean over a window = summed_ns / window
    operations: int = 0
    _open_ends: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, post_ns: NDArray[np.int64], done_ns: NDArray[np.int64], is_open: NDArray[np.bool_]) -> None:
        """More operations, in order of their post; `is_open` marks those whose completion never came."""
        if not len(post_ns):
            return
        ends = np.where(is_open, _NEVER, done_ns)
        ends_in_order = np.sort(np.concatenate([self._open_ends, ends]))
        posted = len(self._open_ends) + np.arange(1, len(post_ns) + 1)
        depth = posted - np.searchsorted(ends_in_order, post_ns, side="right")
        self.highest = max(self.highest, int(depth.max()))
        self.summed_ns += int((done_ns - post_ns)[~is_open].sum())
        self.operations += len(post_ns)
        self._open_ends = ends_in_order[ends_in_order > post_ns[-1]]
