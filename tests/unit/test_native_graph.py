"""Orders and replays of graphs larger than what a replay keeps at hand, against plain recurrences."""

from __future__ import annotations

import numpy as np
import pytest

from efaprof.native_graph import NONE, EventGraph, Events, Scenario

STAGES, RETURN, DONE = 4, 2, 3
NO_TIME = np.iinfo(np.int64).min


def events(operations, rings, seed, *, far, service_ns=None):
    """Chains of stages, and a second predecessor up to `far` operations before."""
    random = np.random.default_rng(seed)
    count = operations * STAGES
    stage, operation = np.divmod(np.arange(count), operations)
    before = np.where(stage > 0, np.arange(count) - operations, NONE)
    back = operation - random.integers(1, far, count)
    also = np.where((back >= 0) & (random.random(count) < 0.5), stage * operations + back, NONE)
    time = random.integers(0, 1 << 20, count) + operation * 50 + stage * 100
    starts_ring = np.zeros(operations, np.uint8)
    starts_ring[np.linspace(0, operations, rings, endpoint=False).astype(np.int64)] = 1
    sent = np.where(starts_ring == 0, RETURN * operations + np.arange(operations) - 1, NONE).astype(np.int32)
    nothing = np.zeros(0, np.int64)
    return Events(
        time=time.astype(np.int64), before=before.astype(np.int32), also=also.astype(np.int32),
        gate_first=np.zeros(1, np.int32), gate_also=np.zeros(0, np.int32), label=(stage % 3).astype(np.uint8),
        lane=np.full(count, NONE, np.int16), compute_first=np.zeros(1, np.int64), compute_begin=nothing,
        compute_end=nothing, compute_before=nothing, starts_ring=starts_ring, service_ns=service_ns,
        sent_before=None if service_ns is None else sent, operations=operations, stages=STAGES, gate_base=count,
        seen_stage=1, return_stage=RETURN, done_stage=DONE, compute_label=9, late_label=10, idle_label=11,
        missing_label=12,
    )  # fmt: skip


def replayed(made, scale):
    """Times by the recurrence in replay.h, operation by operation: no second predecessor is of a later one."""
    found = np.full(len(made.time), NO_TIME)
    for operation in range(made.operations):
        for stage in range(made.stages):
            node = stage * made.operations + operation
            froms = [one for one in (made.before[node], made.also[node]) if one != NONE]
            lag = made.time[node] - max((made.time[one] for one in froms), default=made.time[node])
            last = max((found[one] for one in froms), default=made.time[node])
            found[node] = last + (int(lag * scale[made.label[node]] + 0.5) if lag > 0 else lag)
    return found


@pytest.mark.parametrize(("rings", "far"), [(1, 20), (3, 20), (2, 4000)])
def test_predecessors_come_first_and_far_ones_are_not_forgotten(rings, far):
    made = events(6000, rings, 7, far=far)
    graph = EventGraph(made)
    place = np.empty(len(made.time), np.int64)
    place[graph.order()] = np.arange(len(place))
    assert graph.cut_edges == 0
    for edges in (made.before, made.also):
        follows = np.flatnonzero(edges != NONE)
        assert (place[edges[follows]] < place[follows]).all()
    asked = np.arange(0, len(place), 17)
    frozen = np.zeros(len(place), np.uint8)
    scales = [{0: 0.0}, {1: 0.0}, {0: 0.5, 2: 0.25}]
    found = graph.replay(frozen, [Scenario(scale) for scale in scales], asked)
    longer = graph.replay(frozen, [Scenario({0: 2.0})], asked)  # in 64 bits
    for number, scale in enumerate(scales):
        assert (found[:, number] == replayed(made, {0: 1.0, 1: 1.0, 2: 1.0} | scale)[asked]).all()
    assert (longer[:, 0] == replayed(made, {0: 2.0, 1: 1.0, 2: 1.0})[asked]).all()


def test_what_a_nic_sent_before_comes_before_whatever_asks_for_it_first():
    made = events(3000, 2, 3, far=40, service_ns=np.full(3000, 10, np.int64))
    made.also[DONE * 3000] = DONE * 3000 + 2999  # the first to end follows the last of another ring
    graph = EventGraph(made)
    place = np.empty(len(made.time), np.int64)
    place[graph.order()] = np.arange(len(place))
    returns = place[RETURN * 3000 : (RETURN + 1) * 3000]
    assert (np.diff(returns)[made.starts_ring[1:] == 0] > 0).all()
