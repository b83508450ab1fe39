"""Active time and outstanding operations, against counting at every instant."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from efaprof.analyzers.activity import ActiveTime, Outstanding

SPANS = st.lists(st.tuples(st.integers(0, 100), st.integers(1, 40)), min_size=1, max_size=40).map(sorted)
CUTS = st.lists(st.integers(0, 40), max_size=3).map(sorted)


def in_parts(spans, cuts):
    edges = [0, *[cut for cut in cuts if cut < len(spans)], len(spans)]
    return [spans[a:b] for a, b in itertools.pairwise(edges)]


@given(SPANS, CUTS)
def test_active_time_is_the_number_of_instants_that_something_covers(spans, cuts):
    active = ActiveTime()
    for part in in_parts(spans, cuts):
        active.add(np.array([b for b, _ in part], np.int64), np.array([b + n for b, n in part], np.int64))
    covered = {t for b, n in spans for t in range(b, b + n)}
    assert active.active_ns == len(covered)
    assert (active.first_ns, active.last_ns) == (spans[0][0], max(b + n for b, n in spans))


@given(SPANS, CUTS, st.sets(st.integers(0, 39)))
def test_highest_is_the_most_open_at_any_post(spans, cuts, never):
    outstanding = Outstanding()
    at = 0
    for part in in_parts(spans, cuts):
        is_open = np.array([i in never for i in range(at, at + len(part))], np.bool_)
        at += len(part)
        outstanding.add(np.array([b for b, _ in part], np.int64), np.array([b + n for b, n in part], np.int64), is_open)
    ends = [float("inf") if i in never else b + n for i, (b, n) in enumerate(spans)]
    highest = max(
        sum(other <= i and ends[other] > spans[i][0] for other in range(len(spans))) for i in range(len(spans))
    )
    assert outstanding.highest == highest
    assert outstanding.summed_ns == sum(n for i, (_, n) in enumerate(spans) if i not in never)


def test_nothing_was_never_active():
    active = ActiveTime()
    active.add(np.empty(0, np.int64), np.empty(0, np.int64))
    assert (active.active_ns, active.first_ns, active.last_ns) == (0, None, None)
