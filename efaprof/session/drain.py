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
FASTEST_S, SLOWEST_S = 0.002, 0.05
_SLACK = 0.25  # part of its interval by which a thing may come early: waking up costs more than the work
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
            return FASTEST_S
        until_full_s = (_FULL - fullest) / growth if growth > 0 else float("inf")
        return min(max(until_full_s / _MARGIN, FASTEST_S), SLOWEST_S)


@dataclass(slots=True)
class _Timer:
    """When a thing is due again."""

    due: float = 0.0
    slack: float = 0.0

    def is_due(self, now: float) -> bool:
        return now >= self.due - self.slack

    def set(self, now: float, interval_s: float) -> None:
        # From now, not from when it was due: after a stop nothing is made up for.
        self.due, self.slack = now + interval_s, interval_s * _SLACK


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
    _poll: _Timer = field(default_factory=_Timer, init=False)
    _sweep: _Timer = field(default_factory=_Timer, init=False)
    _clock: _Timer = field(default_factory=_Timer, init=False)
    _samples: list[_Timer] = field(init=False)

    def __post_init__(self) -> None:
        self._samples = [_Timer() for _ in self.samplers]

    def turn(self) -> float:
        """Poll the rings, the clock and the samplers that are due; return seconds until something is due again."""
        start = self.now()
        if self._clock.is_due(start):
            self.sample_clock()
            self._clock.set(start, CLOCK_INTERVAL_S)
        for sampler, timer in zip(self.samplers, self._samples, strict=True):
            if timer.is_due(start):
                sampler.sample(self.emit)
                timer.set(start, sampler.interval_s)
        if self._poll.is_due(start):
            self._look(start)
        due = min(timer.due for timer in (self._poll, self._clock, *self._samples))
        return max(due - self.now(), 0.0)

    def sample_all(self) -> None:
        """Sample the clock and every sampler now: the last readings of a recording."""
        for sampler in self.samplers:
            sampler.sample(self.emit)
        self.sample_clock()

    def _look(self, start: float) -> None:
        is_sweep = self._sweep.is_due(start)
        if is_sweep:
            self._sweep.set(start, _SWEEP_INTERVAL_S)
        self.stats = self.rings.poll(everything=is_sweep)
        self._poll.set(start, self._pace.wait_s(self.stats.fullest, start, is_sweep=is_sweep))
