from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from efaprof.analyzers.means import Mean, difference, from_interval


def test_difference_is_welchs():
    random = np.random.default_rng(3)
    first, second = random.normal(50, 1, 11), random.normal(36, 3, 7)
    found = difference(*(Mean(x.mean(), x.std(ddof=1) / math.sqrt(len(x)), len(x) - 1.0) for x in (first, second)))
    interval = found.interval()
    expected = stats.ttest_ind(first, second, equal_var=False)
    assert found.freedom == pytest.approx(expected.df)
    assert (interval.lo, interval.hi) == pytest.approx(tuple(expected.confidence_interval(0.95)))


def test_one_unit_has_a_value_and_no_interval():
    found = difference(Mean(50.0, None, None), Mean(36.0, 0.1, 9.0))
    assert found.value == 14.0
    assert found.interval().lo is None


def test_equal_spreads_of_zero_give_an_interval_of_zero_width():
    interval = difference(Mean(50.0, 0.0, 3.0), Mean(36.0, 0.0, 3.0)).interval()
    assert (interval.lo, interval.hi) == (14.0, 14.0)


def test_a_printed_interval_is_read_back():
    mean = Mean(12.0, 0.25, 9.0)
    interval = mean.interval()
    back = from_interval(interval.value, interval.lo, interval.hi, 10)
    assert (back.error, back.freedom) == pytest.approx((0.25, 9.0))
    assert from_interval(12.0, None, None, 10).error is None
    assert from_interval(12.0, 11.0, 13.0, 1).error is None
