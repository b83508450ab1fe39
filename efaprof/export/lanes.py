"""Places for spans that overlap: on one lane, spans follow each other and never cross.

A timeline pairs an end with the innermost open begin, so spans that cross on one lane get each other's durations,
silently. Both placements below work on whole columns; a Python loop runs only where the lanes do not suffice.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[np.int64]
    LaneNumbers = NDArray[np.int16]

MAX_LANES = 64
NO_LANE = -1
FOREVER = np.int64(2**62)  # end of what has not ended
_PEELS = 8


@dataclass(slots=True)
class Lanes:
    """Lanes of one track, filled chunk by chunk in the order of start."""

    limit: int = MAX_LANES
    overflow: int = 0  # spans that found no free lane so far
    _open_ends: Times = field(default_factory=lambda: np.empty(0, np.int64))
    _open_lanes: LaneNumbers = field(default_factory=lambda: np.empty(0, np.int16))

    def place(self, starts: Times, ends: Times) -> LaneNumbers:
        """Lane of each span, or NO_LANE where all lanes are taken. `starts` ascend, also from call to call.

        A span of no length keeps its lane for a nanosecond, so that nothing shares its instant.
        """
        if starts.size == 0:
            return np.empty(0, np.int16)
        ends = np.maximum(ends, starts + 1)
        alive = self._open_ends > starts[0]
        open_ends, open_lanes = self._open_ends[alive], self._open_lanes[alive]
        if open_ends.size == 0 and bool((starts[1:] >= ends[:-1]).all()):
            lanes = np.zeros(starts.size, np.int16)
        else:
            lanes = self._place_crowd(starts, ends, open_ends, open_lanes)
        drawn = (lanes != NO_LANE) & (ends > starts[-1])
        self._open_ends = np.concatenate((open_ends, ends[drawn]))
        self._open_lanes = np.concatenate((open_lanes, lanes[drawn]))
        self.overflow += int((lanes == NO_LANE).sum())
        return lanes

    def _place_crowd(self, starts: Times, ends: Times, open_ends: Times, open_lanes: LaneNumbers) -> LaneNumbers:
        known = open_ends.size
        all_starts = np.concatenate((np.full(known, starts[0]), starts))
        all_ends = np.concatenate((open_ends, ends))
        order = np.argsort(all_ends, kind="stable")
        ended = np.searchsorted(all_ends[order], all_starts, side="right")
        active = np.arange(1, all_starts.size + 1) - ended  # spans open just after each start
        if int(active[known:].max()) > self.limit:
            return _place_one_by_one(starts, ends, open_ends, open_lanes, self.limit)
        return _follow_released(all_starts, all_ends, order, active, open_lanes)[known:]


def _follow_released(
    starts: Times, ends: Times, order: NDArray[np.intp], active: NDArray[np.int64], open_lanes: LaneNumbers
) -> LaneNumbers:
    """Lanes by a queue of released lanes, without a loop over spans.

    In a busy period that needs L lanes, the first L spans take fresh ones and span k takes the lane that the
    (k - L)-th span to end released; so each span points to an earlier one, and pointers are followed by doubling.
    """
    count, known = starts.size, open_lanes.size
    is_first = np.empty(count, np.bool_)  # first of a busy period
    is_first[0] = True
    is_first[1:] = starts[1:] >= np.maximum.accumulate(ends)[:-1]
    first = np.flatnonzero(is_first)
    period = np.cumsum(is_first) - 1
    needed = np.maximum.reduceat(active, first)[period]
    within = np.arange(count) - first[period]
    fresh = within < needed
    source = np.arange(count)
    source[~fresh] = order[(source - needed)[~fresh]]
    lanes = within.astype(np.int16)
    if known:
        free = np.setdiff1d(np.arange(int(needed[0])), open_lanes)[: int(needed[0]) - known]
        lanes[:known] = open_lanes
        lanes[known : known + free.size] = free
    while True:
        further = source[source]
        if np.array_equal(further, source):
            break
        source = further
    followed: LaneNumbers = lanes[source]
    return followed


def _place_one_by_one(starts: Times, ends: Times, open_ends: Times, open_lanes: LaneNumbers, limit: int) -> LaneNumbers:
    """Lanes by first fit, for stretches where more spans are open than there are lanes."""
    busy = list(zip(open_ends.tolist(), open_lanes.tolist(), strict=True))
    heapq.heapify(busy)
    free = sorted(set(range(limit)) - {lane for _, lane in busy})
    lanes = np.full(starts.size, NO_LANE, np.int16)
    for index, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
            lanes[index] = lane
            heapq.heappush(busy, (end, lane))
    return lanes


def nesting_order(starts: Times, ends: Times) -> NDArray[np.intp]:
    """Order in which spans are written: by start, the longest first, so that what is around comes before."""
    return np.lexsort((-ends, starts))


def crossing(starts: Times, ends: Times) -> NDArray[np.bool_]:
    """Spans, given in `nesting_order`, that a timeline would end too early, at another one's end.

    Replays the pairing: begins and ends are sorted by time, ties in the order written; at each depth they alternate,
    and each pair must belong to one span. A span that would end too late is left in: it has one inside it that ends
    too early, and is right without that.
    """
    count = starts.size
    times = np.empty(2 * count, np.int64)
    times[0::2], times[1::2] = starts, ends
    sequence = np.argsort(times, kind="stable")
    is_begin = sequence % 2 == 0
    depth = np.cumsum(np.where(is_begin, 1, -1))
    level = np.where(is_begin, depth, depth + 1)
    pairs = sequence[np.argsort(level, kind="stable")] // 2
    begins, partners = pairs[0::2], pairs[1::2]
    crossed = np.zeros(count, np.bool_)
    crossed[begins] = ends[begins] > ends[partners]
    return crossed


def place_nested(starts: Times, ends: Times, limit: int = MAX_LANES) -> LaneNumbers:
    """Lane of each span of one thread, given in `nesting_order`: lane 0 where they nest, others for what crosses."""
    lanes = np.zeros(starts.size, np.int16)
    for _ in range(_PEELS):
        main = np.flatnonzero(lanes == 0)
        crossed = crossing(starts[main], ends[main])
        if not crossed.any():
            break
        lanes[main[crossed]] = 1
    else:
        lanes[:] = 1
    rest = np.flatnonzero(lanes)
    if rest.size:
        placed = Lanes(limit=limit - 1).place(starts[rest], ends[rest])
        lanes[rest] = np.where(placed == NO_LANE, NO_LANE, placed + 1)
    return lanes
