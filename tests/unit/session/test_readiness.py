from __future__ import annotations

from pathlib import Path

import pytest

from efaprof.cli.doctor import render
from efaprof.session import readiness
from efaprof.session.checks import State
from efaprof.session.readiness import Machine, gdaki, newest_node

READY = {
    "sys/module/efa/version": "3.3.0g\n",
    "opt/amazon/efa/lib64/libefa.so.1": "\x7fELF\0EFA_1.0\0EFA_1.4\0EFA_1.7\0",
    "opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so": "\0ncclRmaPlugin_v15\0ncclGinPlugin_v14\0",
    "usr/lib64/libgdrapi.so.2.5": "",
    "dev/gdrdrv": "",
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module 580.95\n",
    "proc/driver/nvidia/params": 'RegistryDwords: "PeerMappingOverride=1;"\n',
    "env/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2": "\0NCCL version 2.31.2+cuda13.0\0",
}
OLD = {
    **READY,
    "sys/module/efa/version": "2.17.2\n",
    "opt/amazon/efa/lib64/libefa.so.1": "\x7fELF\0EFA_1.0\0EFA_1.3\0",
    "opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so": "\0ncclNetPlugin_v9\0",
    "usr/lib64/libgdrapi.so.2.5": None,
    "usr/lib64/libgdrapi.so.2.4": "",
    "proc/driver/nvidia/params": 'RegistryDwords: ""\n',
    "env/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2": "\0NCCL version 2.28.3+cuda13.0\0",
}
IN_PART = {**READY, "opt/amazon/efa/lib64/libefa.so.1": "\x7fELF\0EFA_1.4\0", "dev/gdrdrv": None}
ANSWERS = {
    "ready": {"version": "2.7", "has_device": True, "has_ops": True, "has_counters": True},
    "in part": {"version": "2.6", "has_device": True, "has_ops": True, "has_counters": False},
    "old": {"version": "2.1", "has_device": True, "has_ops": False, "has_counters": False},
    "absent": {"version": "1.17", "has_device": False, "has_ops": False, "has_counters": False},
}


def machine(root: Path, files: dict[str, str | None]) -> Machine:
    for name, text in files.items():
        if text is not None:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return Machine(root, (root / "env",))


@pytest.mark.parametrize(("name", "files"), [("ready", READY), ("in part", IN_PART), ("old", OLD), ("absent", {})])
def test_readiness_for_kernel_posting_reads_as_its_golden(name, files, tmp_path, monkeypatch, golden):
    monkeypatch.setattr(readiness, "candidates", lambda: iter(["libfabric.so.1"]))
    monkeypatch.setattr(readiness, "_ask", lambda _: ANSWERS[name])
    rows = list(gdaki(machine(tmp_path, files)))
    worst = {"ready": {State.OK}, "in part": {State.OK, State.DEGRADED}, "old": {State.NO}, "absent": {State.NO}}
    assert {row.state for row in rows} == worst[name]
    golden(f"doctor_gdaki_{name.replace(' ', '_')}.txt", render(rows, colour=False).replace(str(tmp_path), "") + "\n")


def test_the_libfabric_that_gives_most_is_named(monkeypatch):
    order = {"/a": "absent", "/b": "in part", "/c": "old", "/d": "ready"}
    monkeypatch.setattr(readiness, "_ask", lambda path: ANSWERS[order[path]])
    for paths, state, named in (("/a", State.NO, "efa-direct"), ("/a/c", State.NO, "/c 2.1"),
                                ("/c/b", State.DEGRADED, "/b 2.6"), ("/a/b/c/d", State.OK, "/d 2.7")):  # fmt: skip
        row = readiness._libfabric([f"/{one}" for one in paths.strip("/").split("/")])
        assert (row.state, named in row.detail) == (state, True)


def test_a_libfabric_that_does_not_answer_is_no_error(monkeypatch):
    monkeypatch.setattr(readiness, "_ask", lambda _: {})
    assert readiness._libfabric(["/x"]).state is State.NO


def test_the_newest_version_node_is_the_highest_number(tmp_path):
    library = tmp_path / "libfabric.so.1"
    library.write_bytes(b"\0FABRIC_1.9\0FABRIC_1.10\0FABRIC_1.0\0")
    assert newest_node(library) == "FABRIC_1.10"
    assert newest_node(tmp_path / "none") == ""
