"""Groups of runs as values: order, comparability, layers that only one side has, too few runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from efaprof.analyzers.diff import HOST, MEDIAN, Margins, Outcome, RunMeasures, compare, differences, notes, start_order
from efaprof.analyzers.limits import STEP

BASE = RunMeasures(
    name="a",
    started_realtime_ns=0,
    wall_us=1000.0,
    median_us=990.0,
    layers_us={"compute": 600.0, "proxy": 400.0},
    host_us=100.0,
    verdict="issue-bound/proxy",
    comparable={"hidden": 1024},
    noted={"host": "here"},
)
JITTER = (0.999, 1.0, 1.002, 1.001)


def runs(count, factor=1.0, *, starts=None, **changes):
    made = []
    for number in range(count):
        by = JITTER[number % len(JITTER)] * factor
        one = replace(
            BASE,
            started_realtime_ns=starts[number] if starts else number,
            wall_us=BASE.wall_us * by,
            median_us=BASE.median_us * by,
            layers_us={name: us * by for name, us in BASE.layers_us.items()},
        )
        made.append(replace(one, **changes))
    return made


def outcomes(diff):
    return {one.name: one.outcome for one in diff.measures}


def test_the_step_comes_first_and_layers_and_the_hosts_part_follow():
    assert list(outcomes(compare(runs(3), runs(3)))) == [STEP, MEDIAN, "compute", "proxy", HOST]


def test_equal_runs_are_shown_to_be_unchanged():
    found = compare(runs(4), runs(4))
    assert found.outcome is Outcome.UNCHANGED
    assert set(outcomes(found).values()) == {Outcome.UNCHANGED}


def test_slower_and_faster_runs_are_told_apart():
    assert compare(runs(4), runs(4, 1.2)).outcome is Outcome.REGRESSION
    assert compare(runs(4, 1.2), runs(4)).outcome is Outcome.IMPROVEMENT


def test_the_margin_decides_what_is_a_change():
    assert compare(runs(4), runs(4, 1.04)).outcome is Outcome.REGRESSION
    assert compare(runs(4), runs(4, 1.04), Margins(step=0.05)).outcome is Outcome.UNCHANGED


def test_fewer_than_three_runs_a_side_show_nothing():
    found = compare(runs(2), runs(5, 2.0))
    assert set(outcomes(found).values()) == {Outcome.INCONCLUSIVE}
    assert found.measures[0].change == pytest.approx(1.0, abs=0.01)
    assert (found.measures[0].lo, found.noise, found.recommended) == (None, None, None)


def test_a_layer_that_only_one_side_has_is_named():
    with_ring = [replace(one, layers_us={**one.layers_us, "ring": 50.0 + at}) for at, one in enumerate(runs(3, 1.05))]
    found = compare(runs(3), with_ring)
    assert outcomes(found)["ring"] is Outcome.REGRESSION


def test_a_median_or_replay_that_one_run_lacks_is_left_out():
    found = compare(runs(3), [*runs(2), replace(BASE, median_us=None, host_us=None)])
    assert list(outcomes(found)) == [STEP, "compute", "proxy"]


@pytest.mark.parametrize(
    ("first", "second", "order", "is_interleaved"),
    [
        ([1, 4, 5], [2, 3, 6], "ABBAAB", True),
        ([1, 3, 5], [2, 4, 6], "ABABAB", True),
        ([1, 2, 3], [4, 5, 6], "AAABBB", False),
        ([1, 2, 3], [3, 5, 6], None, None),
    ],
)
def test_the_order_of_starts_says_whether_the_sides_were_interleaved(first, second, order, is_interleaved):
    found = compare(runs(3, starts=first), runs(3, starts=second))
    assert (found.order, found.is_interleaved) == (order, is_interleaved)
    assert start_order(found.first, found.second) == order


def test_keys_that_differ_are_named_with_their_values_unless_allowed():
    both = [BASE, replace(BASE, comparable={"hidden": 2048, "inject": {"proxy": 1}}, noted={"host": "there"})]
    assert differences(both) == {"hidden": [1024, 2048], "inject": [None, {"proxy": 1}]}
    assert differences(both, allowed=frozenset({"hidden", "inject"})) == {}
    assert notes(both) == {"host": ["here", "there"]}
