"""Counter lines from changes: how many, how much at each instant, with a bounded number of points."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from efaprof.export.source import Window

MAX_CHANGES = 200_000  # of one line that are kept singly
GRID = 100_000  # equal stretches of the window that more changes are summed over


@dataclass(slots=True)
class Changes:
    """Changes of one quantity in any order of time. Beyond MAX_CHANGES they are summed per stretch of the window."""

    window: Window
    _times: list[NDArray[np.int64]] = field(default_factory=list)
    _amounts: list[NDArray[np.int64]] = field(default_factory=list)
    _kept: int = 0
    _grid: NDArray[np.int64] | None = None

    def add(self, times_ns: NDArray[np.int64], amounts: NDArray[np.int64]) -> None:
        """Take changes in; those outside the window count at its edge."""
        self._times.append(np.clip(times_ns, self.window.start_ns, self.window.end_ns - 1))
        self._amounts.append(amounts)
        self._kept += times_ns.size
        if self._kept > MAX_CHANGES:
            self._fold()

    @property
    def step_ns(self) -> int:
        """Length of a stretch; 0 while every change is kept."""
        return 0 if self._grid is None else -(-(self.window.end_ns - self.window.start_ns) // GRID)

    def level(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Times and the running sum; on the grid, the sum at the end of each stretch in which it changed."""
        times, amounts = self._summed()
        levels = np.cumsum(amounts)
        changed = np.empty(levels.size, np.bool_)
        changed[:1] = True
        changed[1:] = levels[1:] != levels[:-1]
        return times[changed] + self.step_ns, levels[changed]

    def sums(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Times and the amount at each; on the grid, the start of each stretch and the amount in it."""
        return self._summed()

    def _summed(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self._grid is not None:
            self._fold()
            busy = np.flatnonzero(self._grid)
            return self.window.start_ns + busy * self.step_ns, self._grid[busy]
        if not self._times:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        times, amounts = np.concatenate(self._times), np.concatenate(self._amounts)
        order = np.argsort(times, kind="stable")
        times, amounts = times[order], amounts[order]
        first = np.flatnonzero(np.concatenate(([True], times[1:] != times[:-1])))
        return times[first], np.add.reduceat(amounts, first)

    def _fold(self) -> None:
        if self._grid is None:
            self._grid = np.zeros(GRID, np.int64)
        for times, amounts in zip(self._times, self._amounts, strict=True):
            np.add.at(self._grid, (times - self.window.start_ns) // self.step_ns, amounts)
        self._times, self._amounts, self._kept = [], [], 0
