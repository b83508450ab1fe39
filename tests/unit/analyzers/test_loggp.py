"""LogGP comes back from times made with it, is never negative, and is refused where runs cannot tell costs apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efaprof.analyzers.loggp import LogGP, Refusal, Sample, fit

GRID = [(n, b) for n in (16, 64, 256) for b in (1e4, 1e5, 1e6)]
costs = st.floats(0.01, 10)


def made(latency, per_operation, per_byte, grid=GRID, noise=None):
    factors = np.ones(len(grid)) if noise is None else noise
    return [
        Sample((latency + per_operation * n + per_byte * b) * float(factor), n, b)
        for (n, b), factor in zip(grid, factors, strict=True)
    ]


@settings(max_examples=50, deadline=None)
@given(latency=st.floats(5, 100), per_operation=costs, per_byte=st.floats(1e-4, 1e-2))
def test_costs_that_made_the_times_come_back(latency, per_operation, per_byte):
    found = fit(made(latency, per_operation, per_byte))
    if isinstance(found, Refusal):
        assert "condition" in found.reason  # one cost drowns the others
        return
    largest = max(latency, per_operation * 256, per_byte * 1e6)
    assert found.latency_us.value == pytest.approx(latency, abs=1e-6 * largest)
    assert found.per_operation_us.value == pytest.approx(per_operation, abs=1e-6 * largest)
    assert found.per_byte_us.value == pytest.approx(per_byte, abs=1e-6 * largest)
    assert found.relative_error < 1e-9


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    draws = np.random.default_rng(7).normal(1, 0.02, (200, len(GRID)))
    covered = 0
    for noise in draws:
        found = fit(made(20, 0.5, 1e-4, noise=noise))
        assert isinstance(found, LogGP)
        assert found.per_operation_us.lo is not None and found.per_operation_us.hi is not None
        covered += found.per_operation_us.lo <= 0.5 <= found.per_operation_us.hi
    assert covered >= 180


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_costs_are_never_negative_and_no_other_allowed_costs_fit_better(seed):
    random = np.random.default_rng(seed)
    samples = [Sample(float(random.uniform(50, 100)), n, b) for n, b in GRID]
    found = fit(samples)
    assert isinstance(found, LogGP)
    assert found.per_operation_us.value >= 0 and found.per_byte_us.value >= 0

    def error(latency, per_operation, per_byte):
        made_us = [latency + per_operation * one.operations + per_byte * one.bytes for one in samples]
        return np.sqrt(np.mean([(1 - t / one.time_us) ** 2 for t, one in zip(made_us, samples, strict=True)]))

    at = np.array([found.latency_us.value, found.per_operation_us.value, found.per_byte_us.value])
    assert error(*at) == pytest.approx(found.relative_error)
    for _ in range(20):
        other = at + random.normal(0, 1, 3) * [5, 0.05, 1e-5]
        other[1:] = np.maximum(other[1:], 0)
        assert error(*other) >= found.relative_error - 1e-12


@pytest.mark.parametrize(
    ("grid", "reason"),
    [
        ([(n, n * 4096.0) for n in (8, 16, 32, 64)], "move together"),
        ([(64, b) for b in (1e3, 1e4, 1e5)], "same number of operations"),
        ([(n, 1e4) for n in (8, 16, 32)], "same number of bytes"),
        ([(8, 1e3), (64, 1e5)], "2 runs cannot give 3 costs"),
        ([(1000, 1e6), (1001, 1.0001e6), (1001, 1e6), (1000, 1.0001e6)], "scaled condition"),
    ],
)
def test_runs_that_cannot_tell_costs_apart_are_refused_with_the_reason(grid, reason):
    found = fit(made(10, 0.5, 1e-5, grid))
    assert isinstance(found, Refusal)
    assert reason in found.reason


def test_as_many_runs_as_costs_give_no_interval():
    found = fit(made(10, 0.5, 1e-4, [(8, 1e5), (64, 1e3), (128, 2e5)]))
    assert isinstance(found, LogGP)
    assert found.latency_us.lo is None
