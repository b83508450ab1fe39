from __future__ import annotations

import numpy as np
import pytest

from efaprof.analyzers import waves
from efaprof.analyzers.serving import Requests
from efaprof.analyzers.waves import WaveKind, clustered_mean, cold_start, cut, warmup_waves


def requests(start_ms, duration_ms, itl=None) -> Requests:
    start = (np.array(start_ms, float) * 1e6).astype(np.int64)
    end = start + (np.broadcast_to(np.array(duration_ms, float), start.shape) * 1e6).astype(np.int64)
    count = len(start)
    values = np.full(count, 50.0) if itl is None else np.array(itl, float)
    return Requests(values, np.full(count, 100.0), np.full(count, 128), start, end)


def grid(concurrency, count, period=1000.0):
    return [wave * period + slot * 0.01 for wave in range(count) for slot in range(concurrency)]


def test_synchronous_waves_are_cut_where_they_end():
    found = cut(requests(grid(4, 5), 990.0), 4)
    assert (found.kind, found.count) == (WaveKind.SYNCHRONOUS, 5)
    assert found.wave.tolist() == [wave for wave in range(5) for _ in range(4)]


def test_a_next_wave_that_starts_before_the_last_of_this_one_ends_is_still_the_next():
    # As real exports look: the first of a wave to end is replaced at once, 50 ms before the others end.
    start = [0, 0, 0, 0, 960, 1000, 1000, 1000]
    found = cut(requests(start, [960, 1000, 1000, 1000, 960, 1000, 1000, 1000]), 4)
    assert found.wave.tolist() == [0] * 4 + [1] * 4


def test_a_wave_with_failed_requests_is_smaller_not_misaligned():
    start = [time for number, time in enumerate(grid(4, 3)) if number != 5]
    assert np.bincount(cut(requests(start, 990.0), 4).wave).tolist() == [4, 3, 4]


def test_staggered_requests_of_uneven_length_are_cut_by_concurrency():
    random = np.random.default_rng(1)
    slots = np.zeros(8)
    start, length = [], []
    for _ in range(160):
        slot = int(slots.argmin())
        duration = float(random.exponential(500) + 20)
        start.append(slots[slot])
        length.append(duration)
        slots[slot] += duration
    order = np.argsort(start)
    found = cut(requests(np.array(start)[order], np.array(length)[order]), 8)
    assert (found.kind, found.count) == (WaveKind.STAGGERED, 20)


def test_without_times_waves_follow_the_order_of_submission():
    found = cut(Requests(np.ones(10), np.ones(10), np.ones(10, np.int64), None, None), 4)
    assert (found.kind, found.wave.tolist()) == (WaveKind.SUBMISSION, [0] * 4 + [1] * 4 + [2] * 2)


def test_error_of_the_mean_is_that_of_the_wave_means():
    itl = np.repeat([50.0, 51.0, 52.0, 49.0], 4)
    found = clustered_mean(cut(requests(grid(4, 4), 990.0, itl), 4), itl)
    means = np.array([50.0, 51.0, 52.0, 49.0])
    assert found.mean.value == pytest.approx(50.5)
    assert found.mean.error == pytest.approx(means.std(ddof=1) / 2)
    assert (found.waves, found.mean.freedom, found.icc) == (4, 3.0, 1.0)


def test_icc_recovers_the_share_of_variance_between_waves():
    random = np.random.default_rng(5)
    count, size, between, within = 400, 8, 2.0, 1.0
    itl = np.repeat(50 + between * random.standard_normal(count), size)
    itl = itl + within * random.standard_normal(len(itl))
    found = clustered_mean(cut(requests(grid(size, count), 990.0, itl), size), itl)
    assert found.icc == pytest.approx(between**2 / (between**2 + within**2), abs=0.04)


def test_icc_of_a_small_table_is_that_of_its_analysis_of_variance():
    # Three waves of two: mean squares 8 between and 2 within, so (8 − 2)/(8 + (2 − 1)·2).
    itl = np.array([49.0, 51.0, 47.0, 49.0, 51.0, 53.0])
    found = clustered_mean(cut(requests(grid(2, 3), 990.0, itl), 2), itl)
    assert found.icc == pytest.approx(6 / 10)


def test_the_wave_interval_covers_where_the_request_interval_does_not():
    random = np.random.default_rng(11)
    covered = {"wave": 0, "request": 0}
    for _ in range(300):
        itl = np.repeat(50 + random.standard_normal(10), 8) + 0.3 * random.standard_normal(80)
        interval = clustered_mean(cut(requests(grid(8, 10), 990.0, itl), 8), itl).mean.interval()
        covered["wave"] += interval.lo < 50 < interval.hi
        half = 1.99 * itl.std(ddof=1) / np.sqrt(len(itl))
        covered["request"] += abs(itl.mean() - 50) < half
    assert covered["wave"] / 300 > 0.91
    assert covered["request"] / 300 < 0.7


def test_one_wave_has_no_error():
    itl = np.full(4, 50.0)
    found = clustered_mean(cut(requests(grid(4, 1), 990.0), 4), itl)
    assert (found.mean.error, found.icc, found.lag1) == (None, None, None)


def test_slow_leading_waves_are_warm_up():
    means = [90.0, 60.0, 50.0, 50.1, 49.9, 50.0, 50.2, 49.8, 50.0]
    itl = np.repeat(means, 4)
    assert warmup_waves(cut(requests(grid(4, 9), 990.0, itl), 4), itl) == 2


def test_a_drift_of_one_percent_is_no_warm_up():
    itl = np.repeat([52.0, 51.9, 51.9, 51.8, 51.8, 51.7, 51.6, 51.6], 4)
    assert warmup_waves(cut(requests(grid(4, 8), 990.0, itl), 4), itl) == 0


def test_a_steady_machine_makes_no_warm_up_of_a_small_difference():
    # 3 % off and hundreds of MADs away, because the other waves are nearly identical.
    itl = np.repeat([51.5, 50.0, 50.001, 50.0, 49.999, 50.0, 50.001, 50.0], 4)
    assert warmup_waves(cut(requests(grid(4, 8), 990.0, itl), 4), itl) == 0


def test_at_most_a_third_of_the_waves_is_warm_up():
    itl = np.repeat([900.0, 700.0, 500.0, 300.0, 50.0, 50.0], 4)
    assert warmup_waves(cut(requests(grid(4, 6), 990.0, itl), 4), itl) <= 2


def test_a_cold_first_token_is_reported_and_moves_no_itl():
    cell = requests(grid(4, 3), 990.0)
    found = cut(cell, 4)
    ttft = np.repeat([9000.0, 150.0, 150.0], 4)
    assert cold_start(found, ttft) == pytest.approx(60.0)
    assert cold_start(found, np.full(12, 150.0)) is None


def test_drifting_waves_have_a_high_lag1():
    assert waves.lag1(np.arange(20.0)) > 0.7
    assert waves.lag1(np.arange(3.0)) is None
    assert waves.lag1(np.full(6, 50.0)) == 0.0
