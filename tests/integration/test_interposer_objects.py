"""Calls that make objects: memory, addresses by name, contexts that are shared, queues that a kernel will post to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from integration import raw_records
from integration.fake_driver import Driver

from efaprof.trace.layout import ObjectKind, OpClass, Shape

FI_HMEM_CUDA = 1
FI_READ, FI_WRITE, FI_REMOTE_WRITE = 1 << 8, 1 << 9, 1 << 13
FI_DELIVERY_COMPLETE = 1 << 28
INFO = 1
RECV = OpClass.MSG << 5
WRITE = OpClass.RMA << 5 | 3
OURS, THEIRS = "libefaprof-fi.so", "libfake-fi.so"


@pytest.fixture
def driver(build_dir: Path, tmp_path: Path) -> Driver:
    return Driver(str(build_dir / "bin" / "fake_driver"), build_dir / "fakes", tmp_path / "run")


def opened(recording: raw_records.Recording, kind: ObjectKind):
    return recording.of(Shape.OBJECT, kind)


def test_memory_is_recorded_with_length_access_key_interface_and_dmabuf(driver: Driver):
    _, recording = driver.record("memory")
    (domain,) = opened(recording, ObjectKind.DOMAIN)
    found = [
        (int(o["caps"]), int(o["mode"]), int(o["extra"]), int(o["ep_type"]), int(o["inject"]) & 1, int(o["parent"]))
        for o in opened(recording, ObjectKind.MR)
    ]
    at = int(domain["fid"])
    assert found == [
        (64, FI_READ, 11, 0, 0, at),
        (64, FI_WRITE, 12, 0, 0, at),
        (64, FI_REMOTE_WRITE, 13, 0, 0, at),
        (64, FI_REMOTE_WRITE, 14, FI_HMEM_CUDA, 0, at),
        (1 << 20, FI_REMOTE_WRITE, 15, FI_HMEM_CUDA, 1, at),  # the length is the dmabuf's
    ]
    closed = recording.of(Shape.OBJECT, ObjectKind.MR | 0x80)
    assert sorted(closed["fid"].tolist()) == sorted(set(opened(recording, ObjectKind.MR)["fid"].tolist()))


def test_addresses_inserted_by_name_are_recorded_as_the_provider_resolved_them(driver: Driver):
    _, recording = driver.record("names")
    (av,) = opened(recording, ObjectKind.AV)
    records = recording.of(Shape.AV)
    assert {int(record["av"]) for record in records} == {int(av["fid"])}
    inserted = records[records["kind"] & 0xFF == 1]
    # One by service, six by symmetric names, one into a vector that numbers them itself: the eighth.
    assert inserted["fi_addr"].tolist() == [100, 100, 101, 102, 103, 104, 105, 7]
    assert [bytes(record["addr"])[:16] for record in inserted] == [
        bytes([number]) * 16 for number in inserted["fi_addr"].tolist()
    ]
    assert set(inserted["x"].tolist()) == {16}
    assert records[records["kind"] & 0xFF == 2]["fi_addr"].tolist() == [102, 103]


def test_contexts_of_a_scalable_endpoint_are_endpoints_of_it(driver: Driver):
    said, recording = driver.record("scalable")
    assert said["completions"] == "2"
    scalable, send, receive = opened(recording, ObjectKind.EP)
    assert (send["parent"], receive["parent"]) == (scalable["fid"], scalable["fid"])
    assert send["name"] == receive["name"] == scalable["name"] != 0
    assert send["extra"] == FI_DELIVERY_COMPLETE  # inherited: no attributes were given
    (write,), (taken,) = recording.of(Shape.OP, WRITE), recording.of(Shape.OP, RECV)
    assert (write["ep"], taken["ep"]) == (send["fid"], receive["fid"])
    assert write["flags"] == FI_DELIVERY_COMPLETE
    assert len(recording.entries()) == 2
    assert sorted(recording.of(Shape.BIND)["fid"].tolist()) == sorted([int(send["fid"]), int(receive["fid"])])


def test_shared_contexts_are_objects_and_their_receives_are_operations(driver: Driver):
    said, recording = driver.record("shared")
    assert said["completions"] == "3"
    (receive,), (send,) = opened(recording, ObjectKind.SRX), opened(recording, ObjectKind.STX)
    assert send["extra"] == FI_DELIVERY_COMPLETE
    ops = recording.of(Shape.OP, RECV)
    assert ops["ep"].tolist() == [int(receive["fid"])] * 3
    bound = recording.of(Shape.BIND)
    kinds = (bound["kind"] & 0xFF).tolist()
    assert kinds.count(ObjectKind.SRX) == kinds.count(ObjectKind.STX) == 2


def test_queues_given_to_a_kernel_are_noted_and_what_it_opens_is_recorded(driver: Driver):
    said, recording = driver.record("gda")
    notes = recording.of(Shape.NOTE, INFO)
    names = recording.names()
    found = [(names[int(note["name"])], int(note["value"])) for note in notes]
    assert [one for one in found if not one[0].startswith("libfabric ")] == [
        ("kernel-posted path opened", 1),
        ("work queues of an endpoint given to a kernel", 1),
        ("completion queue given to a kernel", 1),
    ]
    assert said["queue_pair"] == "5"
    assert said["query_qp_wqs"] == OURS
    assert said["get_mr_lkey"] == said["others"] == THEIRS
    queues = opened(recording, ObjectKind.CQ)
    assert [(int(queue["caps"]), int(queue["mode"])) for queue in queues] == [(1, 0), (3, 128)]


def test_the_sixth_of_these_functions_is_touched_only_where_libfabric_has_it(driver: Driver):
    chosen = os.environ.get("EFAPROF_LIBFABRIC")
    folders = [str(Path(chosen).parent)] if chosen else []
    folders += filter(None, [os.environ.get("LD_LIBRARY_PATH")])
    said, recording = driver.record("gda", env={"LD_LIBRARY_PATH": ":".join(folders)})
    names = recording.names()
    (version,) = {
        int(note["value"])
        for note in recording.of(Shape.NOTE, INFO)
        if names[int(note["name"])].startswith("libfabric ")
    }
    is_there = version >= 2 << 16 | 6
    assert said["cntr_open_ext"] == (OURS if is_there else THEIRS)
    assert len(opened(recording, ObjectKind.CNTR)) == int(is_there)
    # Before 2.6 the table is one entry shorter and something else may lie there: the fake's own entry was left alone.


def test_nothing_is_hooked_when_recording_is_off(driver: Driver):
    said = driver.run("gda", LD_PRELOAD=str(raw_records.interposer()))
    assert said["query_qp_wqs"] == said["cntr_open_ext"] == THEIRS
