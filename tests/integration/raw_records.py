"""Run programs with the interposer preloaded by hand, drain their rings, and read the raw records as numpy arrays."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from efaprof import native
from efaprof.trace import layout

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class RawFile:
    """One raw file: the records of one ring, in the order in which they were written."""

    header: np.void
    slots: np.ndarray  # (n, 32) bytes
    starts: np.ndarray  # slot of each record
    kinds: np.ndarray  # of each record

    @property
    def pid(self) -> int:
        return int(self.header["pid"])

    def of(self, shape: layout.Shape, what: int | None = None) -> np.ndarray:
        """The records of one shape (and `what`), whole."""
        return self.gather(self.starts[self._chosen(shape, what)], layout.RECORDS[shape])

    def entries(self, what: int | None = None) -> np.ndarray:
        """The entries of all CQ records, each with its record's `cq`, `nest` and `t_end`."""
        starts = self.starts[self._chosen(layout.Shape.CQ, what)]
        heads = self.gather(starts, layout.CQ)
        counts = heads["x"].astype(np.int64)
        first = np.repeat(np.cumsum(counts) - counts, counts)
        at = np.repeat(starts.astype(np.int64) + 1, counts) + np.arange(counts.sum()) - first
        found = np.empty(len(at), [*layout.CQE.descr, ("cq", "<u8"), ("nest", "u1"), ("t_end", "<u8")])
        cqes = self.gather(at, layout.CQE)
        for name in layout.CQE.names or ():
            found[name] = cqes[name]
        found["cq"] = np.repeat(heads["cq"], counts)
        found["nest"] = np.repeat(heads["flags"] >> 8, counts)
        found["t_end"] = np.repeat(heads["t_end"], counts)
        return found

    def names(self) -> dict[int, str]:
        """Text of each NAME id."""
        names = {}
        for start in self.starts[self._chosen(layout.Shape.NAME, None)]:
            record = self.gather(np.array([start]), layout.NAME)[0]
            text = self.slots[int(start) + 1 :].tobytes()[: int(record["x"])]
            assert layout.name_id(text) == int(record["id"])
            names[int(record["id"])] = text.decode()
        return names

    def gather(self, starts: np.ndarray, record: np.dtype) -> np.ndarray:
        """The records of this type that begin at these slots."""
        n = record.itemsize // layout.SLOT_BYTES
        rows = starts.astype(np.int64)[:, None] + np.arange(n)
        return self.slots[rows].reshape(len(starts), record.itemsize).copy().view(record)[:, 0]

    def _chosen(self, shape: layout.Shape, what: int | None) -> np.ndarray:
        if what is None:
            return self.kinds >> 8 == shape
        return self.kinds == (shape << 8 | what)


@dataclass(frozen=True, slots=True)
class Recording:
    """What the processes of one recorded command left."""

    files: list[RawFile]
    stdout: list[str]  # of each command
    codes: list[int]
    pids: list[int]
    dropped: int

    def children(self) -> list[int]:
        """Recorded processes that the commands started themselves."""
        return sorted({file.pid for file in self.files} - set(self.pids))

    def of(self, shape: layout.Shape, what: int | None = None, *, pid: int | None = None) -> np.ndarray:
        """Records of one shape over all threads (of one process)."""
        return np.concatenate([f.of(shape, what) for f in self._files(pid)] or [np.empty(0, layout.RECORDS[shape])])

    def entries(self, what: int | None = None, *, pid: int | None = None) -> np.ndarray:
        return np.concatenate([file.entries(what) for file in self._files(pid)])

    def names(self) -> dict[int, str]:
        return {key: text for file in self.files for key, text in file.names().items()}

    def notes(self, what: int) -> list[str]:
        names = self.names()
        return [names[int(key)] for key in self.of(layout.Shape.NOTE, what)["name"]]

    def _files(self, pid: int | None) -> list[RawFile]:
        return [file for file in self.files if pid in (None, file.pid)]


def read_raw(path: Path) -> RawFile:
    """All records of a raw file; every slot must belong to one."""
    data = path.read_bytes()
    header = np.frombuffer(data, layout.HEADER, 1)[0]
    slots = np.frombuffer(data, np.uint8, offset=layout.HEADER_BYTES).reshape(-1, layout.SLOT_BYTES)
    slots = slots[: int(header["head"])]
    index = native.index_records(np.ascontiguousarray(slots))
    assert index.bad_slots == 0
    assert index.next == len(slots)
    kinds = slots[index.starts][:, 12:14].copy().view("<u2")[:, 0]
    return RawFile(header, slots, index.starts, kinds)


def interposer() -> Path:
    """The library that is preloaded."""
    return native.lib_path("libefaprof-fi.so")


def preload_env(folder: Path) -> dict[str, str]:
    """Environment that records into `folder`/rings."""
    return {**os.environ, "EFAPROF_RING_DIR": str(folder / "rings"), "LD_PRELOAD": str(interposer())}


def record(folder: Path, *commands: list[str], env: dict[str, str] | None = None, port: int | None = None) -> Recording:
    """Run the commands side by side, recorded; with `port`, those after the first once somebody listens there."""
    rings, raw = folder / "rings", folder / "raw"
    rings.mkdir(parents=True, mode=0o700, exist_ok=True)
    raw.mkdir()
    full = {**preload_env(folder), **(env or {})}
    with native.RingDrain(rings, raw) as drain:
        outcome = _run(commands, full, port, drain)
        stats = drain.close()
    files = [read_raw(path) for path in sorted(raw.glob("*.efr"))]
    assert stats.bad_rings == 0
    return Recording(files, outcome.stdout, outcome.codes, outcome.pids, stats.dropped)


def run_bare(*commands: list[str], env: dict[str, str] | None = None, port: int | None = None) -> Outcome:
    """The same without us."""
    return _run(commands, {**os.environ, **(env or {})}, port, None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What commands said."""

    stdout: list[str]
    codes: list[int]
    pids: list[int]


def _run(
    commands: tuple[list[str], ...], env: dict[str, str], port: int | None, drain: native.RingDrain | None
) -> Outcome:
    running: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            if running and port:
                wait_until(lambda: is_listening(port))
            running.append(
                subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
            )
        texts = _wait_draining(running, drain)
    finally:
        for process in running:
            process.kill()
    return Outcome(texts, [process.returncode for process in running], [process.pid for process in running])


def _wait_draining(running: list[subprocess.Popen[str]], drain: native.RingDrain | None) -> list[str]:
    deadline = time.monotonic() + DEADLINE_S
    texts = [""] * len(running)
    waiting = set(range(len(running)))
    while waiting:
        assert time.monotonic() < deadline, f"still running: {[running[i].args for i in waiting]}"
        for i in list(waiting):
            try:
                texts[i] = running[i].communicate(timeout=0.002)[0]
                waiting.remove(i)
            except subprocess.TimeoutExpired:
                pass
        if drain:
            drain.poll()
    return texts


def wait_until(ready: Callable[[], bool]) -> None:
    """Poll until it is so."""
    deadline = time.monotonic() + DEADLINE_S
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def free_port() -> int:
    """A TCP port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    """Whether a process waits for TCP connections there, on any address."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                return True
    return False
