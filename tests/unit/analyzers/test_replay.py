"""Replays: exact when nothing is changed, as slow recurrences say when something is, within their bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fifo_systems import systems
from hand_made import HandMade, worked_example
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_replay import SlowReplay

from efaprof.analyzers.graph import build
from efaprof.analyzers.replay import GROUPS, REPLAYED, STANDARD, Change, parse_change, recoverable, replayed, scaled
from efaprof.analyzers.stamps import Limits
from efaprof.analyzers.walk import walk, walk_job
from efaprof.errors import UsageError
from efaprof.native_graph import EventGraph, Events, Scenario
from efaprof.native_wide import NO_TIME
from efaprof.trace.layers import Layer
from efaprof.trace.layout import RINGS_APART

SAME = Change("same", Scenario())
LONGER = 1 << 32  # than what 32 bits hold


def saved(chunk, *changes, limits=None):
    """{change: ns that rank 0 saves} of a chunk of one step."""
    return {
        change.name: recoverable(build(chunk, limits=limits), [change])[f"{change.name}_recoverable_ns"][0]
        for change in changes
    }


@settings(max_examples=60, deadline=None)
@given(systems())
def test_a_replay_of_what_was_recorded_gives_every_time_again(system):
    graph = build(system.chunk())
    assert (replayed(graph, SAME) == graph.events.events.time).all()
    assert graph.events.cut_edges == 0


@settings(max_examples=100, deadline=None)
@given(systems(), st.sampled_from([(layer,) for layer in REPLAYED] + list(GROUPS.values())))
def test_a_replay_agrees_with_the_slow_recurrences(system, layers):
    graph = build(system.chunk())
    times = replayed(graph, scaled("change", layers))
    slow = SlowReplay(system, {layer.value for layer in layers})
    assert [int(times[own.marks[1]]) for own in graph.ranks] == [slow.end(own.rank) for own in graph.ranks]


@settings(max_examples=60, deadline=None)
@given(systems(has_fences=True))
def test_a_replay_without_fences_agrees_with_the_slow_recurrences(system):
    graph = build(system.chunk())
    times = replayed(graph, parse_change("fence=0"))
    slow = SlowReplay(system, (), has_fences=False)
    assert [int(times[own.marks[1]]) for own in graph.ranks] == [slow.end(own.rank) for own in graph.ranks]


@settings(max_examples=60, deadline=None)
@given(systems(has_fences=True))
def test_a_replay_of_longer_times_says_the_same_on_their_scale(system):
    graph = build(system.chunk())
    events, nodes = graph.events.events, np.arange(len(graph.frozen))
    scenarios = [change.scenario for change in STANDARD]
    short = graph.events.replay(graph.frozen, scenarios, nodes)
    longer = replace(events, time=np.where(events.time == NO_TIME, NO_TIME, events.time * LONGER))
    found = EventGraph(longer).replay(graph.frozen, scenarios, nodes)
    assert (found == np.where(short == NO_TIME, NO_TIME, short * LONGER)).all()


def test_a_replay_that_leads_far_before_what_was_recorded_keeps_its_times():
    """Every other event came a second before what it followed; what is taken out is the way back."""
    count, second = 9, 10**9
    nothing, no_times = np.zeros(1, np.int32), np.zeros(1, np.int64)
    events = Events(
        time=np.where(np.arange(count) % 2, 1, second + 1), before=np.arange(-1, count - 1, dtype=np.int32),
        also=np.full(count, -1, np.int32), gate_first=nothing, gate_also=nothing, label=np.zeros(count, np.uint8),
        lane=np.zeros(count, np.int16), compute_first=no_times, compute_begin=no_times, compute_end=no_times,
        compute_before=no_times, starts_ring=np.zeros(1, np.uint8), service_ns=None, operations=0, stages=0,
        gate_base=count, seen_stage=2, return_stage=5, done_stage=8, compute_label=1, late_label=2, idle_label=3,
        missing_label=4,
    )  # fmt: skip
    found = EventGraph(events).replay(np.zeros(count, np.uint8), [Scenario({0: 0.0}), Scenario()], np.arange(count))
    assert found[:, 0].tolist() == [second + 1 - (number + 1) // 2 * second for number in range(count)]
    assert (found[:, 1] == events.time).all()


@settings(max_examples=60, deadline=None)
@given(systems())
def test_the_job_saves_at_most_what_its_path_spends_in_a_layer(system):
    graph = build(system.chunk())
    spent, end = walk_job(graph), max(int(own.time[-1]) for own in graph.ranks)
    for layer in REPLAYED:
        times = replayed(graph, scaled("change", (layer,)))
        gain = end - max(int(times[own.marks[-1]]) for own in graph.ranks)
        assert 0 <= gain <= spent[f"{layer}_ns"][0], layer


@settings(max_examples=40, deadline=None)
@given(systems())
def test_taking_more_out_never_saves_less(system):
    found = recoverable(build(system.chunk()), (*STANDARD, parse_change("host=x0.5"))).to_dicts()
    for row in found:
        gain = {name.removesuffix("_recoverable_ns"): ns for name, ns in row.items()}
        assert min(ns for name, ns in gain.items() if name not in {"rank", "step"}) >= 0
        for name, layers in GROUPS.items():
            assert all(gain[name] >= gain[layer.value] for layer in layers)
        assert gain["issue"] >= gain["host"] >= gain["host=x0.5"]


def test_only_the_replay_tells_the_two_variants_of_the_worked_example_apart():
    host = scaled("host", GROUPS["host"])
    assert saved(worked_example(), host) == {"host": 10_000}
    assert saved(worked_example(has_local_forward=True), host) == {"host": 2_000}


def test_a_rank_may_save_more_than_its_own_path_shows_when_lateness_hid_behind_its_computing():
    """Rank 1 is late for its own slow post; that rank 0 computed meanwhile hides most of it from rank 0's path."""
    made = HandMade()
    made.step(0, 0, 60)
    made.step(1, 0, 100)
    # Rank 1 flushes a slow put before it signals.
    made.operation(1, 0, 0, kind="put", wire_seq=None, enter=0, publish=0, seen=0, call=0, **{"return": 38}, done=39,
                   told=40)  # fmt: skip
    made.wait(1, 0, 40, source=1, kind="flush", signal=40)
    made.operation(1, 1, 0, enter=40, publish=41, seen=41, call=41, **{"return": 42}, arrival=58, signal=60)
    made.compute(0, 0, 30)
    made.wait(0, 30, 60, source=1, signal=60)
    chunk = made.chunk()
    path = walk(build(chunk)).windows.filter(rank=0).sum()
    spent = path["libfabric_ns"][0] + path["skew_ns"][0]
    gain = saved(chunk, scaled("libfabric", (Layer.LIBFABRIC,)))["libfabric"]
    assert gain > spent
    assert gain <= spent + path["compute_ns"][0]


