"""Growth of counters that reset and wrap, against one that counts without end."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from efaprof.analyzers.growth import growth

STEPS = st.lists(st.integers(0, 2**30), min_size=1, max_size=20)


@given(st.integers(0, 2**40), STEPS)
def test_a_count_that_only_grows_grows_by_its_steps(start, steps):
    found = growth(np.cumsum([start, *steps], dtype=np.int64))
    assert found.steps.tolist() == steps
    assert found.total == sum(steps)
    assert not found.is_reset.any()
    assert not found.is_wrapped.any()


@given(st.integers(0, 2**32 - 1), STEPS)
def test_a_count_of_32_bits_grows_by_its_steps_when_each_is_under_a_quarter(start, steps):
    found = growth(np.cumsum([start, *steps], dtype=np.int64) % 2**32)
    assert found.steps.tolist() == steps
    assert int(found.is_wrapped.sum()) == (start + sum(steps)) // 2**32


@given(st.lists(st.lists(st.integers(1, 1000), min_size=1, max_size=5), min_size=1, max_size=5))
def test_after_a_reset_only_what_is_counted_since_is_known(lives):
    values, at = [0], 0
    for number, steps in enumerate(lives):
        at = at if number == 0 else 0
        for step in steps:
            at += step
            values.append(at)
    found = growth(np.array(values, np.int64))
    assert (found.steps >= 0).all()
    assert found.total <= sum(map(sum, lives))
    falls = sum(1 for before, now in itertools.pairwise(values) if now < before)
    assert int(found.is_reset.sum()) == falls


def test_one_sample_or_none_has_no_growth():
    assert growth(np.array([5], np.int64)).total == 0
    assert growth(np.array([], np.int64)).steps.size == 0
