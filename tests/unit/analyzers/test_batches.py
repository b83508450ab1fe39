"""Intervals inside a run: coverage on autocorrelated steps, and means that stay additive."""

from __future__ import annotations

import numpy as np
import pytest

from efaprof.analyzers.batches import MIN_BATCHES, choose_batching, estimate


def autoregressive(rng, steps, phi):
    noise = rng.normal(size=steps)
    values = np.empty(steps)
    values[0] = noise[0] / np.sqrt(1 - phi**2)
    for step in range(1, steps):
        values[step] = phi * values[step - 1] + noise[step]
    return values + 100


def test_autocorrelated_steps_are_covered_as_often_as_promised():
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(300):
        values = autoregressive(rng, 600, 0.5)
        found = estimate(values, choose_batching(values))
        covered += found.lo <= 100 <= found.hi
    assert covered >= 0.88 * 300  # single steps would cover about 70 %


def test_independent_steps_keep_the_smallest_batch():
    batching = choose_batching(np.random.default_rng(1).normal(size=400))
    assert batching.batch_steps == 1
    assert batching.is_sound


def test_estimates_of_parts_add_up_to_the_estimate_of_the_whole():
    rng = np.random.default_rng(2)
    parts = rng.uniform(1, 9, size=(4, 101))
    batching = choose_batching(parts.sum(axis=0))
    total = sum(estimate(part, batching).value for part in parts)
    assert total == pytest.approx(estimate(parts.sum(axis=0), batching).value, rel=1e-12)


def test_few_steps_are_not_sound():
    batching = choose_batching(np.ones(MIN_BATCHES - 1))
    assert not batching.is_sound
    assert estimate(np.array([5.0]), choose_batching(np.array([5.0]))).lo is None


def test_steps_that_differ_by_rounding_alone_are_not_correlated():
    steady = np.full(60, 199.9) * np.where(np.arange(60) < 30, 1.0, 1 + 1e-15)
    found = choose_batching(steady)
    assert found.is_sound
    assert found.batch_steps == 1
