"""The recorder's loop: empty the rings in time, sample clocks and counters, cost next to nothing when idle."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from efaprof.native import DrainStats
    from efaprof.session.sample import Emit, Sampler

CLOCK_INTERVAL_S = 0.1
_SWEEP_INTERVAL_S = 1.0  # everything is copied this often, so that a crash of the machine loses no more
_FASTEST_S, _SLOWEST_S = 0.002, 0.02
_COPIED_FROM = 250  # per mille: the drain copies rings from here on
_FULL = 1000
_MARGIN = 4  # look again after a quarter of the time in which the ring would be full


class Rings(Protocol):
    """The native drain (efaprof.native.RingDrain)."""

    def poll(self, *, everything: bool) -> DrainStats:
        """Copy what is due, or everything; return the counts so far."""


@dataclass(slots=True)
class Pace:
    """When to look at the rings again: soon while one is filling, seldom when nothing happens."""

    _fill: int = 0
    _at: float = field(default=float("-inf"))

    def wait_s(self, fullest: int, now: float, *, is_sweep: bool) -> float:
        """Seconds until the next look, after one at `now` that found the fullest ring `fullest` per mille full.

        A sweep emptied every ring, another look only those over a quarter.
        """
        growth = max(fullest - self._fill, 0) / max(now - self._at, 1e-6)
        is_copied = fullest >= _COPIED_FROM
        self._fill, self._at = 0 if is_copied or is_sweep else fullest, now
        if is_copied:
            return _FASTEST_S
        until_full_s = (_FULL - fullest) / growth if growth > 0 else float("inf")
        return min(max(until_full_s / _MARGIN, _FASTEST_S), _SLOWEST_S)


@dataclass(slots=True)
class Loop:
    """Does what is due at each turn and says how long to sleep until the next."""

    rings: Rings
    emit: Emit
    sample_clock: Callable[[], None]
    samplers: Sequence[Sampler]
    now: Callable[[], float] = time.monotonic
    stats: DrainStats | None = field(default=None, init=False)
    _pace: Pace = field(default_factory=Pace, init=False)
    _poll_due: float = field(default=0.0, init=False)
    _sweep_due: float = field(default=0.0, init=False)
    _clock_due: float = field(default=0.0, init=False)
    _sampler_due: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self._sampler_due = [0.0] * len(self.samplers)

    def turn(self) -> float:
        """Poll the rings, the clock and the samplers that are due; return seconds until something is due again."""
        start = self.now()
        if start >= self._clock_due:
            self._clock_due = start + CLOCK_INTERVAL_S
            self.sample_clock()
        for index, sampler in enumerate(self.samplers):
            if start >= self._sampler_due[index]:
                sampler.sample(self.emit)
                # From the start of this turn, not from when it was due: after a stop nothing is made up for.
                self._sampler_due[index] = start + sampler.interval_s
        if start >= self._poll_due:
            self._poll(start)
        due = min(self._poll_due, self._clock_due, *self._sampler_due)
        return max(due - self.now(), 0.0)

    def sample_all(self) -> None:
        """Sample the clock and every sampler now: the last readings of a recording."""
        for sampler in self.samplers:
            sampler.sample(self.emit)
        self.sample_clock()

    def _poll(self, start: float) -> None:
        is_sweep = start >= self._sweep_due
        if is_sweep:
            self._sweep_due = start + _SWEEP_INTERVAL_S
        self.stats = self.rings.poll(everything=is_sweep)
        self._poll_due = start + self._pace.wait_s(self.stats.fullest, start, is_sweep=is_sweep)