def slow_wire(operations=50, *, proxies=1, proxy=100, wire=95, latency=500):
    """All commands at once, through proxies in turn and then a NIC, all slow; times in ns."""
    made = HandMade(unit=1)
    made.step(1, 0, 10 * operations * proxy)
    returned, departed = [0] * proxies, 0
    for number in range(operations):
        seq, own = divmod(number, proxies)
        seen = max(returned[own], number + 1)
        returned[own] = seen + proxy
        departed = max(returned[own], departed + wire if number else 0)
        is_last = number == operations - 1
        made.operation(1, seq, 0, ring=RINGS_APART * own + 1, channel=own, kind="signal" if is_last else "put",
                       wire_seq=seq, enter=number, publish=number + 1, seen=seen, call=seen + proxy,
                       **{"return": returned[own]}, arrival=departed + latency, signal=departed + latency)  # fmt: skip
    end = departed + latency
    made.step(0, 0, end)
    made.wait(0, 0, end, source=1, seq=seq, channel=own, signal=end)
    return made.chunk(), end


def test_proxies_of_a_rank_share_its_nic():
    chunk, wall = slow_wire(proxies=2, wire=45)
    proxy = scaled("proxy", (Layer.PROXY,))
    assert saved(chunk, proxy)["proxy"] > 0.8 * wall
    # Two proxies post an operation every 50 ns, and the NIC would take one every 45.
    assert 0 < saved(chunk, proxy, limits=Limits(rate_ops_s=1e9 / 45))["proxy"] < 0.15 * wall
    graph = build(chunk, limits=Limits(rate_ops_s=1e9 / 45))
    assert (replayed(graph, SAME) == graph.events.events.time).all()


