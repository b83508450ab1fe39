"""FI_MORE: an operation posted with it is rung later, by the next call on its endpoint without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from efaprof.trace.columns import Columns
from efaprof.trace.outcomes import HAS_DOORBELL, Outcomes

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SentCalls(Columns):
    """Calls that posted something to send."""

    number: NDArray[np.int64]
    endpoint: NDArray[np.int64]
    post_ns: NDArray[np.int64]
    return_ns: NDArray[np.int64]
    is_deferred: NDArray[np.bool_]  # made with FI_MORE

    @staticmethod
    def none() -> SentCalls:
        """No calls."""
        number = np.empty(0, np.int64)
        return SentCalls(number, number, number, number, np.empty(0, np.bool_))


class Doorbells:
    """Calls since the last settled time; deferred ones wait for their doorbell."""

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes
        self._left = SentCalls.none()  # not settled, or deferred and not rung

    def ring(self, calls: SentCalls, settled_ns: int) -> None:
        """Take more calls and find the doorbells of everything that began before a time."""
        calls = SentCalls.concat([self._left, calls])
        now = calls.post_ns < settled_ns
        unsettled, calls = calls.where(~now), calls.where(now)
        calls = calls.where(np.lexsort((calls.post_ns, calls.endpoint)))
        # The next call without FI_MORE, looking back from the end of each endpoint's calls.
        count = len(calls)
        rings = np.where(calls.is_deferred, count, np.arange(count))
        rung_by = np.minimum.accumulate(rings[::-1])[::-1]
        found = rung_by < count
        found[found] = calls.endpoint[rung_by[found]] == calls.endpoint[found]
        rung = found & calls.is_deferred
        number = calls.number[rung]
        self._outcomes.doorbell_ns[number] = calls.return_ns[rung_by[rung]]
        self._outcomes.state[number] |= HAS_DOORBELL
        self._left = SentCalls.concat([calls.where(calls.is_deferred & ~rung), unsettled])
