"""In flight at post: a queue in the NIC grows with it, a latency does not, and the window's limit is seen."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from efaprof.analyzers.batches import Batching
from efaprof.analyzers.outstanding import outstanding_features, step_outstanding
from efaprof.trace.widerow import DispatchChunk

STEPS, COMMANDS, STEP_NS = 20, 32, 1_000_000
BATCHING = Batching(1, STEPS, 0.0)


def chunk(post_gap, nic_gap, latency, *, window=None, ring=0):
    """Steps of posts `post_gap` apart into a NIC that takes one each `nic_gap` and needs `latency` more."""
    rows = []
    for step in range(STEPS):
        free = STEP_NS * step
        told = []
        for number in range(COMMANDS):
            seen = returned = STEP_NS * step + number * post_gap
            if window and number >= window:
                returned = max(seen, told[number - window])
            free = max(free, returned) + nic_gap
            done = free + latency + (7 * number + step) % 5
            told.append(done)
            rows.append((0, ring, step, step * COMMANDS + number, seen, returned, done, done))
    names = ("rank", "ring", "step", "seq", "seen_ns", "return_ns", "done_ns", "told_ns")
    empty = pl.DataFrame()
    return DispatchChunk(empty, pl.DataFrame(rows, schema=names, orient="row"), empty, empty)


def known(made, window=None):
    return outstanding_features(step_outstanding(made, window).sort("step"), BATCHING)


def test_a_nic_that_serves_slower_than_it_is_given_grows():
    found = known(chunk(100, 1_000, 2_000))
    assert found["nic_grows_with_outstanding"].value == 1


def test_a_long_flight_does_not_grow():
    found = known(chunk(1_000, 100, 200_000))
    assert found["nic_grows_with_outstanding"].value == 0


def test_operations_that_never_meet_do_not_grow_and_are_one_of_the_window():
    found = known(chunk(10_000, 100, 1_000), window=64)
    assert found["nic_grows_with_outstanding"].value == 0
    assert found["outstanding_over_limit"].value == pytest.approx(1 / 64)
    assert found["at_window_limit"].value == 0


def test_a_full_window_is_seen():
    found = known(chunk(100, 100, 50_000, window=8), window=8)
    assert found["at_window_limit"].value == pytest.approx((COMMANDS - 8) / COMMANDS)
    assert found["at_window_limit"].lo >= 0.5
    assert found["outstanding_over_limit"].value > 0.5


def test_in_flight_is_counted_as_by_hand():
    made = chunk(1_000, 2_000, 5_000)
    rows = made.operations
    counted = step_outstanding(made, None).sort("step")["in_flight"].to_numpy()
    returned, done = rows["return_ns"].to_numpy(), rows["done_ns"].to_numpy()
    by_hand = [(returned <= at).sum() - (done <= at).sum() for at in returned]
    assert counted.tolist() == np.array(by_hand, float).reshape(STEPS, COMMANDS).sum(axis=1).tolist()


def test_rings_have_windows_of_their_own():
    first, second = chunk(100, 100, 50_000, window=8), chunk(100, 100, 50_000, window=8, ring=1)
    both = DispatchChunk(first.steps, pl.concat([first.operations, second.operations]), first.waits, first.computes)
    one, two = known(first, window=8), known(both, window=8)
    assert two["outstanding_over_limit"].value == pytest.approx(one["outstanding_over_limit"].value)
    assert two["at_window_limit"].value == pytest.approx(one["at_window_limit"].value)


def test_without_stamped_operations_nothing_is_known():
    nothing = chunk(100, 100, 100)
    bare = DispatchChunk(nothing.steps, nothing.operations.with_columns(done_ns=None), nothing.waits, nothing.computes)
    assert known(bare) == {}
