"""Quality tests fail on the number that they are about, and name the cause before the symptom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from efaprof.analyzers.batches import Batching
from efaprof.analyzers.quality import Defect, RunFacts, failed_tests

GOOD = RunFacts(
    coverage=0.999,
    batching=Batching(1, 300, 0.05),
    drift=None,
    lost=0.0,
    unexplained=0.0,
    run_delay=0.01,
    throttled=0.0,
)


def test_a_good_run_fails_nothing():
    assert failed_tests(GOOD) == ()


@pytest.mark.parametrize(
    ("change", "defect"),
    [
        ({"coverage": 0.94}, Defect.DATA),
        ({"lost": 0.002}, Defect.DATA),
        ({"unexplained": 0.002}, Defect.DATA),
        ({"batching": Batching(1, 9, 0.0)}, Defect.DATA),
        ({"batching": Batching(8, 12, 0.4)}, Defect.DATA),
        ({"drift": -0.2}, Defect.DATA),
        ({"run_delay": 0.2}, Defect.OVERSUBSCRIBED),
        ({"throttled": 0.02}, Defect.THROTTLED),
    ],
)
def test_each_limit_is_tested(change, defect):
    found = failed_tests(replace(GOOD, **change))
    assert [failed.defect for failed in found] == [defect]


def test_what_nobody_measured_cannot_fail():
    assert failed_tests(replace(GOOD, run_delay=None, throttled=None)) == ()


def test_the_machine_is_named_before_what_it_does_to_the_steps():
    found = failed_tests(replace(GOOD, run_delay=0.4, batching=Batching(8, 12, 0.7), drift=0.3))
    assert found[0].defect is Defect.OVERSUBSCRIBED
    assert "40.0%" in found[0].reason
