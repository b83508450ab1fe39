"""Interval algebra against a set of integers, which cannot be wrong."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from efaprof.analyzers.intervals import EMPTY, count_until, covering, merge, subtract, union

PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def as_set(pairs):
    return {instant for begin, end in pairs for instant in range(begin, end)}


def as_union(pairs):
    array = np.array(pairs, np.int64).reshape(-1, 2)
    return union(array[:, 0], array[:, 1])


@given(PAIRS)
def test_union_covers_the_same_instants_as_its_intervals(pairs):
    found = as_union(pairs)
    assert found.covered_ns == len(as_set(pairs))
    assert np.all(found.begin[1:] > found.end[:-1])
    assert as_set(zip(found.begin, found.end, strict=True)) == as_set(pairs)


@given(PAIRS, st.tuples(st.integers(-5, 70), st.integers(0, 40)))
def test_window_holds_what_lies_inside_it(pairs, window):
    begin, length = window
    inside = as_set(pairs) & set(range(begin, begin + length))
    found = as_union(pairs).covered_within(np.array([begin], np.int64), np.array([begin + length], np.int64))
    assert found[0] == len(inside)


@given(PAIRS, PAIRS)
def test_subtract_leaves_what_the_other_lacks(one, other):
    found = subtract(as_union(one), as_union(other))
    assert as_set(zip(found.begin, found.end, strict=True)) == as_set(one) - as_set(other)
    assert covering(3, 9).covered_ns == 6


@given(PAIRS, PAIRS)
def test_merge_is_the_union_of_both(one, other):
    assert merge(as_union(one), as_union(other)).covered_ns == len(as_set(one) | as_set(other))


def test_empty_set_covers_nothing():
    assert EMPTY.covered_ns == 0
    assert EMPTY.covered_within(np.array([0]), np.array([9])).tolist() == [0]


@given(st.lists(st.integers(-40, 40), max_size=60), st.lists(st.integers(-45, 45), max_size=60))
def test_times_are_counted_in_whatever_order_they_are_asked_for(times, asked):
    ordered, wanted = np.array(sorted(times), np.int64), np.array(asked, np.int64)
    assert count_until(ordered, wanted).tolist() == [sum(one <= own for one in times) for own in asked]


@given(st.lists(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 9)), max_size=8), max_size=50))
def test_ordered_series_one_after_the_other_are_united_as_any_others(series):
    pairs = [(begin, begin + length) for own in series for begin, length in sorted(own)]
    found = as_union(pairs)
    assert as_set(zip(found.begin, found.end, strict=True)) == as_set(pairs)
    assert np.all(found.begin[1:] > found.end[:-1])
    asked = np.array([begin for begin, _ in reversed(pairs)], np.int64)
    inside = [len(as_set([(begin, begin + 20)]) & as_set(pairs)) for begin in asked.tolist()]
    assert found.covered_within(asked, asked + 20).tolist() == inside
