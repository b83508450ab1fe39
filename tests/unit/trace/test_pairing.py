"""What became of operations, one behaviour of libfabric at a time."""

from __future__ import annotations

import pytest

from efaprof.trace import fabric as fi
from efaprof.trace.layout import ObjectKind
from efaprof.trace.synth import CQ_READERR, Cqe
from efaprof.trace.traffic import open_endpoint

EP, CQ = 0x1000, 0x2000
SENT = fi.FI_SEND | fi.FI_MSG
WRITTEN = fi.FI_WRITE | fi.FI_RMA
RECEIVED = fi.FI_RECV | fi.FI_MSG


def outcomes(rows):
    return [(row["match"], row["done_ns"]) for row in rows]


def post(ring, name, begin, end, *, ep=EP, **fields):
    ring.op(name, begin, end, ep=ep, **fields)


def test_an_operation_is_done_when_the_read_of_its_completion_ends(ring, ops):
    post(ring, "rma.write", 100, 130, ctx=1, len=64, raddr=9)
    ring.cq(CQ, 200, 230, [Cqe(1, WRITTEN)])
    (row,) = ops()
    assert (row["post_ns"], row["return_ns"], row["doorbell_ns"], row["done_ns"]) == (100, 130, 130, 230)
    assert (row["match"], row["error"], row["ret"]) == ("exact", 0, 0)


def test_completions_are_found_by_context_whatever_their_order(ring, ops):
    for i in (1, 2, 3):
        post(ring, "rma.write", 100 * i, 100 * i + 5, ctx=i)
    ring.cq(CQ, 390, 400, [Cqe(3, WRITTEN), Cqe(1, WRITTEN)])
    ring.cq(CQ, 490, 500, [Cqe(2, WRITTEN)])
    assert outcomes(ops()) == [("exact", 400), ("exact", 500), ("exact", 400)]


def test_shared_contexts_are_first_in_first_out_and_say_so(ring, ops):
    post(ring, "msg.send", 100, 105, ctx=0)
    post(ring, "msg.send", 200, 205, ctx=0)
    ring.cq(CQ, 290, 300, [Cqe(0, SENT)])
    ring.cq(CQ, 390, 400, [Cqe(0, SENT)])
    assert outcomes(ops()) == [("fifo", 300), ("fifo", 400)]


def test_a_context_that_is_used_again_after_its_completion_is_exact(ring, ops):
    for i in range(3):
        post(ring, "msg.send", 100 * i, 100 * i + 5, ctx=0)
        ring.cq(CQ, 100 * i + 40, 100 * i + 50, [Cqe(0, SENT)])
    assert outcomes(ops()) == [("exact", 50), ("exact", 150), ("exact", 250)]


def test_sends_and_receives_of_one_context_do_not_meet(ring, ops):
    post(ring, "msg.recv", 100, 105, ctx=0)
    post(ring, "msg.send", 110, 115, ctx=0)
    ring.cq(CQ, 190, 200, [Cqe(0, SENT)])
    ring.cq(CQ, 290, 300, [Cqe(0, RECEIVED)])
    assert outcomes(ops()) == [("exact", 300), ("exact", 200)]


def test_a_completion_may_be_read_by_another_thread_before_the_post_returned(synth, ring, ops):
    poller = synth.ring(tid=2)
    post(ring, "msg.send", 100, 500, ctx=7)
    poller.cq(CQ, 190, 200, [Cqe(7, SENT)])
    assert outcomes(ops()) == [("exact", 200)]


def test_a_completion_from_before_the_post_is_not_its_own(synth, ring, tables):
    poller = synth.ring(tid=2)
    poller.cq(CQ, 40, 50, [Cqe(7, SENT)])
    post(ring, "msg.send", 100, 110, ctx=7)
    read = tables()
    assert outcomes(read.ops.collect().to_dicts()) == [("in-flight", None)]
    assert read.arrivals.collect()["is_explained"].to_list() == [False]


@pytest.mark.parametrize("name", ["msg.inject", "msg.injectdata", "rma.inject", "tagged.inject"])
def test_inject_calls_get_no_completion(ring, ops, name):
    post(ring, name, 100, 105)
    assert outcomes(ops()) == [("expected-none", None)]


