from __future__ import annotations

import pytest
from tax_samples import cell, report

from efaprof.analyzers.load_points import load_points
from efaprof.analyzers.tax import TaxOptions, compare
from efaprof.errors import NothingToAnalyse, UsageError


def test_tax_is_the_difference_of_means_with_a_welch_interval():
    tax = report([cell(51.9)], [cell(35.6)], moe_layers=48).taxes[0]
    assert tax.mean.value == pytest.approx(16.3)
    assert tax.ratio == pytest.approx(35.6 / 51.9)
    assert tax.mean.freedom == pytest.approx(18.0)
    assert tax.per_layer_us.value == pytest.approx(16300 / 48)
    assert tax.per_layer_us.hi - tax.per_layer_us.lo == pytest.approx(
        (tax.mean.interval().hi - tax.mean.interval().lo) * 1000 / 48
    )


def test_another_session_is_refused_and_says_how_far_it_is():
    with pytest.raises(NothingToAnalyse, match=r"14\.0 days apart") as refusal:
        report([cell(51.9, session_h=14 * 24)], [cell(35.6)])
    assert refusal.value.exit_code == 5
    assert "--extrapolate" in refusal.value.hint


def test_the_session_window_is_the_users():
    cells = [cell(51.9, session_h=30)], [cell(35.6)]
    with pytest.raises(NothingToAnalyse):
        report(*cells)
    assert report(*cells, session_window_h=31.0).taxes[0].extrapolated == ()


def test_an_unknown_session_is_refused():
    with pytest.raises(NothingToAnalyse, match="does not say when it ran"):
        report([cell(51.9, session_h=None)], [cell(35.6)])


def test_a_missing_load_is_refused_and_named():
    with pytest.raises(NothingToAnalyse, match="dense has no cell at conc 8"):
        report([cell(51.9), cell(52.0, concurrency=8)], [cell(35.6)])


def test_other_lengths_are_another_cell():
    with pytest.raises(NothingToAnalyse, match="no cell at"):
        report([cell(51.9, lengths=(1024, 128))], [cell(35.6)])


def test_extrapolation_takes_the_nearest_load_and_says_why():
    found = report(
        [cell(52.0, concurrency=8, session_h=100)],
        [cell(35.6), cell(40.0, concurrency=64)],
        may_extrapolate=True,
    )
    assert found.taxes[0].mean.value == pytest.approx(52.0 - 35.6)
    assert len(found.taxes[0].extrapolated) == 2


def test_without_a_baseline_there_are_cells_and_no_tax():
    found = compare({"shim": load_points([cell(51.8)]), "seam": load_points([cell(53.4)])}, TaxOptions())
    assert (found.baseline, found.taxes) == (None, ())


def test_a_baseline_that_is_no_arm_is_a_usage_error():
    with pytest.raises(UsageError, match="no arm"):
        report([cell(51.9)], [cell(35.6)], baseline="other")


def test_any_arm_can_be_the_baseline():
    assert report([cell(51.9)], [cell(35.6)], baseline="deepep").taxes[0].mean.value == pytest.approx(-16.3)


def test_a_summary_without_spread_has_a_tax_without_interval():
    interval = report([cell(51.9, std=None)], [cell(35.6)]).taxes[0].mean.interval()
    assert (interval.value, interval.lo) == (pytest.approx(16.3), None)


def test_different_models_are_warned_of():
    found = report([cell(51.9, model="a")], [cell(35.6, model="b")])
    assert any("different models" in warning for warning in found.warnings)


def test_points_of_other_lengths_are_left_out_of_the_sweep_by_name():
    arm = [cell(50.0), cell(50.0, concurrency=8), cell(60.0, concurrency=16, lengths=(4096, 128))]
    found = compare({"shim": load_points(arm)}, TaxOptions())
    assert found.invariance["shim"].loads == (4, 8)
    assert any("left out of load invariance" in warning for warning in found.warnings)


def test_given_operations_make_leverage_measured():
    arm = [cell(50.0), cell(50.0, concurrency=8)]
    found = compare({"shim": load_points(arm)}, TaxOptions(ops_per_step={4: 1000.0, 8: 2000.0}))
    assert found.invariance["shim"].leverage.is_informative
