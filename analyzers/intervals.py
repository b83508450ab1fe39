"""Algebra on sets of time intervals: int64 nanoseconds, half-open [begin, end), numpy, no Python loop per interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from efaprof import native
from efaprof.native_graph import address

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class IntervalSet:
    """Disjoint intervals in ascending order, with the covered length before each one."""

    begin: Times
    end: Times
    covered_before: Times

    @property
    def covered_ns(self) -> int:
        """Length of the whole set."""
        return int(self.covered_before[-1] + self.end[-1] - self.begin[-1]) if len(self.begin) else 0

    def covered_until(self, time: Times) -> Times:
        """Covered length before each time: a step function that grows only inside the set."""
        if not len(self.begin):
            return np.zeros(len(time), np.int64)
        index = np.searchsorted(self.begin, time, side="right") - 1
        inside = np.maximum(index, 0)
        partial = np.minimum(time, self.end[inside]) - self.begin[inside]
        return np.where(index >= 0, self.covered_before[inside] + partial, 0)

    def covered_within(self, begin: Times, end: Times) -> Times:
        """Covered length inside each window [begin, end)."""
        begin, end = np.ascontiguousarray(begin, np.int64), np.ascontiguousarray(end, np.int64)
        covered = np.empty(len(begin), np.int64)
        native.library().efaprof_covered(
            *(address(row, "int64_t *") for row in (self.begin, self.end, self.covered_before)), len(self.begin),
            address(begin, "int64_t *"), address(end, "int64_t *"), len(begin), address(covered, "int64_t *"),
        )  # fmt: skip
        return covered


EMPTY = IntervalSet(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))


def union(begin: Times, end: Times) -> IntervalSet:
    """Union of intervals in any order; empty and inverted ones, and those without a begin or end, add nothing."""
    begin, end = np.ascontiguousarray(begin, np.int64), np.ascontiguousarray(end, np.int64)
    made = np.empty((3, len(begin)), np.int64)
    count = native.library().efaprof_union(
        address(begin, "int64_t *"), address(end, "int64_t *"), len(begin),
        *(address(row, "int64_t *") for row in made),
    )  # fmt: skip
    if count > len(begin):
        raise MemoryError
    # Only what is needed stays in memory.
    return IntervalSet(*(made if 2 * count > len(begin) else made[:, :count].copy())[:, :count])


def count_until(ordered: Times, time: Times) -> Times:
    """How many of these sorted times are no later than each time."""
    ordered, time = np.ascontiguousarray(ordered, np.int64), np.ascontiguousarray(time, np.int64)
    counts = np.empty(len(time), np.int64)
    native.library().efaprof_count_until(
        address(ordered, "int64_t *"), len(ordered), address(time, "int64_t *"), len(time),
        address(counts, "int64_t *"),
    )  # fmt: skip
    return counts


def side_by_side(rows: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """Ascending rows, as a slice where none is left out."""
    if not len(rows) or rows[-1] - rows[0] + 1 == len(rows):
        return slice(int(rows[0]), int(rows[-1]) + 1) if len(rows) else slice(0, 0)
    return rows


def merge(one: IntervalSet, other: IntervalSet) -> IntervalSet:
    """Union of two sets."""
    if not len(one.begin):
        return other
    if not len(other.begin):
        return one
    return union(np.concatenate([one.begin, other.begin]), np.concatenate([one.end, other.end]))


def covering(begin_ns: int, end_ns: int) -> IntervalSet:
    """The one stretch from begin to end."""
    return union(np.array([begin_ns], np.int64), np.array([end_ns], np.int64))


def subtract(one: IntervalSet, other: IntervalSet) -> IntervalSet:
    """What is in one set and not in the other."""
    cuts = np.unique(np.concatenate([one.begin, one.end, other.begin, other.end]))
    begin, end = cuts[:-1], cuts[1:]
    keep = (one.covered_within(begin, end) > 0) & (other.covered_within(begin, end) == 0)
    return union(begin[keep], end[keep])