def test_a_slow_wire_behind_a_slow_proxy_needs_its_ceiling():
    chunk, wall = slow_wire()
    proxy = scaled("proxy", (Layer.PROXY,))
    assert saved(chunk, proxy)["proxy"] > 0.85 * wall
    limited = saved(chunk, proxy, limits=Limits(rate_ops_s=1e9 / 95))["proxy"]
    assert 0 < limited < 0.07 * wall
    by_size = saved(chunk, proxy, limits=Limits(line_rate_bytes_s=64 / 95e-9))["proxy"]
    assert by_size == limited


def test_a_ceiling_changes_nothing_of_what_was_recorded():
    chunk, _ = slow_wire()
    for rate in (1e9 / 95, 1e9 / 300, 1e12):
        graph = build(chunk, limits=Limits(rate_ops_s=rate))
        assert (replayed(graph, SAME) == graph.events.events.time).all()


def test_two_proxies_halve_a_queue_before_one():
    chunk, wall = slow_wire(operations=40, wire=1)
    gain = saved(chunk, parse_change("proxies=2"))["proxies=2"]
    assert gain == pytest.approx(20 * 100, abs=100)
    assert saved(chunk, parse_change("proxies=1")) == {"proxies=1": 0}
    assert gain < wall


def test_a_full_window_and_a_full_ring_stay_full():
    """One operation in flight: posts wait for completions, so faster posting saves only what a post takes."""
    made = HandMade(unit=1)
    made.step(1, 0, 10_000)
    told = 0
    for seq in range(10):
        seen = max(told - 99, seq + 1)
        call = max(seen + 1, told + 1)
        made.operation(1, seq, 0, kind="signal" if seq == 9 else "put", wire_seq=seq, enter=seq, publish=seq + 1,
                       seen=seen, call=call, **{"return": call + 1}, arrival=call + 101, signal=call + 101,
                       done=call + 101, told=call + 101)  # fmt: skip
        told = call + 101
    made.step(0, 0, told)
    made.wait(0, 0, told, source=1, seq=9, signal=told)
    proxy = scaled("proxy", (Layer.PROXY,))
    assert saved(made.chunk(), proxy, limits=Limits(window=1))["proxy"] == 10
    assert saved(made.chunk(), proxy)["proxy"] > 500
    # A ring of one command: the lane publishes the next once the one before was seen.
    assert saved(made.chunk(), scaled("kernel", (Layer.KERNEL,)), limits=Limits(ring=1))["kernel"] >= 0


@pytest.mark.parametrize(
    "text", ["proxy", "proxy=", "proxy=1", "proxy=x", "wire=0", "skew=0", "fence=x0.5", "proxies=0"]
)
def test_a_change_that_cannot_be_replayed_is_refused_with_what_can(text):
    with pytest.raises(UsageError) as caught:
        parse_change(text)
    assert text in caught.value.message
    assert "fence=0" in caught.value.hint


def test_changes_are_read_as_they_are_typed():
    assert parse_change("nic=x0.5") == scaled("nic=x0.5", (Layer.NIC,), 0.5)
    assert parse_change("host=0") == scaled("host=0", GROUPS["host"])
    assert parse_change("proxies=2").scenario.servers == 2