def test_selective_completion_expects_one_only_where_asked(synth, ops):
    ring = synth.ring()
    open_endpoint(ring, EP, CQ)
    ring.bind(EP, ObjectKind.CQ, CQ, fi.FI_TRANSMIT | fi.FI_SELECTIVE_COMPLETION)
    post(ring, "rma.writemsg", 100, 105, ctx=1)
    post(ring, "rma.writemsg", 200, 205, ctx=2, flags=fi.FI_COMPLETION)
    post(ring, "msg.recv", 210, 215, ctx=3)
    ring.cq(CQ, 290, 300, [Cqe(2, WRITTEN), Cqe(3, RECEIVED)])
    assert outcomes(ops()) == [("expected-none", None), ("exact", 300), ("exact", 300)]


def test_inject_by_flag_takes_a_completion_when_one_comes(ring, ops):
    post(ring, "msg.sendmsg", 100, 105, ctx=1, flags=fi.FI_INJECT)
    post(ring, "msg.sendmsg", 200, 205, ctx=2, flags=fi.FI_INJECT)
    ring.cq(CQ, 290, 300, [Cqe(1, SENT)])
    assert outcomes(ops()) == [("exact", 300), ("expected-none", None)]


def test_efa_direct_gives_no_completion_for_a_null_context(synth, ops):
    ring = synth.ring()
    ring.open(ObjectKind.FABRIC, 1, provider="efa", detail="efa-direct")
    ring.open(ObjectKind.DOMAIN, 2, provider="efa", detail="rdmap0s6-rdm", parent=1)
    ring.open(ObjectKind.CQ, CQ, parent=2, caps=3)
    ring.open(ObjectKind.EP, EP, parent=2, ep_type=3)
    ring.bind(EP, ObjectKind.CQ, CQ, fi.FI_TRANSMIT | fi.FI_RECV)
    post(ring, "rma.write", 100, 105, ctx=0)
    post(ring, "rma.write", 200, 205, ctx=8)
    ring.cq(CQ, 290, 300, [Cqe(8, WRITTEN)])
    rows = ops()
    assert outcomes(rows) == [("expected-none", None), ("exact", 300)]
    assert {row["provider"] for row in rows} == {"efa"}


def test_an_endpoint_without_a_completion_queue_expects_none(synth, ops):
    ring = synth.ring()
    ring.open(ObjectKind.EP, EP, provider="efa")
    post(ring, "rma.write", 100, 105, ctx=5)
    (row,) = ops()
    assert (row["match"], row["cq"]) == ("expected-none", None)


def test_a_call_that_failed_posted_nothing(ring, ops):
    post(ring, "rma.write", 100, 105, ctx=5, ret=-22, eagain=3)
    (row,) = ops()
    assert (row["match"], row["ret"], row["eagain"]) == ("failed-post", -22, 3)


def test_an_error_entry_completes_with_its_errno(ring, ops):
    post(ring, "rma.write", 100, 105, ctx=5)
    ring.cq(CQ, 190, 200, [Cqe(5, WRITTEN, err=113)], what=CQ_READERR)
    (row,) = ops()
    assert (row["match"], row["error"], row["done_ns"]) == ("exact", 113, 200)


def test_a_cancelled_receive_is_cancelled_with_or_without_its_entry(ring, ops):
    post(ring, "msg.recv", 100, 105, ctx=5)
    post(ring, "msg.recv", 110, 115, ctx=6)
    post(ring, "ep.cancel", 150, 151, ctx=5)
    post(ring, "ep.cancel", 160, 161, ctx=6)
    ring.cq(CQ, 190, 200, [Cqe(5, RECEIVED, err=fi.ECANCELED)], what=CQ_READERR)
    rows = ops()
    assert outcomes(rows[:2]) == [("cancelled", 200), ("cancelled", None)]
    assert [(row["match"], row["direction"]) for row in rows[2:]] == [("expected-none", None)] * 2


def test_a_post_after_a_cancel_of_its_context_is_not_cancelled(ring, ops):
    post(ring, "msg.recv", 100, 105, ctx=5)
    post(ring, "ep.cancel", 150, 151, ctx=5)
    post(ring, "msg.recv", 200, 205, ctx=5)
    assert [row["match"] for row in ops()] == ["cancelled", "expected-none", "in-flight"]


@pytest.mark.parametrize(("kind", "fid"), [(ObjectKind.EP, EP), (ObjectKind.CQ, CQ)])
def test_closing_the_endpoint_or_its_queue_cancels_what_is_open(ring, ops, kind, fid):
    post(ring, "msg.recv", 100, 105, ctx=5)
    ring.close(kind, fid, 300)
    assert outcomes(ops()) == [("cancelled", None)]


def test_what_is_open_at_the_end_is_in_flight(ring, ops):
    post(ring, "msg.send", 100, 105, ctx=5)
    assert outcomes(ops()) == [("in-flight", None)]


