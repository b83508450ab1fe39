"""Sums over raw files that grow, against runs whose answer is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from efaprof.session import following
from efaprof.session.following import Follower
from efaprof.trace import fabric as fi
from efaprof.trace.layout import HEADER_BYTES, SLOT_BYTES
from efaprof.trace.steady import Steady, write_steady
from efaprof.trace.synth import SynthRun

STEADY = Steady(steps=40, commands=8)


def expected_ns(steady: Steady) -> dict[str, int]:
    """Time of all operations in each layer; the ring's includes the wait for a busy proxy."""
    times = steady.times()
    ring = int((times["seen"] - times["publish"]).sum()) * steady.steps * steady.ranks
    per = {"kernel": steady.kernel_ns, "proxy": steady.proxy_ns, "libfabric": steady.libfabric_ns, "nic": steady.nic_ns}
    return {layer: ns * steady.operations for layer, ns in per.items()} | {"ring": ring}


def shares(values):
    return {layer: value / sum(values.values()) for layer, value in values.items() if value}


@pytest.mark.parametrize("proxies", [1, 2])
def test_operations_steps_and_shares_of_the_layers_are_those_of_the_run(tmp_path, proxies):
    steady = replace(STEADY, proxies=proxies)
    run = write_steady(tmp_path / "run", steady)
    follower = Follower(run.path)
    follower.turn()
    seen = follower.seen
    assert seen.issued == seen.operations == STEADY.operations
    assert seen.steps == (STEADY.steps + 1) * STEADY.ranks  # the last mark only ends the step before it
    assert shares(seen.ticks) == pytest.approx(shares(expected_ns(steady)), rel=0.01)


def test_a_file_that_grows_is_read_on_from_where_it_ended(tmp_path):
    run = write_steady(tmp_path / "run", STEADY)
    whole = {path: path.read_bytes() for path in run.raw_files}
    follower = Follower(run.path)
    counts = []
    for tenth in range(1, 11):
        for path, data in whole.items():
            slots = (len(data) - HEADER_BYTES) // SLOT_BYTES * tenth // 10
            # Only whole records are ever published; cut where one begins.
            path.write_bytes(data[: HEADER_BYTES + SLOT_BYTES * _record_boundary(data, slots)])
        follower.turn()
        counts.append(follower.seen.issued)
    assert counts == sorted(counts)
    assert counts[0] < counts[5] < counts[9] == STEADY.operations
    once = Follower(run.path)
    once.turn()
    assert once.seen == follower.seen


def _record_boundary(data, slots):
    import numpy as np

    from efaprof import native

    body = np.frombuffer(data, np.uint8, offset=HEADER_BYTES)[: slots * SLOT_BYTES]
    return native.index_records(np.ascontiguousarray(body)).next


def test_of_what_grew_too_much_a_part_stands_for_the_whole(tmp_path, monkeypatch):
    run = write_steady(tmp_path / "run", Steady(steps=400, commands=8))
    monkeypatch.setattr(following, "_MOST_SLOTS", 4096)
    follower = Follower(run.path)
    follower.turn()
    exact = Steady(steps=400, commands=8)
    assert follower.seen.issued == pytest.approx(exact.operations, rel=0.15)
    assert shares(follower.seen.ticks) == pytest.approx(shares(expected_ns(exact)), rel=0.15)
    before = follower.seen.issued
    follower.turn()
    assert follower.seen.issued == before


def test_without_a_dispatch_path_libfabric_calls_of_the_program_are_counted(tmp_path):
    synth = SynthRun(tmp_path / "efaprof-x")
    ring = synth.ring(pid=1)
    for at in range(5):
        ring.op("rma.write", 1000 * at, 1000 * at + 10, ep=1, ctx=1)
    ring.op("msg.send", 9000, 9010, ep=1, ctx=1, nest=1)
    ring.op("msg.recv", 9100, 9110, ep=1, ctx=1, fi_addr=fi.FI_ADDR_UNSPEC)
    ring.span("step", 0, 9000, is_step=True)
    follower = Follower(synth.finish(program="x", command=["x"]).path)
    follower.turn()
    assert (follower.seen.issued, follower.seen.calls, follower.seen.operations) == (0, 5, 5)
    assert follower.seen.steps == 1
    assert not any(follower.seen.ticks.values())


def test_a_run_without_files_has_seen_nothing(tmp_path):
    follower = Follower(tmp_path)
    follower.turn()
    assert follower.seen.operations == 0
