from __future__ import annotations

import math

import numpy as np
import pytest

from efaprof.analyzers.invariance import Outcome, flatness, hc3_slope, leverage
from efaprof.analyzers.load_points import load_points
from efaprof.analyzers.serving import Cell, CellKey, Format, Requests, Summary
from efaprof.trace.layers import Provenance


def cell(concurrency: int, wave_means, *, name="a") -> Cell:
    """A cell whose waves of identical requests have these means."""
    count = len(wave_means)
    start = np.repeat(np.arange(count) * 1_000_000_000, concurrency)
    itl = np.repeat(np.array(wave_means, float), concurrency)
    rows = Requests(itl, np.full(len(itl), 100.0), np.full(len(itl), 128), start, start + 990_000_000)
    summary = Summary(float(itl.mean()), float(itl.std()), len(itl))
    return Cell(CellKey(concurrency, 120, 128), f"{name}{concurrency}", Format.AIPERF_RECORDS, summary, requests=rows)


def sweep(loads, slope, noise, waves=12, seed=0):
    random = np.random.default_rng(seed)
    return load_points(
        [
            cell(load, 50 * np.exp(slope * math.log2(load / loads[0]) + noise * random.standard_normal(waves)))
            for load in loads
        ]
    )


def none_given(points, **options):
    lever = leverage(points, given_ops={}, predicted_ops=lambda load: 40.0 + load / 16, assumption="in a test")
    return flatness(points, lever, **options)


def test_a_flat_sweep_is_flat():
    found = none_given(sweep((4, 8, 16, 32), 0.0, 0.003))
    assert (found.outcome, found.is_within_tight, found.loads) == (Outcome.FLAT, True, (4, 8, 16, 32))


def test_a_small_real_slope_is_flat_and_significant():
    found = none_given(sweep((4, 8, 16, 32), 0.004, 0.001))
    assert found.outcome is Outcome.FLAT
    assert found.is_slope_significant
    assert found.change == pytest.approx(math.expm1(3 * 0.004), abs=0.002)


def test_a_steep_sweep_is_load_sensitive():
    found = none_given(sweep((4, 8, 16, 32), 0.05, 0.002))
    assert (found.outcome, found.is_within_tight) == (Outcome.LOAD_SENSITIVE, False)


def test_a_noisy_sweep_of_few_waves_is_inconclusive():
    assert none_given(sweep((4, 32), 0.0, 0.1, waves=3)).outcome is Outcome.INCONCLUSIVE


def test_the_margin_decides():
    points = sweep((4, 8, 16, 32), 0.01, 0.002)
    assert none_given(points, margin=0.05).outcome is Outcome.FLAT
    assert none_given(points, margin=0.02).outcome is Outcome.LOAD_SENSITIVE


def test_one_load_says_nothing():
    assert none_given(sweep((4,), 0.0, 0.003)) is None


def test_several_runs_of_a_load_lift_the_condition_and_are_the_unit():
    random = np.random.default_rng(2)
    cells = [
        cell(load, 50 + 0.05 * random.standard_normal(5), name=f"run{run}-") for load in (4, 32) for run in range(4)
    ]
    found = none_given(load_points(cells))
    assert (found.units, found.is_one_run_per_load, found.outcome) == (8, False, Outcome.FLAT)
    assert none_given(sweep((4, 32), 0.0, 0.003)).is_one_run_per_load


def test_summaries_enter_with_their_own_errors():
    def summary(load, mean, spread):
        return Cell(CellKey(load, 120, 128), f"s{load}", Format.AIPERF_SUMMARY, Summary(mean, spread, load * 20))

    found = none_given(load_points([summary(load, 50.0, 0.3) for load in (4, 8, 32)]))
    assert found.outcome is Outcome.FLAT
    wide = none_given(load_points([summary(load, 50.0, 12.0) for load in (4, 8, 32)]))
    assert wide.outcome is Outcome.INCONCLUSIVE
    unknown = none_given(load_points([summary(load, 50.0, None) for load in (4, 8, 32)]))
    assert (unknown.outcome, unknown.lo) == (Outcome.INCONCLUSIVE, None)


def test_hc3_error_is_the_textbook_sandwich():
    random = np.random.default_rng(9)
    x = np.repeat([2.0, 3.0, 5.0], (10, 8, 4))
    y = 0.01 * x + random.standard_normal(22) * (0.001 + 0.004 * (x > 4))
    design = np.column_stack((np.ones_like(x), x))
    bread = np.linalg.inv(design.T @ design)
    beta = bread @ design.T @ y
    hat = np.einsum("ij,jk,ik->i", design, bread, design)
    residual = (y - design @ beta) / (1 - hat)
    sandwich = bread @ (design.T * residual**2 @ design) @ bread
    found = hc3_slope(x, y)
    assert (found.value, found.error, found.freedom) == pytest.approx((beta[1], math.sqrt(sandwich[1, 1]), 20.0))


def test_tost_rarely_calls_a_margin_sized_change_flat():
    # At a true change of exactly the margin, TOST says flat in at most about 5 % of runs.
    slope = math.log(1.05) / 3
    flat = sum(none_given(sweep((4, 8, 16, 32), slope, 0.02, seed=seed)).outcome is Outcome.FLAT for seed in range(300))
    assert flat / 300 < 0.09


def test_unmeasured_operations_never_make_flatness_informative():
    points = sweep((4, 8, 32), 0.0, 0.001)
    lever = leverage(points, given_ops={}, predicted_ops=lambda load: load * 10.0, assumption="in a test")
    assert not lever.is_informative
    assert lever.provenance is Provenance.ASSUMED
    assert "proves nothing about the issue rate" in lever.statement


@pytest.mark.parametrize(("last", "is_informative"), [(3100.0, True), (2900.0, False)])
def test_measured_growth_of_half_is_needed(last, is_informative):
    points = sweep((4, 8, 32), 0.0, 0.001)
    lever = leverage(points, given_ops={4: 2000.0, 32: last}, predicted_ops=lambda _: 1.0, assumption="")
    assert (lever.is_informative, lever.provenance) == (is_informative, Provenance.MEASURED)
    assert lever.growth == pytest.approx(last / 2000 - 1)
    assert ("proves nothing" in lever.statement) is not is_informative
