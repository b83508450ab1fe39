"""Ticks to nanoseconds, and the bound on their error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from efaprof.errors import TraceError
from efaprof.trace.clocks import IDENTITY, ClockSamples, fit
from efaprof.trace.synth import TSC_2100

SECOND = 1_000_000_000


def samples(times_ns, *, bracket=40, ticks=None):
    times = np.array(times_ns, np.int64)
    if ticks is None:
        ticks = np.array([TSC_2100.ticks(int(t)) for t in times], np.int64)
    return ClockSamples(ticks, np.full(len(times), bracket, np.int64), times, times)


@given(st.lists(st.integers(0, 100 * SECOND), min_size=1, max_size=20))
def test_times_between_samples_are_right_to_the_rounding_of_a_tick(times_ns):
    clock = fit(samples(range(0, 101 * SECOND, SECOND)), "here")
    ticks = np.array([TSC_2100.ticks(t) for t in times_ns], np.int64)
    assert np.abs(clock.to_ns(ticks) - np.array(times_ns)).max() <= 1


def test_times_outside_go_on_with_the_nearest_slope():
    clock = fit(samples([10 * SECOND, 11 * SECOND, 12 * SECOND]), "here")
    for t in (0, 30 * SECOND):
        assert abs(int(clock.to_ns(np.array([TSC_2100.ticks(t)]))[0]) - t) <= 1


def test_each_piece_follows_its_own_drift():
    ticks = np.array([0, 1000, 3000], np.int64)  # 1 ns a tick, then 2
    clock = fit(ClockSamples(ticks, np.ones(3, np.int64), np.array([0, 1000, 5000]), np.zeros(3, np.int64)), "here")
    assert clock.to_ns(np.array([500, 1000, 2000, 3000])).tolist() == [500, 1000, 3000, 5000]


def test_order_of_ticks_is_kept():
    rng = np.random.default_rng(1)
    at = np.sort(rng.integers(0, 10 * SECOND, 50))
    jittered = at + rng.integers(-20, 20, 50)
    clock = fit(
        samples(np.unique(jittered), ticks=np.array([TSC_2100.ticks(int(t)) for t in np.unique(jittered)])), "x"
    )
    ticks = np.sort(rng.integers(0, TSC_2100.ticks(11 * SECOND), 10_000))
    assert (np.diff(clock.to_ns(ticks)) >= 0).all()


def test_error_is_at_least_the_bracket_and_grows_outside_the_samples():
    clock = fit(samples([0, SECOND, 2 * SECOND], bracket=2100), "here")  # 1 µs
    inside = clock.error_ns(TSC_2100.ticks(0), TSC_2100.ticks(2 * SECOND))
    assert 1000 <= inside <= 1001
    far = clock.error_ns(TSC_2100.ticks(0), TSC_2100.ticks(62 * SECOND))
    assert far == pytest.approx(1000 + 60 * 2000, rel=0.01)


def test_error_covers_what_a_straight_piece_cannot_follow():
    times = np.array([0, SECOND, 2 * SECOND])
    bent = samples(times, ticks=np.array([0, SECOND + 500, 2 * SECOND]))
    assert fit(bent, "here").sample_error_ns >= 499


def test_an_interrupted_sample_is_not_used():
    times = np.arange(10) * SECOND
    ticks = times.copy()
    ticks[4] += 900_000  # read a millisecond late, and its bracket says so
    wide = np.full(10, 50, np.int64)
    wide[4] = 1_000_000
    clock = fit(ClockSamples(ticks, wide, times, times), "here")
    assert clock.sample_error_ns <= 51
    assert clock.to_ns(np.array([4 * SECOND])).tolist() == [4 * SECOND]


def test_a_damaged_sample_is_not_used():
    times = np.arange(10) * SECOND
    broken = times.copy()
    broken[7] |= 1 << 50
    clock = fit(ClockSamples(times, np.full(10, 50), broken, times), "here")
    assert clock.to_ns(times).tolist() == times.tolist()


@pytest.mark.parametrize("times", [[], [5]])
def test_too_few_samples_name_the_place_and_say_what_to_do(times):
    with pytest.raises(TraceError, match=f"some/raw has {len(times)} clock samples") as error:
        fit(samples(times), "some/raw")
    assert "record again" in error.value.hint


def test_samples_that_no_clock_could_give_are_refused():
    with pytest.raises(TraceError, match="contradict"):
        fit(ClockSamples(np.array([0, 100]), np.ones(2, np.int64), np.array([0, SECOND]), np.zeros(2, np.int64)), "raw")


def test_nanosecond_clocks_stay_as_they_are_however_long_the_host_is_up():
    year = 365 * 86_400 * SECOND
    times = np.array([year * 50 + 1, year * 50 + 2])
    assert IDENTITY.to_ns(times).tolist() == times.tolist()
    assert IDENTITY.error_ns(0, year) == 0