def test_an_open_send_that_was_long_overtaken_is_unexplained(ring, tables):
    post(ring, "rma.write", 100, 105, ctx=5)
    for i in range(20):
        post(ring, "rma.write", 200 + 100 * i, 205 + 100 * i, ctx=100 + i)
        ring.cq(CQ, 240 + 100 * i, 250 + 100 * i, [Cqe(100 + i, WRITTEN)])
    post(ring, "rma.write", 3000, 3005, ctx=6)
    rows = tables().ops.collect().to_dicts()
    assert rows[0]["match"] == "unexplained"
    assert rows[-1]["match"] == "in-flight"


def test_an_open_receive_waits_however_long(ring, ops):
    post(ring, "msg.recv", 100, 105, ctx=5)
    for i in range(20):
        post(ring, "msg.recv", 200 + 100 * i, 205 + 100 * i, ctx=100 + i)
        ring.cq(CQ, 240 + 100 * i, 250 + 100 * i, [Cqe(100 + i, RECEIVED)])
    assert ops()[0]["match"] == "in-flight"


def test_an_operation_on_an_endpoint_never_seen_is_unexplained(ring, ops):
    post(ring, "msg.send", 100, 105, ep=0xDEAD, ctx=5)
    (row,) = ops()
    assert (row["match"], row["endpoint"], row["provider"]) == ("unexplained", None, None)


def test_a_remote_write_with_data_is_an_explained_arrival(ring, tables):
    post(ring, "msg.recv", 100, 105, ctx=0)
    flags = fi.FI_REMOTE_WRITE | fi.FI_REMOTE_CQ_DATA | fi.FI_RMA
    ring.cq(CQ, 190, 200, [Cqe(0, flags, len=64, data=0xABC)])
    read = tables()
    (arrival,) = read.arrivals.collect().to_dicts()
    assert (arrival["is_explained"], arrival["immediate"], arrival["bytes"]) == (True, 0xABC, 64)
    assert arrival["time_ns"] == 200
    assert outcomes(read.ops.collect().to_dicts()) == [("in-flight", None)]


def test_where_remote_data_uses_up_receives_it_ends_one(synth, tables):
    ring = synth.ring()
    ring.open(ObjectKind.CQ, CQ, caps=3)
    ring.open(ObjectKind.EP, EP, provider="efa", mode=fi.FI_RX_CQ_DATA)
    ring.bind(EP, ObjectKind.CQ, CQ, fi.FI_TRANSMIT | fi.FI_RECV)
    post(ring, "msg.recv", 100, 105, ctx=9)
    ring.cq(CQ, 190, 200, [Cqe(9, fi.FI_REMOTE_WRITE | fi.FI_REMOTE_CQ_DATA)])
    read = tables()
    assert outcomes(read.ops.collect().to_dicts()) == [("exact", 200)]
    assert read.arrivals.collect().height == 0


def test_a_multi_receive_ends_only_with_its_own_flag(ring, tables):
    post(ring, "msg.recvmsg", 100, 105, ctx=9, flags=fi.FI_MULTI_RECV)
    ring.cq(CQ, 190, 200, [Cqe(9, RECEIVED, len=8), Cqe(9, RECEIVED, len=16)])
    ring.cq(CQ, 290, 300, [Cqe(9, RECEIVED | fi.FI_MULTI_RECV)])
    read = tables()
    assert outcomes(read.ops.collect().to_dicts()) == [("exact", 300)]
    assert read.arrivals.collect().select("bytes", "is_explained").rows() == [(8, True), (16, True)]


def test_entries_without_flags_are_told_apart_by_what_is_bound(synth, ops):
    ring = synth.ring()
    ring.open(ObjectKind.CQ, CQ, caps=1)
    ring.open(ObjectKind.CQ, CQ + 1, caps=1)
    ring.open(ObjectKind.EP, EP, provider="tcp")
    ring.bind(EP, ObjectKind.CQ, CQ, fi.FI_TRANSMIT)
    ring.bind(EP, ObjectKind.CQ, CQ + 1, fi.FI_RECV)
    post(ring, "msg.recv", 100, 105, ctx=0)
    post(ring, "msg.send", 110, 115, ctx=0)
    ring.cq(CQ + 1, 190, 200, [Cqe(0)], cq_format=1)
    ring.cq(CQ, 290, 300, [Cqe(0)], cq_format=1)
    assert outcomes(ops()) == [("exact", 200), ("exact", 300)]


