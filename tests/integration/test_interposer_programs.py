"""libfabric's own fi_pingpong, unmodified, recorded: it prints what it prints unrecorded, and its posts add up."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from integration import raw_records

from efaprof.trace.layout import OP_FUNCTIONS, ObjectKind, OpClass, Shape

FI_TRANSMIT = 1 << 11
FI_RECV = 1 << 10
ROUNDS = 20
RUNS = [  # provider, endpoint, mode, the provider's real name, bytes of a message ("": its six sizes, 64 B to 1 MB)
    ("tcp", "msg", "msg", "tcp", ""),
    ("tcp", "rdm", "msg", "tcp;ofi_rxm", "4096"),
    ("tcp", "rdm", "tagged", "tcp;ofi_rxm", "65536"),
    ("udp", "rdm", "msg", "udp;ofi_rxd", "4096"),
    ("udp", "dgram", "msg", "udp", "1024"),
    ("shm", "rdm", "msg", "shm", ""),
]


def commands(provider: str, endpoint: str, mode: str, size: str, port: int) -> list[list[str]]:
    options = ["-p", provider, "-e", endpoint, "-m", mode, "-I", str(ROUNDS), *(["-S", size] if size else [])]
    return [
        ["fi_pingpong", *options, "-B", str(port)],
        ["fi_pingpong", *options, "-P", str(port), "127.0.0.1"],
    ]


def untimed(text: str) -> list[list[str]]:
    """The table without its columns that depend on time: bytes, #sent, #ack, total."""
    return [line.split()[:4] for line in text.splitlines()]


@pytest.mark.parametrize(("provider", "endpoint", "mode", "name", "size"), RUNS)
def test_pingpong_prints_the_same_and_its_posts_add_up(
    tmp_path: Path, provider: str, endpoint: str, mode: str, name: str, size: str
):
    if not shutil.which("fi_pingpong"):
        pytest.skip("no fi_pingpong: apt-get install libfabric-bin")
    env = {"FI_PROVIDER": provider}
    port = raw_records.free_port()
    bare = raw_records.run_bare(*commands(provider, endpoint, mode, size, port), env=env, port=port)
    port = raw_records.free_port()
    recording = raw_records.record(tmp_path, *commands(provider, endpoint, mode, size, port), env=env, port=port)
    assert recording.codes == bare.codes == [0, 0]
    assert [untimed(text) for text in recording.stdout] == [untimed(text) for text in bare.stdout]
    sizes = len(untimed(bare.stdout[1])) - 1
    assert sizes == (1 if size else 6)
    assert recording.dropped == 0
    assert recording.notes(2) == []
    for pid in recording.pids:
        check_process(recording, pid, name, OpClass.TAGGED if mode == "tagged" else OpClass.MSG, sizes)


def check_process(recording: raw_records.Recording, pid: int, name: str, cls: OpClass, sizes: int) -> None:
    names = recording.names()
    objects = recording.of(Shape.OBJECT, pid=pid)
    objects = objects[objects["x"] == 0]  # the program's own, not a layer's
    (ep,) = objects[(objects["kind"] & 0xFF) == ObjectKind.EP]["fid"]
    assert {names[int(o["name"])] for o in objects if o["name"]} == {name}
    ops = recording.of(Shape.OP, pid=pid)
    ops = ops[(ops["nest"] == 0) & (ops["x"] == 0)]
    # A program that connects sends its first message in another way.
    assert set(ops["ep"].tolist()) == {int(ep)}
    functions = [OP_FUNCTIONS[cls][int(what) & 31] for what in ops["kind"] & 0xFF]
    sends = sum(f in ("send", "sendmsg") for f in functions)
    injects = functions.count("inject")
    receives = functions.count("recv")
    # Each size is one message a round in each direction, and a few more to begin and to end.
    assert sizes * ROUNDS <= sends + injects <= sizes * ROUNDS + 4
    assert sizes * ROUNDS <= receives <= sizes * ROUNDS + 4
    entries = recording.entries(pid=pid)
    entries = entries[entries["nest"] == 0]
    binds = recording.of(Shape.BIND, pid=pid)
    binds = binds[(binds["fid"] == ep) & ((binds["kind"] & 0xFF) == ObjectKind.CQ)]
    of_direction = {
        flag: int(np.isin(entries["cq"], binds["bound"][binds["flags"] & flag != 0]).sum())
        for flag in (FI_TRANSMIT, FI_RECV)
    }
    assert of_direction[FI_TRANSMIT] == sends  # an inject has no completion
    assert receives - of_direction[FI_RECV] in (0, 1)  # one receive may wait when it ends
