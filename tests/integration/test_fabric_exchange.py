"""Two processes exchange messages and write to each other's memory through the binding, every byte checked."""

from __future__ import annotations

import subprocess
import sys

import fabric_runs
import pytest
from softefa_runs import need_softefa, on_softefa

TIMEOUT_S = 60

# Rank 0 and rank 1 tell each other addresses and keys over a socketpair. Each direction: a message, a tagged message
# with its tag matched under a mask, an inject, a write announced by a message, a write with immediate, a read.
RANK = r"""
import pickle, socket, sys, time
from efaprof import libfabric as fi

path, provider, rank, descriptor = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
wire = socket.socket(fileno=descriptor)
SIZES = (8, 4096, 70000)
ROOM = 1 << 17
DATA = 0x51AB

def pattern(step, size, who):
    return bytes((at * 31 + (at >> 8) + step * 7 + who * 13) % 251 for at in range(size))

library = fi.open(path or None, provider=provider)
wanted = fi.Cap.MSG | fi.Cap.RMA | (fi.Cap.NONE if provider == "efa-direct" else fi.Cap.TAGGED)
mode = fi.READY_MODE | (fi.Mode.RX_CQ_DATA if provider == "efa-direct" else fi.Mode.NONE)
info = library.getinfo(provider=provider, caps=wanted, ep_type=fi.EpType.RDM, mode=mode)[0]
inbox, outbox = bytearray(ROOM), bytearray(ROOM)
with (
    library.fabric(info) as fabric,
    fabric.domain() as domain,
    domain.cq(size=64) as cq,
    domain.av(count=2) as av,
    domain.endpoint(av=av, cq=cq) as endpoint,
    domain.register(inbox) as inside,
    domain.register(outbox) as outside,
):
    seen = []

    def poll():
        seen.extend(cq.readfrom())

    def again(post, *arguments, **named):
        deadline = time.monotonic() + 30
        while True:
            try:
                return post(*arguments, **named)
            except fi.TryAgain:
                assert time.monotonic() < deadline, "queues stay full"
                poll()

    def wait(matches):
        deadline = time.monotonic() + 30
        while True:
            for one in seen:
                if matches(one):
                    seen.remove(one)
                    return one
            assert time.monotonic() < deadline, f"waited in vain; seen {seen}"
            poll()

    def barrier():
        wire.send(b"b")
        wire.setblocking(False)
        deadline = time.monotonic() + 30
        while True:
            try:
                assert wire.recv(1) == b"b"
                break
            except BlockingIOError:
                assert time.monotonic() < deadline
                poll()
        wire.setblocking(True)

    wire.sendall(pickle.dumps((endpoint.address, inside.remote, outside.remote)).ljust(1024))
    address, remote_in, remote_out = pickle.loads(wire.recv(1024, socket.MSG_WAITALL))
    peer = av.insert(address)
    # With RMA asked for, max_msg_size may be that of a write.
    largest = library.getinfo(provider=provider, caps=fi.Cap.MSG, ep_type=fi.EpType.RDM)[0].ep.max_msg_size
    has_tags = fi.Cap.TAGGED in info.caps
    step = 0
    for size in SIZES:
        for sender in (0, 1):
            kinds = ["send", "tagged", "inject"] if has_tags else ["send", "inject"]
            for kind in kinds:
                step += 1
                used = min(size, info.tx.inject_size if kind == "inject" else largest)
                if rank == sender:
                    outbox[:used] = pattern(step, used, sender)
                    view = memoryview(outbox)[:used]
                    barrier()  # the receive is posted
                    if kind == "send":
                        again(endpoint.send, view, to=peer, context=("sent", step))
                        assert wait(lambda one: one.context == ("sent", step)).flags & fi.Op.SEND
                    elif kind == "tagged":
                        again(endpoint.tagged_send, view, to=peer, tag=0xAB00 + step, context=("sent", step))
                        assert wait(lambda one: one.context == ("sent", step)).flags & fi.Op.SEND
                    else:
                        again(endpoint.inject, view, to=peer)
                        outbox[:used] = bytes(used)  # free at once
                    barrier()
                else:
                    inbox[:] = bytes(ROOM)
                    view = memoryview(inbox)[:max(used, 8)]
                    if kind == "tagged":
                        again(endpoint.tagged_recv, view, tag=0xAB00, ignore=0xFF, context=("got", step))
                    else:
                        again(endpoint.recv, view, context=("got", step))
                    barrier()
                    got = wait(lambda one: one.context == ("got", step))
                    assert got.length == used and got.flags & fi.Op.RECV, got
                    assert inbox[:used] == pattern(step, used, sender), (kind, size)
                    assert not any(inbox[used:])
                    if kind == "tagged":
                        assert got.tag == 0xAB00 + step
                    barrier()
        for sender in (0, 1):  # remote memory
            step += 1
            offset = 64
            if rank == sender:
                outbox[:size] = pattern(step, size, sender)
                view = memoryview(outbox)[:size]
                barrier()
                again(endpoint.write, view, to=peer, remote=remote_in.at(offset), context=("wrote", step))
                assert wait(lambda one: one.context == ("wrote", step)).flags & fi.Op.WRITE
                # Its arrival is announced by the immediate of a second write of the same bytes.
                again(endpoint.writedata, view, to=peer, remote=remote_in.at(offset), data=DATA, context=("told", step))
                wait(lambda one: one.context == ("told", step))
                barrier()
                outbox[:size] = bytes(size)
                again(endpoint.read, view, source=peer, remote=remote_in.at(offset), context="read")
                wait(lambda one: one.context == "read")
                assert outbox[:size] == pattern(step, size, sender)
                barrier()
            else:
                inbox[:] = bytes(ROOM)
                if fi.Mode.RX_CQ_DATA in info.mode:
                    again(endpoint.recv, memoryview(outbox)[:64], context="immediate")
                barrier()
                told = wait(lambda one: one.flags & fi.Op.REMOTE_CQ_DATA)
                assert told.data == DATA and told.context in (None, "immediate"), told
                assert inbox[offset:offset + size] == pattern(step, size, sender), size
                assert not any(inbox[:offset]) and not any(inbox[offset + size:])
                barrier()
                barrier()
    barrier()
print("ok", info.fabric.prov_name, step, len(domain.in_flight))
"""

