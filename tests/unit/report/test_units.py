"""Numbers as people read them."""

from __future__ import annotations

import pytest

from efaprof.report import units


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.03, "0.030"), (5.972, "5.97"), (35.105, "35.1"), (14343.8, "14 344"), (999.6, "1 000")],
)
def test_digits_keep_three_figures_and_never_an_exponent(value, text):
    assert units.digits(value) == text


def test_units_fit_the_size_of_the_number():
    assert units.duration(31) == "31 ns"
    assert units.duration(253_900) == "254 µs"
    assert units.duration(6_250_000_000) == "6.25 s"
    assert units.size(8) == "8 B"
    assert units.size(16_384_008) == "16.4 MB"
    assert units.rate(20_398.4, "op") == "20.4 kop/s"
    assert units.rate(29.1, "op") == "29.1 op/s"
    assert units.whole(1_204_331) == "1 204 331"


def test_only_all_is_all():
    assert units.percent(1.0) == "100.0 %"
    assert units.percent(0.99999) == "99.9 %"
    assert units.percent(0.706) == "70.6 %"


def test_a_bar_is_as_long_as_its_share():
    assert units.bar(1.0, width=4) == "████"
    assert units.bar(0.5, width=4) == "██"
    assert units.bar(0.28, width=4) == "█▏"
    assert units.bar(0.0, width=4) == ""
    assert units.bar(7.0, width=4) == "████"
