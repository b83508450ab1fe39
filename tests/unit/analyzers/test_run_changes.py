"""The statistics between runs: against plain formulas, and by how often they are wrong on simulated runs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from efaprof.analyzers.diff import Margins, Outcome, judge
from efaprof.analyzers.run_changes import (
    MIN_RUNS,
    MOST_RUNS,
    adjusted,
    change_of,
    recommended_runs,
    smallest_detectable,
)

RNG_SEED = 20260628
EXPERIMENTS = 1_000
LAYERS = 11
STEP_FIRST = np.arange(1 + LAYERS) == 0


def test_change_and_p_are_welchs():
    rng = np.random.default_rng(RNG_SEED)
    first, second = rng.normal(5.0, 0.1, 4), rng.normal(5.1, 0.3, 7)
    found = change_of(first, second)
    expected = stats.ttest_ind(second, first, equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert found.value - found.half_width() == pytest.approx(interval.low)
    assert found.value + found.half_width() == pytest.approx(interval.high)
    one_sided = stats.ttest_ind(second, first, equal_var=False, alternative="greater")
    assert found.p_above(0.0) == pytest.approx(one_sided.pvalue)


def test_runs_without_noise_are_judged_by_their_sign_alone():
    same, more = np.zeros(3), np.full(3, 0.125)
    assert change_of(same, more).p_above(0.05) == 0
    assert change_of(same, more).p_above(0.125) == 1
    assert change_of(same, same).is_within(1e-9)
    assert not change_of(same, more).is_within(0.125)


def test_adjusted_p_values_are_those_of_benjamini_and_hochberg():
    p = np.array([[0.01, 0.04, 0.03, 0.9], [0.2, 0.2, 0.2, 0.2]])
    for row, found in zip(p, adjusted(p), strict=True):
        assert found == pytest.approx(stats.false_discovery_control(row))


def simulated(rng, runs, noise, *, step=1.0, layer=1.0):
    """Times (run, experiment, measure): the step and its layers, with noise of their own and one they share."""
    shared = rng.normal(0, noise, (runs, EXPERIMENTS, 1))
    own = rng.normal(0, 2 * noise, (runs, EXPERIMENTS, LAYERS))
    factors = np.ones(LAYERS)
    factors[0] = layer
    layers = np.exp(shared + own) * factors * 1000 / LAYERS
    return np.concatenate([step * 1000 * np.exp(shared), layers], axis=-1)


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.06])
@pytest.mark.parametrize("runs", [3, 5, 10])
def test_a_thousand_comparisons_of_a_with_a_give_few_false_alarms(noise, runs):
    rng = np.random.default_rng(RNG_SEED)
    judged = judge(simulated(rng, runs, noise), simulated(rng, runs, noise), is_step=STEP_FIRST, margins=Margins())
    alarms = (judged.outcome == Outcome.REGRESSION.value).any(axis=-1)
    assert alarms.mean() <= 0.05
    assert (judged.outcome == Outcome.IMPROVEMENT.value).any(axis=-1).mean() <= 0.05


@pytest.mark.parametrize("runs", [3, 10])
def test_even_at_the_margin_itself_alarms_stay_rare(runs):
    rng = np.random.default_rng(RNG_SEED)
    first = simulated(rng, runs, 0.02)
    second = simulated(rng, runs, 0.02, step=1.03, layer=1.10)
    judged = judge(first, second, is_step=STEP_FIRST, margins=Margins())
    assert (judged.outcome[:, 0] == Outcome.REGRESSION.value).mean() <= 0.05
    assert (judged.outcome[:, 1:] == Outcome.REGRESSION.value).any(axis=-1).mean() <= 0.05


@pytest.mark.parametrize("noise", [0.005, 0.01, 0.02])
def test_a_true_change_of_five_percent_is_found_with_as_many_runs_as_a_pilot_recommends(noise):
    rng = np.random.default_rng(RNG_SEED)
    pilot = [np.log(simulated(rng, MIN_RUNS, noise)[..., 0]) for _ in range(2)]
    change = change_of(*pilot)
    runs = recommended_runs(change.noise, change.noise_freedom, effect=0.05, margin=0.03)
    assert (runs > MOST_RUNS).mean() < 0.02
    found = []
    for count in np.unique(runs):
        here = int((runs == count).sum())
        first, second = (np.exp(rng.normal(0, noise, (min(count, MOST_RUNS), here, 1))) for _ in range(2))
        judged = judge(first, 1.05 * second, is_step=np.array([True]), margins=Margins())
        found.append(judged.outcome[:, 0] == Outcome.REGRESSION.value)
    assert np.concatenate(found).mean() >= 0.90
    assert np.median(runs) < 60  # a recommendation that nobody can follow is none


def test_what_is_called_detectable_is_detected_nine_times_in_ten():
    rng = np.random.default_rng(RNG_SEED)
    runs, noise = 12, 0.02
    pilot = change_of(rng.normal(0, noise, (runs, EXPERIMENTS)), rng.normal(0, noise, (runs, EXPERIMENTS)))
    effect = float(np.median(smallest_detectable(pilot, 0.03)))
    first, second = (np.exp(rng.normal(0, noise, (runs, EXPERIMENTS, 1))) for _ in range(2))
    judged = judge(first, (1 + effect) * second, is_step=np.array([True]), margins=Margins())
    assert 0.85 <= (judged.outcome == Outcome.REGRESSION.value).mean() <= 0.95


def test_more_noise_asks_for_more_runs_and_none_for_the_fewest():
    runs = recommended_runs(np.array([0.0, 0.005, 0.01, 0.02, 0.5]), 4, effect=0.05, margin=0.03)
    assert runs[0] == MIN_RUNS
    assert (np.diff(runs) > 0).all()
    assert runs[-1] == MOST_RUNS + 1


def test_a_layer_that_got_slower_is_the_one_that_is_named():
    rng = np.random.default_rng(RNG_SEED)
    judged = judge(
        simulated(rng, 8, 0.005), simulated(rng, 8, 0.005, layer=1.3), is_step=STEP_FIRST, margins=Margins()
    )  # fmt: skip
    is_named = judged.outcome == Outcome.REGRESSION.value
    assert is_named[:, 1].mean() >= 0.90
    assert is_named[:, 2:].any(axis=-1).mean() <= 0.05


def test_a_layer_of_no_weight_is_never_a_regression():
    first = np.array([[1000.0, 2.0]] * 3) * [[1.0], [1.001], [0.999]]
    judged = judge(first, first * [1.0, 4.0], is_step=np.array([True, False]), margins=Margins())
    assert list(judged.outcome) == [Outcome.UNCHANGED.value, Outcome.UNCHANGED.value]
