from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efaprof.native import DrainStats
from efaprof.session.drain import Loop, Pace


def stats(fullest: int) -> DrainStats:
    return DrainStats(0, 0, 0, 0, 0, 0, 0, fullest, 0)


class World:
    """A ring that fills at a given rate, a clock that only moves when told."""

    def __init__(self, per_mille_s: float) -> None:
        self.now, self.rate, self.fill, self.overrun = 50.0, per_mille_s, 0.0, False
        self.polls: list[bool] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.fill += self.rate * seconds
        self.overrun |= self.fill > 1000

    def poll(self, *, everything: bool) -> DrainStats:
        self.polls.append(everything)
        result = stats(int(min(self.fill, 1000)))
        if everything or self.fill >= 250:
            self.fill = 0
        return result


@dataclass
class Ticker:
    interval_s: float
    complaint: str = ""
    times: list[float] = field(default_factory=list)
    world: World | None = None

    def sample(self, emit):
        emit("x", 1)
        self.times.append(self.world.now)


def run(world: World, seconds: float, *samplers: Ticker) -> tuple[Loop, list[float]]:
    clocks: list[float] = []
    for sampler in samplers:
        sampler.world = world
    loop = Loop(
        world, lambda name, value, *, monotone=True: None, lambda: clocks.append(world.now), samplers, lambda: world.now
    )
    go_on(loop, world, seconds)
    return loop, clocks


def go_on(loop: Loop, world: World, seconds: float) -> None:
    end = world.now + seconds
    while world.now < end:
        world.sleep(max(loop.turn(), 0.0001))


def test_an_idle_recording_is_looked_at_seldom():
    world = World(0)
    run(world, 1)
    assert len(world.polls) <= 22


@given(st.floats(min_value=1, max_value=100_000))
def test_a_ring_that_fills_steadily_never_overruns(rate):
    """Up to full in 10 ms: a 4 MiB ring at 400 MB/s. The first look at it may come 50 ms late."""
    world = World(rate)
    loop, _ = run(world, 0.1)
    world.overrun = False
    go_on(loop, world, 0.5)
    assert not world.overrun


@given(st.floats(min_value=1, max_value=19_000), st.floats(min_value=0, max_value=0.05))
def test_a_burst_from_rest_is_caught_while_the_ring_holds_50_ms_of_it(rate, phase):
    world = World(0)
    loop, _ = run(world, 0.3 + phase)
    world.rate = rate
    go_on(loop, world, 0.2)
    assert not world.overrun


def test_everything_is_copied_each_second_and_not_more():
    world = World(10)
    run(world, 3.5)
    assert 4 <= world.polls.count(True) <= 5


def test_clock_and_samplers_keep_their_intervals():
    fast, slow = Ticker(0.01), Ticker(0.25)
    _, clocks = run(World(0), 1, fast, slow)
    assert 10 <= len(clocks) <= 14
    assert len(fast.times) == pytest.approx(100, abs=2)
    assert 4 <= len(slow.times) <= 6


def test_after_a_stop_nothing_is_made_up_for():
    world, ticker = World(0), Ticker(0.01)
    loop, _ = run(world, 0.1, ticker)
    world.sleep(10)
    before = len(ticker.times)
    loop.turn()
    loop.turn()
    assert len(ticker.times) == before + 1


def test_a_sampler_may_stretch_its_interval():
    world, ticker = World(0), Ticker(0.01)
    loop, _ = run(world, 0.1, ticker)
    ticker.interval_s = 0.5
    before = len(ticker.times)
    go_on(loop, world, 1)
    assert len(ticker.times) - before <= 3


def test_what_a_sweep_emptied_is_not_taken_for_growth():
    pace = Pace()
    pace.wait_s(0, 0.0, is_sweep=True)
    pace.wait_s(200, 0.02, is_sweep=True)
    assert pace.wait_s(200, 0.03, is_sweep=False) == pytest.approx(0.01)  # 200 in 10 ms: full in 40 more
    assert Pace(200, 0.0).wait_s(200, 1.0, is_sweep=False) == 0.05