def test_one_queue_for_both_directions_without_flags_is_one_line(synth, ops):
    ring = synth.ring()
    ring.open(ObjectKind.CQ, CQ, caps=1)
    ring.open(ObjectKind.EP, EP, provider="tcp")
    ring.bind(EP, ObjectKind.CQ, CQ, fi.FI_TRANSMIT | fi.FI_RECV)
    post(ring, "msg.recv", 100, 105, ctx=1)
    post(ring, "msg.send", 110, 115, ctx=2)
    ring.cq(CQ, 190, 200, [Cqe(2)], cq_format=1)
    ring.cq(CQ, 290, 300, [Cqe(1)], cq_format=1)
    assert outcomes(ops()) == [("exact", 300), ("exact", 200)]


def test_receives_of_a_shared_context_complete_on_the_queue_of_its_endpoint(synth, ops):
    ring = synth.ring()
    open_endpoint(ring, EP, CQ)
    ring.open(ObjectKind.SRX, 0x5000, provider="efa")
    ring.bind(EP, ObjectKind.SRX, 0x5000, 0)
    post(ring, "msg.recv", 100, 105, ep=0x5000, ctx=4)
    ring.cq(CQ, 190, 200, [Cqe(4, RECEIVED)])
    assert outcomes(ops()) == [("exact", 200)]


def test_a_pointer_means_the_object_that_was_opened_last(synth, tables):
    ring = synth.ring()
    open_endpoint(ring, EP, CQ, provider="efa")
    post(ring, "msg.send", 100, 105, ctx=1)
    ring.close(ObjectKind.EP, EP, 200)
    ring.open(ObjectKind.EP, EP, 300, provider="tcp")
    ring.bind(EP, ObjectKind.CQ, CQ, fi.FI_TRANSMIT, 300)
    post(ring, "msg.send", 400, 405, ctx=1)
    ring.cq(CQ, 490, 500, [Cqe(1, SENT), Cqe(1, SENT)])
    rows = tables().ops.collect().to_dicts()
    assert [row["provider"] for row in rows] == ["efa", "tcp"]
    assert rows[0]["endpoint"] != rows[1]["endpoint"]


def test_the_same_pointers_in_two_processes_are_two_objects(synth, ops):
    for pid in (1, 2):
        ring = synth.ring(pid=pid)
        open_endpoint(ring, EP, CQ)
        post(ring, "msg.send", 100 + pid, 110, ctx=0)
        ring.cq(CQ, 190, 200 * pid, [Cqe(0, SENT)])
    assert outcomes(ops()) == [("exact", 200), ("exact", 400)]


def test_deferred_posts_ring_with_the_next_call_on_their_endpoint(ring, synth, ops):
    other = synth.ring(tid=2)
    post(ring, "rma.writemsg", 100, 110, ctx=1, flags=fi.FI_MORE)
    post(other, "rma.writemsg", 120, 130, ctx=2, flags=fi.FI_MORE)
    post(ring, "rma.writemsg", 200, 210, ctx=3)
    post(ring, "rma.writemsg", 300, 310, ctx=4)
    ring.cq(CQ, 390, 400, [Cqe(i, WRITTEN) for i in (1, 2, 3, 4)])
    assert [row["doorbell_ns"] for row in ops()] == [210, 210, 210, 310]


def test_a_call_on_another_endpoint_rings_nothing_here(ring, ops):
    open_endpoint(ring, EP + 0x100, CQ + 0x100)
    post(ring, "rma.writemsg", 100, 110, ctx=1, flags=fi.FI_MORE)
    post(ring, "rma.writemsg", 200, 210, ep=EP + 0x100, ctx=1)
    assert [row["doorbell_ns"] for row in ops()] == [None, 210]


def test_a_completion_before_the_doorbell_bounds_it(ring, ops):
    post(ring, "rma.writemsg", 100, 110, ctx=1, flags=fi.FI_MORE)
    ring.cq(CQ, 140, 150, [Cqe(1, WRITTEN)])
    post(ring, "rma.writemsg", 200, 210, ctx=2)
    assert ops()[0]["doorbell_ns"] == 150


def test_completions_of_a_shortened_run_are_explained_by_what_was_given_up(synth, tables):
    ring = synth.ring(first=2)  # the name of the counter
    ring.counter("padding", 1, 0)
    open_endpoint(ring, EP, CQ)
    ring.cq(CQ, 190, 200, [Cqe(1, SENT)])
    assert tables().arrivals.collect()["is_explained"].to_list() == [True]
