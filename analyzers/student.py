"""Quantiles of Student's t without scipy, whose import takes longer than the analysis of a small run."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import count
from statistics import NormalDist

_MOST_STEPS = 200
_SMALL = 1e-17  # of a sum: terms under it change nothing
_CENTRAL = 0.7  # t² / (ν + t²), up to which the series from the middle converges quickly
# Γ(a + 1/2) / (Γ(a) √a) in powers of 1/a, for large a.
_GAMMA_RATIO = (1.0, -1 / 8, 1 / 128, 5 / 1024, -21 / 32768, -399 / 262144, 869 / 4194304, 39325 / 33554432)
_LARGE = 64


@lru_cache(maxsize=256)
def t_quantile(probability: float, freedom: float) -> float:
    """Quantile of Student's t; `freedom` may be fractional."""
    if not (0 < probability < 1 and freedom > 0):
        return math.nan
    if probability < 0.5:
        return -t_quantile(1 - probability, freedom)
    # Up from the normal distribution's, whose tails are lighter: the distribution is concave there, so no step is too
    # long.
    t = NormalDist().inv_cdf(probability)
    for _ in range(_MOST_STEPS):
        step = (_upper_tail(t, freedom) - (1 - probability)) / _density(t, freedom)
        t += step
        if abs(step) <= 1e-15 * t:
            break
    return t


def _density(t: float, freedom: float) -> float:
    scale = _gamma_ratio(freedom / 2) / math.sqrt(freedom * math.pi)
    return scale * math.exp(-(freedom + 1) / 2 * math.log1p(t * t / freedom))


def _upper_tail(t: float, freedom: float) -> float:
    """Probability of more than t, which is at least 0."""
    half, square = freedom / 2, t * t
    inner = square / (freedom + square)
    if inner <= _CENTRAL:  # 2F1(half + 1/2, 1; 3/2; inner)
        total = term = 1.0
        for k in count():
            term *= (half + 0.5 + k) / (1.5 + k) * inner
            total += term
            if term <= _SMALL * total:
                return 0.5 - t * _density(t, freedom) * total
    outer, total, term = freedom / (freedom + square), 1 / half, 1.0
    for k in count(1):  # the incomplete beta function of (half, 1/2)
        term *= (k - 0.5) / k * outer
        total += term / (half + k)
        if term <= _SMALL * total:
            break
    return 0.5 * _gamma_ratio(half) / math.sqrt(math.pi) * math.pow(outer, half) * total


def _gamma_ratio(a: float) -> float:
    """Γ(a + 1/2) / Γ(a)."""
    factor = 1.0
    while a < _LARGE:
        factor *= a / (a + 0.5)
        a += 1
    return factor * math.sqrt(a) * sum(term / a**k for k, term in enumerate(_GAMMA_RATIO))
