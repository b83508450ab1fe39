"""Interventions support, refute or say nothing; the higher grade wins and contradictions are named (METHOD §3)."""

from __future__ import annotations

import numpy as np
import pytest

from efaprof.analyzers.interventions import (
    LABELS,
    Intervention,
    Reading,
    WaitShare,
    effects,
    judge,
    paired,
    ratio,
    settle,
)
from efaprof.analyzers.student import t_quantile
from efaprof.errors import NothingToAnalyse


def pairs(saved, *, op="combine", target="kernel", before=480.7, removed=0.73, lever="fewer doorbells", config="a"):
    return [Intervention(lever, target, op, before, before - one, 1, True, config, removed) for one in saved]


def test_native_combine_refutes_issue_bound():
    found = judge("combine", interventions=pairs([7.2, -6.1]))
    assert (found.path, found.grade) == ("refuted: issue-bound", "E3")
    (effect,) = found.effects
    # Two pairs: t with one degree of freedom, wide, yet below the 105 µs that 73 % of 30 % would be.
    assert effect.saved_us.hi == pytest.approx(0.55 + t_quantile(0.975, 1) * 13.3 / 2)
    assert effect.saved_us.hi < 0.73 * 0.30 * 480.7
    assert found.contradictions == ()


def test_cached_dispatch_that_waits_for_nine_tenths_is_receiver_bound_by_shares():
    found = judge("cached_dispatch", waits=[WaitShare("cached_dispatch", 0.8996, 1 / 9.96, "a")])
    assert (found.path, found.grade) == ("receiver-bound", "E1")


def test_a_flat_load_curve_alone_is_inconclusive():
    curve = [Reading("dispatch", "proxy", us, "a", load) for load, us in ((4, 300.0), (8, 300.4), (32, 299.8))]
    found = judge("dispatch", readings=curve)
    assert (found.path, found.grade) == ("inconclusive", None)
    assert found.next_experiment


def test_times_of_two_configurations_are_not_comparable():
    native, proxy = Reading("dispatch", "gdaki", 338.5, "a"), Reading("dispatch", "proxy", 185.4, "b")
    with pytest.raises(NothingToAnalyse, match=r"338.5 µs and proxy 185.4 µs are not comparable: config_hash a and b"):
        ratio(native, proxy)
    assert ratio(native, Reading("dispatch", "proxy", 391.6, "a")) == pytest.approx(338.5 / 391.6)


@pytest.mark.parametrize("target", list(LABELS))
def test_a_saving_of_thirty_percent_supports_the_label_of_its_layer(target):
    found = judge("combine", interventions=pairs([170, 165, 172], target=target, removed=None))
    assert (found.path, found.grade) == (LABELS[target], "E3")


def test_without_the_part_removed_nothing_is_refuted():
    found = judge("combine", interventions=pairs([0.1, -0.1, 0.0], removed=None))
    assert found.path == "inconclusive"
    assert "not known" in found.effects[0].reason


def test_one_pair_decides_nothing():
    found = judge("combine", interventions=pairs([300]))
    assert found.path == "inconclusive"
    assert "one pair" in found.effects[0].reason


def test_invalid_rows_and_other_operations_are_left_out_and_configurations_not_pooled():
    rows = [*pairs([7.2]), *pairs([-6.1], config="b"), *pairs([1.0], op="dispatch")]
    rows.append(Intervention("fewer doorbells", "kernel", "combine", 480.7, 1.0, 1, False, "a", 0.73))
    assert [(one.config_hash, one.pairs) for one in effects(rows, "combine")] == [("a", 1), ("b", 1)]


def test_an_intervention_overrules_the_recording_and_says_so():
    refuting = effects(pairs([1.0, -1.0, 0.5]), "combine")
    found = settle("combine", "issue-bound", "E2", refuting)
    assert (found.path, found.grade) == ("refuted: issue-bound", "E3")
    assert found.contradictions == ("E2 said issue-bound, E3 refutes issue-bound",)
    supporting = effects(pairs([200, 201, 202], target="rx"), "combine")
    found = settle("combine", "issue-bound", "E2", supporting)
    assert (found.path, found.grade) == ("receiver-bound", "E3")
    assert found.contradictions == ("E2 said issue-bound, E3 supports receiver-bound",)


def test_an_intervention_that_agrees_raises_the_grade_and_keeps_the_finer_label():
    found = settle("combine", "wire-bound/rate", "E1", effects(pairs([200, 201, 202], target="nic"), "combine"))
    assert (found.path, found.grade, found.contradictions) == ("wire-bound/rate", "E3", ())


def test_refuting_another_label_leaves_the_verdict():
    found = settle("combine", "receiver-bound", "E2", effects(pairs([1.0, -1.0, 0.5]), "combine"))
    assert (found.path, found.grade, found.contradictions) == ("receiver-bound", "E2", ())


def test_interventions_against_each_other_are_not_averaged():
    rows = [*pairs([200, 201, 202], lever="no proxy"), *pairs([1.0, -1.0, 0.5])]
    found = judge("combine", interventions=rows)
    assert found.path == "inconclusive"
    assert "both support and refute" in found.contradictions[0]


@pytest.mark.parametrize("count", [2, 5, 8, 20])
def test_paired_intervals_cover_the_truth_about_as_often_as_they_say(count):
    draws = np.random.default_rng(count).normal(3, 2, (400, count))
    found = [paired(draw) for draw in draws]
    covered = sum(one.lo <= 3 <= one.hi for one in found if one.lo is not None and one.hi is not None)
    assert 0.92 * 400 <= covered <= 400


def test_one_wild_pair_of_many_does_not_hide_the_others():
    found = paired(np.array([10.0, 10.2, 9.9, 10.1, 10.0, 9.8, 10.3, 10.1, 9.9, 5000.0]))
    assert found.lo is not None and found.hi is not None
    assert 9.5 < found.lo <= found.value <= 10.6
