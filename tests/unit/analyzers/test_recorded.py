"""Operations of recorded runs, summed up: closed forms of synthetic runs."""

from __future__ import annotations

import pytest

from efaprof.analyzers.by import By
from efaprof.analyzers.recorded import COMM_ACTIVE, WHOLE_RUN, summarise
from efaprof.trace import fabric as fi
from efaprof.trace import reader
from efaprof.trace.layers import Match
from efaprof.trace.layout import ObjectKind
from efaprof.trace.synth import Cqe, SynthRun
from efaprof.trace.traffic import Traffic, open_endpoint, write_traffic

EP, CQ = 0x1000, 0x2000
SENT, RECEIVED = fi.FI_SEND | fi.FI_MSG, fi.FI_RECV | fi.FI_MSG


def read(path, fill, **changes):
    synth = SynthRun(path)
    ring = synth.ring()
    open_endpoint(ring, EP, CQ)
    fill(ring)
    return reader.open_tables(synth.finish(**changes))


@pytest.fixture
def steady(tmp_path):
    traffic = Traffic(batches=500, batch=4, step_ns=500, call_ns=200, nic_ns=10_000, period_ns=20_000, empties=3)
    return traffic, read(tmp_path / "run", lambda ring: write_traffic(ring, traffic))


def test_layers_of_steady_traffic_are_exact(steady):
    traffic, tables = steady
    recorded = summarise([tables])
    sent = recorded.sent
    assert (sent.count, sent.bytes) == (2000, 2000 * 4096)
    assert (sent.libfabric.sum_ns, sent.libfabric.p50_ns, sent.libfabric.max_ns) == (2000 * 200, 200, 200)
    assert sent.nic.sum_ns == traffic.nic_sum_ns
    assert (sent.nic.p50_ns, sent.nic.max_ns) == (10_500, 11_500)  # nearest rank: the second of four
    assert sent.matches == {Match.EXACT: 2000}


def test_windows_are_named_and_rates_are_over_them(steady):
    traffic, tables = steady
    active, whole = summarise([tables]).windows
    busy_ns = 500 * (traffic.posting_ns + traffic.nic_ns)  # between batches nothing is under way
    assert (active.window, active.length_ns) == (COMM_ACTIVE, busy_ns)
    assert active.operations_s == pytest.approx(2000 / (busy_ns * 1e-9))
    assert active.bytes_s == pytest.approx(2000 * 4096 / (busy_ns * 1e-9))
    assert whole.window == WHOLE_RUN
    assert whole.length_ns == tables.facts.last_ns - tables.facts.first_ns


def test_queues_of_steady_traffic(steady):
    traffic, tables = steady
    recorded = summarise([tables])
    assert recorded.outstanding_highest == 4
    in_flight_ns = traffic.libfabric_sum_ns + traffic.nic_sum_ns
    assert recorded.outstanding_mean == pytest.approx(in_flight_ns / (500 * (traffic.posting_ns + traffic.nic_ns)))
    assert recorded.empty_reads_per_completion == pytest.approx(3 / 4)
    assert recorded.eagain_per_post == 0
    assert recorded.coverage == 1
    assert recorded.delivery_level == 1


def test_nested_operations_stand_apart_and_bytes_count_once(tmp_path):
    def fill(ring):
        ring.op("msg.sendv", 110, 120, ep=EP, ctx=9, len=80, nest=1)
        ring.op("msg.send", 100, 130, ep=EP, ctx=1, len=64)
        ring.cq(CQ, 190, 200, [Cqe(9, SENT)], nest=1, empties=5)
        ring.cq(CQ, 195, 210, [Cqe(1, SENT)], empties=2)

    recorded = summarise([read(tmp_path / "run", fill)])
    assert [(group.key, group.nest, group.bytes) for group in recorded.kinds] == [
        ("msg.send", 0, 64),
        ("msg.sendv", 1, 80),
    ]
    assert recorded.count == 1
    assert recorded.sent.bytes == 64
    assert (recorded.polling.empty_reads, recorded.polling.entries) == (2, 1)


def test_receives_wait_for_others_and_are_not_active_time(tmp_path):
    def fill(ring):
        ring.op("msg.recv", 0, 10, ep=EP, ctx=1, len=64)
        ring.op("msg.send", 1000, 1100, ep=EP, ctx=2, len=64)
        ring.cq(CQ, 1150, 1200, [Cqe(2, SENT)])
        ring.cq(CQ, 8000, 9000, [Cqe(1, RECEIVED)])

    recorded = summarise([read(tmp_path / "run", fill)])
    assert recorded.windows[0].length_ns == 200
    received = next(group for group in recorded.own if group.direction == "rx")
    assert received.nic.sum_ns == 9000 - 10


def test_a_completion_before_the_return_is_clipped_and_counted(tmp_path):
    synth = SynthRun(tmp_path / "run")
    ring, poller = synth.ring(), synth.ring(tid=2)
    open_endpoint(ring, EP, CQ)
    poller.cq(CQ, 110, 120, [Cqe(1, SENT)])
    ring.op("msg.send", 100, 150, ep=EP, ctx=1)
    recorded = summarise([reader.open_tables(synth.finish())])
    assert recorded.sent.nic.sum_ns == 0
    assert recorded.overlap_clip_ns == 30


