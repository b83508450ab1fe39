"""Which completion ends which post, against a matcher that takes one event at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from efaprof.trace.fifo import by_queue, pair, queue_id

EVENTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=80)


def one_by_one(events):
    waiting, depth_ok, pairs, orphans, alone = {}, {}, [], [], {}
    for at, (group, context, is_post) in enumerate(events):
        queue = waiting.setdefault((group, context), [])
        if is_post:
            queue.append(at)
            alone[at] = len(queue) == 1
            for other in queue[:-1]:
                depth_ok[other] = False
            depth_ok[at] = len(queue) == 1
        elif queue:
            post = queue.pop(0)
            pairs.append((post, at, depth_ok[post]))
        else:
            orphans.append(at)
    left = sorted(post for queue in waiting.values() for post in queue)
    return sorted(pairs), orphans, left, [alone[post] for post in left]


def paired(events, is_shared=None):
    is_post = np.array([event[2] for event in events], np.bool_)
    rows = np.concatenate([np.flatnonzero(is_post), np.flatnonzero(~is_post)])
    group = np.array([event[0] for event in events], np.int64)[rows]
    context = np.array([event[1] for event in events], np.uint64)[rows]
    posts = int(is_post.sum())
    found = pair(queue_id(group, context), np.argsort(rows), posts, is_shared)
    post, completion = rows[found.post], rows[posts + found.completion]
    return (
        sorted(zip(post.tolist(), completion.tolist(), found.is_exact.tolist(), strict=True)),
        rows[posts + found.orphan].tolist(),
        rows[found.waiting].tolist(),
        found.was_alone.tolist(),
    )


@given(EVENTS)
def test_pairs_are_those_of_a_matcher_that_takes_one_event_at_a_time(events):
    assert paired(events) == one_by_one(events)


def test_two_posts_of_one_context_are_first_in_first_out_and_not_exact():
    pairs, orphans, waiting, _ = paired([(0, 7, True), (0, 7, True), (0, 7, False), (0, 7, False)])
    assert pairs == [(0, 2, False), (1, 3, False)]
    assert orphans == waiting == []


def test_a_carried_post_that_was_not_alone_stays_inexact():
    pairs, *_ = paired([(0, 7, True), (0, 7, False)], np.array([True]))
    assert pairs == [(0, 1, False)]


def test_queues_that_share_their_sorted_bits_are_told_apart():
    same_top = np.array([5, 6, 5, 6], np.uint64)  # differ only below the bits that rows are packed into
    order, first = by_queue(same_top)
    assert same_top[order].tolist() == [5, 5, 6, 6]
    assert order.tolist() == [0, 2, 1, 3]
    assert first.tolist() == [True, False, True, False]


def test_contexts_of_one_group_never_share_a_queue():
    contexts = np.arange(100_000, dtype=np.uint64) * np.uint64(64) + np.uint64(0x7F00_0000_0000)
    assert len(np.unique(queue_id(np.zeros(len(contexts), np.int64), contexts))) == len(contexts)