PAIR = r"""
import socket, subprocess, sys
one, two = socket.socketpair()
ranks = [
    subprocess.Popen(
        [sys.executable, "-W", "error", "-c", sys.argv[1], *sys.argv[2:4], str(rank), str(end.fileno())],
        pass_fds=(end.fileno(),), stdout=subprocess.PIPE, text=True,
    )
    for rank, end in enumerate((one, two))
]
one.close()
two.close()
said = [rank.communicate(timeout=50)[0].strip() for rank in ranks]
print("\n".join(said))
sys.exit(max(rank.returncode != 0 for rank in ranks))
"""


@pytest.fixture(autouse=True)
def _shim():
    fabric_runs.need_shim()


@pytest.mark.parametrize("provider", ["tcp", "shm"])
@pytest.mark.parametrize("libfabric", ["system", "wheel"])
def test_two_processes_exchange_every_byte(libfabric, provider):
    path = fabric_runs.of(libfabric).path
    done = subprocess.run(
        [sys.executable, "-c", PAIR, RANK, path, provider],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")[:2]
    assert [line.split()[0] for line in lines] == ["ok", "ok"]
    # nothing but cancelled receives may be left, and there are none
    assert all(provider in line and line.endswith(" 0") for line in lines)


@pytest.mark.parametrize("provider", ["efa", "efa-direct"])
def test_two_processes_exchange_every_byte_over_an_emulated_device(provider):
    need_softefa()
    path = fabric_runs.wheel().path
    done = on_softefa(
        sys.executable, "-c", PAIR, RANK, path, provider, emulate="latency=5us,reorder=0.5,spread=20us",
        env={"FI_EFA_RX_SIZE": "256", "FI_EFA_ENABLE_SHM_TRANSFER": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [["ok", "efa"], ["ok", "efa"]]
    assert " 2 NICs " in done.stderr


def test_a_flipped_bit_is_noticed():
    need_softefa()
    path = fabric_runs.wheel().path
    done = on_softefa(
        sys.executable, "-c", PAIR, RANK, path, "efa-direct", emulate="corrupt=0.5", env={"FI_EFA_RX_SIZE": "256"}
    )
    assert done.returncode != 0
    assert "AssertionError" in done.stderr