def test_every_operation_has_exactly_one_outcome(tmp_path):
    def fill(ring):
        ring.op("msg.send", 100, 105, ep=EP, ctx=1)
        ring.op("msg.inject", 110, 115, ep=EP)
        ring.op("msg.send", 120, 125, ep=EP, ctx=2, ret=-11, eagain=4)
        ring.op("msg.send", 130, 135, ep=0xDEAD, ctx=3)
        ring.cq(CQ, 190, 200, [Cqe(1, SENT), Cqe(77, SENT)])
        ring.op("msg.send", 210, 215, ep=EP, ctx=4)

    recorded = summarise([read(tmp_path / "run", fill)])
    sent = recorded.sent
    assert sent.matches == {
        Match.EXACT: 1, Match.EXPECTED_NONE: 1, Match.FAILED_POST: 1, Match.UNEXPLAINED: 1, Match.IN_FLIGHT: 1,
    }  # fmt: skip
    assert sum(sent.matches.values()) == sent.count == 5
    assert sent.posts == 4
    assert recorded.eagain_per_post == pytest.approx(1.0)
    assert recorded.unexplained == {"msg.send": 1, "arrival": 1}
    assert recorded.coverage == pytest.approx(1 - 2 / 6)


def test_dropped_records_lower_the_coverage(tmp_path):
    synth = SynthRun(tmp_path / "run")
    ring = synth.ring(dropped=1)
    open_endpoint(ring, EP, CQ)
    ring.op("msg.inject", 110, 115, ep=EP)
    recorded = summarise([reader.open_tables(synth.finish())])
    assert (recorded.dropped, recorded.coverage) == (1, 0.5)


def test_utilisation_needs_a_line_rate_and_is_of_a_named_window(tmp_path):
    def fill(ring):
        ring.counter("nic.synth0.tx_bytes", 1, 0)
        ring.counter("nic.synth0.rate_bytes_s", 1, 10_000_000_000, is_monotone=False)
        ring.op("msg.send", 1000, 1100, ep=EP, ctx=1, len=1000)
        ring.cq(CQ, 1900, 2000, [Cqe(1, SENT)])
        ring.counter("nic.synth0.tx_bytes", 3000, 1040)

    recorded = summarise([read(tmp_path / "run", fill)])
    assert recorded.utilisation[COMM_ACTIVE] == pytest.approx(1000 / 1000e-9 / 10e9)
    assert recorded.delivery_level == 2
    assert recorded.movement.agrees


def test_without_a_line_rate_utilisation_is_unknown(steady):
    assert summarise([steady[1]]).utilisation == {}


def test_without_a_completion_delivery_is_only_that_posts_returned(tmp_path):
    recorded = summarise([read(tmp_path / "run", lambda ring: ring.op("msg.inject", 1, 2, ep=EP))])
    assert recorded.delivery_level == 0


def test_run_delay_and_throttling_are_of_the_run(tmp_path):
    def fill(ring):
        for at, delay in ((1000, 0), (2000, 200)):
            ring.counter("cpu.run_delay_ns.7", at, delay)
            ring.counter("cpu.throttled_ns", at, delay // 2)

    tables = read(tmp_path / "run", fill)
    host = summarise([tables]).host
    length = tables.facts.last_ns - tables.facts.first_ns
    assert (host.run_delay, host.throttled) == (pytest.approx(200 / length), pytest.approx(100 / length))


@pytest.mark.parametrize(
    ("by", "keys"),
    [
        (By.KIND, {"msg.send", "msg.inject"}),
        (By.PROVIDER, {"efa"}),
        (By.THREAD, {"main[100] main/100", "main[100] other/7"}),
        (By.PEER, {"main[100] → 3", "main[100] → 4"}),
        (By.ENDPOINT, {"main[100] ep efa #3"}),
    ],
)
def test_groups_by_every_key_hold_all_operations(tmp_path, by, keys):
    def fill(ring):
        ring.op("msg.send", 100, 105, ep=EP, ctx=1, fi_addr=3)
        ring.thread(7, "other", 106)
        ring.op("msg.inject", 110, 115, ep=EP, fi_addr=4)

    recorded = summarise([read(tmp_path / "run", fill)], by)
    assert {group.key for group in recorded.groups} == keys
    assert sum(group.count for group in recorded.groups) == 2


def test_a_connected_endpoint_has_one_peer(tmp_path):
    synth = SynthRun(tmp_path / "run")
    ring = synth.ring()
    ring.open(ObjectKind.EP, EP, provider="tcp", ep_type=1)
    ring.op("msg.inject", 110, 115, ep=EP, fi_addr=0)
    recorded = summarise([reader.open_tables(synth.finish())], By.PEER)
    assert [group.key for group in recorded.groups] == ["main[100] → connected"]


def test_several_runs_add_counts_and_rates_but_not_times(tmp_path):
    traffic = Traffic(batches=50)
    runs = [read(tmp_path / name, lambda ring: write_traffic(ring, traffic)) for name in ("a", "b")]
    one, both = summarise(runs[:1]), summarise(runs)
    assert both.sent.count == 2 * one.sent.count
    assert both.windows[0].operations_s == pytest.approx(2 * one.windows[0].operations_s)
    assert both.windows[0].length_ns == one.windows[0].length_ns
    assert both.sent.nic.p50_ns == one.sent.nic.p50_ns
    assert both.outstanding_mean == pytest.approx(one.outstanding_mean)
    assert both.runs == 2
