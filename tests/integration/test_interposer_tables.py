"""Ops tables of every kind, on a provider without a network whose answers are known in closed form."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from integration import raw_records
from integration.fake_driver import Driver

from efaprof.trace import layout
from efaprof.trace.layout import OP_FUNCTIONS, ObjectKind, OpClass, Shape

OURS = "libefaprof-fi.so"
THEIRS = "libfake-fi.so"
FI_COMPLETION = 1 << 24
FI_INJECT = 1 << 25
FI_INJECT_COMPLETE = 1 << 26
FI_DELIVERY_COMPLETE = 1 << 28
FI_REMOTE_CQ_DATA = 1 << 17
FI_MORE = 1 << 18
UNSPEC = (1 << 64) - 1


@pytest.fixture
def driver(build_dir: Path, tmp_path: Path) -> Driver:
    return Driver(str(build_dir / "bin" / "fake_driver"), build_dir / "fakes", tmp_path / "run")


OWNERS = ("write", "send", "read", "close", "after_setopt")


def test_tables_are_untouched_and_nothing_is_made_when_recording_is_off(driver: Driver, tmp_path: Path):
    said = driver.run("owners", LD_PRELOAD=str(raw_records.interposer()), EFAPROF_SPILL_DIR=str(tmp_path))
    assert {said[name] for name in OWNERS} == {THEIRS}
    assert list(tmp_path.iterdir()) == []


def test_tables_hold_our_functions_when_recording_is_on(driver: Driver):
    said, recording = driver.record("owners")
    assert {said[name] for name in OWNERS} == {OURS}
    assert said["null"] == "1"  # what was null stays null
    assert (said["posts"], said["completions"]) == ("10", "10")
    assert len(recording.of(Shape.OP)) == 10


def test_a_short_table_is_never_written_behind_its_end(driver: Driver):
    said, _ = driver.record("owners", mode="short")
    assert said["write"] == OURS
    assert said["beyond"] == "1"


def test_read_only_tables_are_patched_and_read_only_again(driver: Driver):
    said, recording = driver.record("protections", mode="const")
    assert said["prot"] == "r--p"
    assert {said[name] for name in OWNERS} == {OURS}
    assert len(recording.of(Shape.OP)) == 10


def test_tables_that_a_provider_exchanges_later_are_found(driver: Driver):
    said, recording = driver.record("owners", mode="swap")
    assert {said[name] for name in OWNERS} == {OURS}
    assert len(recording.of(Shape.OP)) == 10
    assert len(recording.entries()) == 10


def test_tables_beyond_the_slots_stay_as_they_are_and_a_note_says_so(driver: Driver):
    said, recording = driver.record("many", 40, mode="tables")
    assert (said["posts"], said["completions"], said["patched"]) == ("200", "200", "16")
    assert len(recording.of(Shape.OP)) == 16 * 5
    notes = recording.notes(2)
    assert len(notes) == len(set(notes))
    assert "no slot left for another fi_ops_rma" in notes
    assert set(recording.of(Shape.NOTE, 2)["value"].tolist()) == {16}


def test_a_queue_whose_read_calls_its_readfrom_counts_once(driver: Driver):
    said, recording = driver.record("threads", 50, mode="selfcall")
    assert len(recording.entries()) == int(said["completions"])
    assert int(recording.of(Shape.CQ)["empties"].sum()) == int(said["empties"])
    assert set(recording.of(Shape.OP)["nest"].tolist()) == {0}


def test_threads_that_post_and_poll_the_same_objects_lose_nothing(driver: Driver):
    said, recording = driver.record("threads", 300)
    ops = recording.of(Shape.OP)
    assert len(ops) == int(said["posts"]) == 12 * 300
    assert len(recording.entries()) == int(said["completions"]) == 12 * 300
    assert int(recording.of(Shape.CQ)["empties"].sum()) == int(said["empties"])
    tids = {int(record["tid"]) for record in recording.of(Shape.THREAD)}
    assert len(tids) >= 12 + 1


def test_every_argument_is_recorded_with_the_flags_that_took_effect(driver: Driver):
    _, recording = driver.record("calls")
    ops = recording.of(Shape.OP)
    found = [
        (
            OpClass(int(op["kind"]) >> 5 & 7),
            OP_FUNCTIONS[OpClass(int(op["kind"]) >> 5 & 7)][int(op["kind"]) & 31],
            int(op["fi_addr"]),
            int(op["raddr"]),
            int(op["len"]),
            int(op["imm"]),
            int(op["flags"]),
        )
        for op in ops
    ]
    default = FI_DELIVERY_COMPLETE  # the endpoint's transmit op_flags
    assert found == [
        (OpClass.RMA, "write", 3, 0x1000, 64, 0, default),
        (OpClass.RMA, "writemsg", 5, 0x2000, 64, 0xABCD, FI_COMPLETION | FI_REMOTE_CQ_DATA | FI_MORE),
        (OpClass.RMA, "inject", 4, 0x3000, 8, 0, default | FI_INJECT),
        (OpClass.RMA, "read", 3, 0x4000, 32, 0, default),
        (OpClass.MSG, "send", 6, 0, 16, 0, default),
        (OpClass.TAGGED, "send", 6, 0x77, 17, 0, default),
        (OpClass.MSG, "recv", UNSPEC, 0, 48, 0, 0),
        (OpClass.MSG, "send", 6, 0, 16, 0, FI_INJECT_COMPLETE),  # after FI_SETOPSFLAG
        (OpClass.EP, "cancel", UNSPEC, 0, 0, 0, 0),
    ]
    contexts = ops["ctx"].tolist()
    assert contexts[2] == 0
    assert contexts[6] == contexts[8] != 0
    assert np.all(ops["t_end"][:-1] <= ops["t_end"][1:])
    entries = recording.entries()
    assert entries["src"].tolist() == [0, 1, UNSPEC]
    assert entries["ctx"].tolist() == [contexts[1], contexts[6], 0x1234]
    assert entries["len"].tolist() == [24, 48, 77]
    assert (entries["kind"].tolist(), entries["err"].tolist()) == ([0, 0, 1], [0, 0, 5])


def test_calls_that_are_given_up_are_written_as_refused(driver: Driver):
    said, recording = driver.record("refused", 20, mode="eagain", eagain=30)
    ops = recording.of(Shape.OP)
    returned = ops["x"].astype(np.int16)
    assert int(ops["eagain"].sum()) == int(said["again"]) == 30
    refused = ops[returned == -11]
    assert sorted(refused["raddr"].tolist()) == list(range(20))
    assert set(refused["eagain"].tolist()) == {1}
    (taken,) = ops[returned == 0]
    assert taken["eagain"] == 10
    assert taken["t_end"] - taken["dur"] > refused["t_end"].max()


def test_a_forked_child_records_its_own_calls_and_none_of_its_parent(driver: Driver):
    said, recording = driver.record("forked", 10)
    for who in ("parent", "child"):
        words = said[who].split()
        pid, posts, completions, empties = (int(word) for word in words[1::2])
        before = 10 if who == "parent" else 0  # the parent posted as many before the fork
        assert len(recording.of(Shape.OP, pid=pid)) == posts + before
        assert len(recording.entries(pid=pid)) == completions + before
        assert int(recording.of(Shape.CQ, pid=pid)["empties"].sum()) == empties


def test_empty_polls_held_back_at_exit_are_written(driver: Driver):
    said, recording = driver.record("unfinished", 9)
    (idle,) = recording.of(Shape.CQ, layout.CQ_IDLE)
    assert idle["empties"] == int(said["empties"]) == 9


def test_a_queue_at_a_reused_address_is_another_queue(driver: Driver):
    said, recording = driver.record("reopened", 9)
    cqs = recording.of(Shape.CQ)
    assert len(set(cqs["cq"].tolist())) < 9  # addresses were used again
    assert len(recording.entries()) == int(said["completions"])
    assert int(cqs["empties"].sum()) == int(said["empties"])
    reads = cqs[cqs["x"] > 0]
    assert (reads["flags"] & 0xFF).tolist() == [4, 1] * 4 + [4]
    # Formats with lengths have them, the others do not: no entry was read by another queue's format.
    assert recording.entries()["len"].tolist() == ([64] * 3 + [0] * 3) * 4 + [64] * 3


def test_an_open_that_makes_nothing_leaves_the_callers_pointer(driver: Driver):
    said, recording = driver.record("nothing")
    assert said["left"] == "0x1234"
    kinds = (recording.of(Shape.OBJECT)["kind"] & 0xFF).tolist()
    assert ObjectKind.SRX not in kinds


def test_polling_many_queues_and_counters_in_turns_writes_each_once(driver: Driver):
    said, recording = driver.record("queues", 60)
    idle = recording.of(Shape.CQ)
    assert len(idle) == 60  # when they are closed
    assert set(idle["empties"].tolist()) == {50}
    assert int(said["empties"]) == 60 * 50
    assert len(recording.of(Shape.CNTR)) == 60


def test_errno_is_what_the_provider_left(driver: Driver):
    said, _ = driver.record("errno")
    assert said["changed"] == "0"


def test_a_paused_run_knows_its_objects_but_no_operations(driver: Driver):
    (driver.folder / "rings").mkdir(parents=True, mode=0o700)
    control = driver.folder / "rings" / "control"
    control.write_bytes(struct.pack("<I", 1).ljust(4096, b"\0"))
    said, recording = driver.record("threads", 5)
    assert said["posts"] == "60"
    assert len(recording.of(Shape.OP)) == 0
    assert len(recording.of(Shape.CQ)) == 0
    kinds = recording.of(Shape.OBJECT)["kind"] & 0xFF
    assert {int(kind) for kind in kinds} >= {ObjectKind.FABRIC, ObjectKind.DOMAIN, ObjectKind.EP, ObjectKind.CQ}
