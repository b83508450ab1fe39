from __future__ import annotations

import pytest

from efaprof.analyzers.rates import PUBLISHED_TAX_MS, prints_as, tax_of_rates
from efaprof.errors import UsageError


def test_the_published_rates_give_14_789_and_not_14_7():
    tax = tax_of_rates("19.6", "27.6")
    assert round(tax.tax_ms, 3) == 14.789
    assert (round(tax.lowest_ms, 2), round(tax.highest_ms, 2)) == (14.59, 14.98)
    assert not prints_as(tax.tax_ms, PUBLISHED_TAX_MS)
    assert prints_as(tax.tax_ms, "14.8")


def test_more_digits_leave_less_room():
    tax = tax_of_rates("19.268", "28.064")
    assert tax.highest_ms - tax.lowest_ms < 0.01
    assert tax.ratio == pytest.approx(0.687, abs=5e-4)


@pytest.mark.parametrize("text", ["", "fast", "0", "-3", "nan", "inf", "0.04e1x"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(UsageError):
        tax_of_rates(text, "27.6")
