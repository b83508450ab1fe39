"""FI_MORE: an operation posted with it is rung later, by the next call on its endpoint without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from efaprof.trace import fabric
from efaprof.trace.outcomes import HAS_DOORBELL, Outcomes

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Doorbells:
    """Calls since the last settled time; deferred ones wait for their doorbell."""

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes
        self._parts: list[NDArray[np.int64]] = []  # rows: number, endpoint, post, return, is deferred
        self._deferred = np.empty((5, 0), np.int64)

    def add(
        self, number: NDArray[np.int64], endpoint: NDArray[np.int64], post_ns: NDArray[np.int64],
        return_ns: NDArray[np.int64], flags: NDArray[np.uint32], is_sent: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        """Calls that posted something to send."""
        is_deferred = (flags & np.uint32(fabric.FI_MORE)) != 0
        calls = np.stack([number, endpoint, post_ns, return_ns, is_deferred.astype(np.int64)])
        self._parts.append(calls[:, is_sent])

    def ring(self, settled_ns: int) -> None:
        """Find the doorbells of everything that began before a time."""
        calls = np.concatenate([self._deferred, *self._parts], axis=1)
        now = calls[2] < settled_ns
        self._parts = [calls[:, ~now]]
        calls = calls[:, now]
        calls = calls[:, np.lexsort((calls[2], calls[1]))]
        # The next call without FI_MORE, looking back from the end of each endpoint's calls.
        count = calls.shape[1]
        rings = np.where(calls[4] == 0, np.arange(count), count)
        rung_by = np.minimum.accumulate(rings[::-1])[::-1]
        found = rung_by < count
        found[found] = calls[1][rung_by[found]] == calls[1][found]
        rung = found & (calls[4] == 1)
        number = calls[0][rung]
        self._outcomes.doorbell_ns[number] = calls[3][rung_by[rung]]
        self._outcomes.state[number] |= HAS_DOORBELL
        self._deferred = calls[:, (calls[4] == 1) & ~rung]
