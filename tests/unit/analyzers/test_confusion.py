"""The verdict on synthetic steps with a known bottleneck: the right name or none (long form: bench/confusion.py)."""

from __future__ import annotations

import numpy as np
import pytest
from verdict_cases import (
    COMPUTE_NS,
    LABELS,
    LAYERS,
    OPERATIONS,
    Cases,
    draw,
    gains,
    judged,
    noisy,
    score,
    simulate,
)  # fmt: skip

from efaprof.analyzers.verdict import decide

CASES = 100
SEED = 77  # thresholds were looked at on others
MOST_WRONG = 0.01
LEAST_RIGHT = 0.95


@pytest.mark.parametrize("label", LABELS)
def test_a_dominant_bottleneck_is_named_when_a_sweep_is_there(label):
    found = score(*judged(label, CASES, SEED, is_swept=True))
    assert found.cases > 0.9 * CASES
    assert found.right >= LEAST_RIGHT * found.cases, found.labels
    assert found.wrong <= MOST_WRONG * found.cases, found.labels


@pytest.mark.parametrize("label", LABELS)
def test_one_run_alone_names_it_or_abstains(label):
    found = score(*judged(label, CASES, SEED))
    assert found.wrong <= MOST_WRONG * found.cases, found.labels
    assert found.right >= LEAST_RIGHT * found.cases, found.labels


@pytest.mark.parametrize("is_swept", [False, True])
def test_a_proxy_in_front_of_an_equally_slow_nic_is_not_issue_bound(is_swept):
    measured, saved = judged("proxy as slow as the NIC", CASES, SEED, is_swept=is_swept)
    assert "issue-bound" not in {decide(known).path for known in measured}
    assert score(measured, saved).abstained >= 0.5 * CASES


@pytest.mark.parametrize("is_swept", [False, True])
def test_random_services_without_dominance_are_seldom_named_wrong(is_swept):
    found = score(*judged("anything", 3 * CASES, SEED, is_swept=is_swept))
    assert found.wrong <= MOST_WRONG * found.cases, found.labels
    assert found.right >= 0.7 * found.cases, found.labels


def one_case(**services):
    row = dict.fromkeys(("late", "kernel", "ring", "proxy", "libfabric", "gap", "wire", "latency", "rx", "poll"), 0.0)
    made = {name: np.full((1, 1), value) for name, value in (row | services).items()}
    return Cases(made, np.zeros(1, int), np.full(1, 256))


def test_the_simulation_has_the_closed_form_of_a_slow_proxy():
    services = {"kernel": 300.0, "ring": 1000.0, "proxy": 700.0, "libfabric": 900.0, "latency": 12_000.0, "rx": 400.0,
                "poll": 200.0}  # fmt: skip
    wall = simulate(one_case(**services)).wall.item()
    assert wall == COMPUTE_NS + 300 + 1000 + OPERATIONS * 1600 + 12_000 + 400 + 200


def test_parts_of_the_path_sum_to_the_step_and_halving_a_part_saves_no_more_than_half_of_it():
    random = np.random.default_rng(5)
    cases = noisy(draw("anything", 50, random), random)
    trace = simulate(cases, is_traced=True)
    np.testing.assert_allclose(trace.parts.sum(0), trace.wall)
    part = dict(zip(LAYERS, trace.parts.mean(axis=2), strict=True))
    saved = dict(zip(LABELS, gains(cases), strict=True))
    assert (saved["skew-bound"] <= part["skew"] / 2 + 1e-6).all()
    assert (saved["receiver-bound"] <= (part["rx"] + part["poll"]) / 2 + 1e-6).all()
    assert min(one.min() for one in saved.values()) >= 0
