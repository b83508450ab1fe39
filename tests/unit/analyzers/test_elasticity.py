"""Elasticities come back from times made with them, and are refused where something else moved."""

from __future__ import annotations

import math

import numpy as np
import pytest

from efaprof.analyzers.elasticity import Axis, Point, elasticities, elasticity
from efaprof.analyzers.loggp import Refusal
from efaprof.analyzers.means import Mean
from efaprof.analyzers.rules import Feature
from efaprof.analyzers.verdict import decide

FIXED = {Axis.BYTES: 1e6, Axis.OPERATIONS: 64.0, Axis.PARALLELISM: 2.0, Axis.LOAD: 16.0}


def point(axes, *, time_us=None, powers=None, error=0.01, settings=None):
    """A run whose time is a product of powers of its axes."""
    at = FIXED | axes
    made = time_us if time_us is not None else math.prod(at[axis] ** power for axis, power in (powers or {}).items())
    return Point("run", Mean(made, None if error is None else error * made, None if error is None else 9.0), at,
                 settings or {})  # fmt: skip


def swept(axis, values, powers, **more):
    return [point({axis: value}, powers=powers, **more) for value in values]


@pytest.mark.parametrize("axis", list(Axis))
@pytest.mark.parametrize("power", [0.0, 0.35, 1.0, -0.5])
def test_the_power_that_made_the_times_comes_back(axis, power):
    found = elasticity(swept(axis, (4, 8, 16), {axis: power}), axis)
    assert isinstance(found, Feature)
    assert found.name == f"elasticity_{axis}"
    assert found.value == pytest.approx(power, abs=1e-12)
    assert found.lo < power < found.hi


def test_cells_of_a_grid_keep_their_own_level():
    powers = {Axis.OPERATIONS: 0.7, Axis.BYTES: 0.2}
    grid = [point({Axis.OPERATIONS: n, Axis.BYTES: b}, powers=powers) for n in (32, 64, 128) for b in (1e5, 1e6)]
    features, refused = elasticities(grid)
    assert features["elasticity_operations"].value == pytest.approx(0.7)
    assert features["elasticity_bytes"].value == pytest.approx(0.2)
    assert set(refused) == {Axis.PARALLELISM, Axis.LOAD}


def test_payload_that_grows_with_the_operations_is_refused_by_name():
    runs = [point({Axis.OPERATIONS: n, Axis.BYTES: n * 4096.0}, time_us=float(n)) for n in (16, 32, 64)]
    found = elasticity(runs, Axis.OPERATIONS)
    assert isinstance(found, Refusal)
    assert found.reason == "bytes moved with operations"


def test_load_may_move_what_it_consists_of():
    runs = [
        point({Axis.LOAD: c, Axis.OPERATIONS: 8 + 2 * c, Axis.BYTES: c * 4096.0}, time_us=100.0) for c in (4, 8, 32)
    ]
    found = elasticity(runs, Axis.LOAD)
    assert isinstance(found, Feature)
    assert found.value == pytest.approx(0)


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        (swept(Axis.OPERATIONS, (64,), {Axis.OPERATIONS: 1}), "one run"),
        (swept(Axis.OPERATIONS, (64, 70), {Axis.OPERATIONS: 1}), "factor of 1.09"),
        (swept(Axis.OPERATIONS, (32, 64), {Axis.OPERATIONS: 1}, error=None), "no interval"),
        ([point({Axis.LOAD: 0}), point({})], "does not say its load"),
        ([point({Axis.OPERATIONS: 9}, time_us=0.0), point({})], "no communication time"),
        (
            [
                point({Axis.OPERATIONS: 32}, time_us=1.0, settings={"topk": 4}),
                point({}, time_us=2.0, settings={"topk": 8}),
            ],
            "also differ in topk",
        ),
    ],
)
def test_runs_that_cannot_tell_are_refused(runs, reason):
    found = elasticity(runs, Axis.OPERATIONS)
    assert isinstance(found, Refusal)
    assert reason in found.reason


def test_one_run_per_level_is_said():
    once = elasticity(swept(Axis.OPERATIONS, (32, 64, 128), {Axis.OPERATIONS: 1}), Axis.OPERATIONS)
    twice = elasticity(swept(Axis.OPERATIONS, (32, 64, 32, 64), {Axis.OPERATIONS: 1}), Axis.OPERATIONS)
    assert isinstance(once, Feature) and isinstance(twice, Feature)
    assert "one run per level" in once.note
    assert "one run per level" not in twice.note


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    random = np.random.default_rng(3)
    covered = 0
    for _ in range(300):
        runs = [
            point({Axis.OPERATIONS: n}, time_us=n**0.6 * math.exp(random.normal(0, 0.03)), error=0.001)
            for n in (32, 32, 64, 64, 128, 128)
        ]
        found = elasticity(runs, Axis.OPERATIONS)
        assert isinstance(found, Feature)
        covered += found.lo <= 0.6 <= found.hi
    assert 270 <= covered <= 300


def test_wire_rate_needs_operations_to_cost_and_lanes_not_to_matter_once_that_is_known():
    at = {"message_rate": Feature("message_rate", 0.9, 0.85, 0.95), "utilisation_active": Feature("u", 0.1, 0.1, 0.1)}

    def path(**more):
        return decide(at | {name: Feature(name, lo, lo, hi) for name, (lo, hi) in more.items()}).path

    assert path() == "wire-bound/rate"
    assert path(elasticity_operations=(0.8, 0.9), elasticity_parallelism=(-0.04, 0.04)) == "wire-bound/rate"
    assert path(elasticity_operations=(0.1, 0.2)) == "inconclusive"
    assert path(elasticity_operations=(0.8, 0.9), elasticity_parallelism=(-0.4, -0.3)) == "inconclusive"
    assert path(elasticity_operations=(0.8, 0.9), elasticity_parallelism=(0.02, 0.3)) == "inconclusive"
