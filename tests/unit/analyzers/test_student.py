from __future__ import annotations

import math

import pytest
from scipy import stats

from efaprof.analyzers.student import t_quantile


@pytest.mark.parametrize("freedom", [0.7, 1, 2.5, 9, 17.98, 127.9, 300, 312_499, 1e7])
@pytest.mark.parametrize("probability", [0.51, 0.6, 0.9, 0.95, 0.975, 0.995, 0.9999])
def test_t_quantile_is_scipys(freedom, probability):
    assert t_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-11)
    assert t_quantile(1 - probability, freedom) == pytest.approx(stats.t.ppf(1 - probability, freedom), rel=1e-11)


def test_t_quantile_of_no_distribution_is_none():
    assert all(math.isnan(t_quantile(*given)) for given in [(0.9, 0), (0.9, -1), (1.0, 5), (0.9, math.nan)])


def test_the_median_is_zero():
    assert t_quantile(0.5, 3.0) == 0.0
