"""Running the ring programs of tests/native/core and checking every record that they wrote."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from efaprof.native import RingDrain, index_records
from efaprof.trace import layout
from efaprof.trace.layout import HEADER, HEADER_BYTES, SLOT_BYTES, Shape

_ACCOUNTS_BYTES = 65536


@dataclass(frozen=True, slots=True)
class RawRing:
    """A raw file: its header and its records."""

    path: Path
    header: np.void
    slots: np.ndarray  # (n, 4) u64
    starts: np.ndarray
    bad_slots: int

    @property
    def heads(self) -> np.ndarray:
        first = self.slots[self.starts, :2].copy()
        return first.view(layout.HEAD).reshape(-1)


def read_raw(path: Path) -> RawRing:
    """The raw file from its `first` to its `tail`, which must be whole records."""
    data = np.fromfile(path, np.uint8)
    header = data[:HEADER_BYTES].view(HEADER)[0]
    begin = HEADER_BYTES + int(header["first"]) * SLOT_BYTES
    end = HEADER_BYTES + int(header["tail"]) * SLOT_BYTES
    assert end <= data.size or begin == end, f"{path} ends before its tail"
    slots = data[begin:end].reshape(-1, SLOT_BYTES)
    index = index_records(slots)
    assert index.next == len(slots) or index.bad_slots, f"{path} ends inside a record"
    return RawRing(path, header, slots.view(np.uint64), index.starts.astype(np.int64), index.bad_slots)


def _mix(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


@dataclass(slots=True)
class Found:
    """What the checked records of one tag were."""

    sequences: list[int] = field(default_factory=list)
    pids: set[int] = field(default_factory=set)


_PROBE_SHAPES = (Shape.SPAN, Shape.OP, Shape.OBJECT, Shape.STAGE, Shape.CQ)


def check_records(ring: RawRing) -> dict[int, np.ndarray]:
    """Sequences by tag, in file order, of the ring's test records, each compared word by word with what it must be."""
    assert ring.bad_slots == 0, f"{ring.path} has slots that are no record"
    heads = ring.heads
    mine = np.isin(heads["kind"] >> 8, _PROBE_SHAPES)
    lengths = np.diff(np.append(ring.starts, len(ring.slots)))[mine]
    starts, heads = ring.starts[mine], heads[mine]
    cq = heads["kind"] >> 8 == Shape.CQ
    fixed = {Shape.SPAN: 1, Shape.OP: 2, Shape.OBJECT: 3, Shape.STAGE: 1}
    lengths = np.select(
        [heads["kind"] >> 8 == shape for shape in fixed] + [cq],
        [np.full(len(heads), size) for size in fixed.values()] + [1 + heads["x"].astype(np.int64)],
    )
    slot_of = np.repeat(starts, lengths) + _counting(lengths)
    word = np.arange(4, dtype=np.uint64)[None, :] + np.uint64(4) * _counting(lengths).astype(np.uint64)[:, None]
    sequence = ring.slots[starts, 2]
    key = _mix(heads["dur"].astype(np.uint64) << np.uint64(40) ^ sequence)
    with np.errstate(over="ignore"):
        expected = _mix(np.repeat(key, lengths)[:, None] + word)
    same = (ring.slots[slot_of] == expected) | (word < 3)
    assert same.all(), f"{ring.path}: {np.count_nonzero(~same.all(axis=1))} torn slots"
    return {int(tag): sequence[heads["dur"] == tag] for tag in np.unique(heads["dur"])}


def _counting(lengths: np.ndarray) -> np.ndarray:
    """0, 1, … within each length, concatenated."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)


@dataclass(frozen=True, slots=True)
class Bench:
    """A place for one recorded run of a test program."""

    programs: Path
    ring_dir: Path
    raw_dir: Path
    spill_dir: Path
    accounts_path: Path
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def end(self) -> None:
        """Leave nothing running, whatever the test did."""
        for child in self.children:
            child.kill()
            child.wait()

    def env(self, **more: str) -> dict[str, str]:
        wanted = {"EFAPROF_RING_DIR": str(self.ring_dir), "EFAPROF_SPILL_DIR": str(self.spill_dir), **more}
        return {**os.environ, **wanted}

    def drain(self, *, max_bytes: int = 0) -> RingDrain:
        return RingDrain(self.ring_dir, self.raw_dir, spill_dir=self.spill_dir, max_bytes=max_bytes)

    def start(self, program: str, *args: str, **env: str) -> subprocess.Popen[bytes]:
        return self.start_command(str(self.programs / program), *args, **env)

    def start_command(self, *command: str, **env: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(command, env=self.env(**env))
        self.children.append(child)
        return child

    def run(self, program: str, *args: str, **env: str) -> None:
        status = self.start(program, *args, **env).wait(timeout=120)
        assert status == 0, f"{program} ended with {status}"

    def published(self) -> np.ndarray:
        return self._account(0)

    def refused(self) -> np.ndarray:
        return self._account(1)

    def _account(self, column: int) -> np.ndarray:
        return np.fromfile(self.accounts_path, np.uint64).reshape(-1, 8)[:, column].astype(np.int64)

    def raw(self) -> list[RawRing]:
        return [read_raw(path) for path in sorted(self.raw_dir.glob("*.efr"))]

    def account_for_everything(self, dropped: int, *, killed: bool = False) -> None:
        """Every published record arrived, every refused one is counted; a kill may fall between the two accounts."""
        published, refused, found = self.published(), self.refused(), self.found()
        for tag in np.flatnonzero(published):
            extra = len(found[int(tag)].sequences) - published[tag]
            assert extra == 0 or (killed and extra == 1)
        assert dropped == refused.sum() or (killed and 0 <= dropped - refused.sum() <= 2)

    def found(self) -> dict[int, Found]:
        """All test records of the run by tag; each tag's sequences must be 0, 1, 2 … without gap or repetition."""
        found: dict[int, Found] = {}
        for ring in self.raw():
            for tag, sequences in check_records(ring).items():
                entry = found.setdefault(tag, Found())
                entry.sequences += sequences.tolist()
                entry.pids.add(int(ring.header["pid"]))
        for tag, entry in found.items():
            assert sorted(entry.sequences) == list(range(len(entry.sequences))), f"tag {tag} has gaps"
        return found


def wait_until(claim: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    """Poll `claim` until it holds; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.001)


def make_bench(folder: Path, programs: Path, *, ring_dir: Path | None = None) -> Bench:
    """A bench in `folder`; its rings lie in `ring_dir`, by default also there."""
    rings = ring_dir or folder / "rings"
    for path in (rings, folder / "raw", folder / "spill"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    accounts = folder / "accounts"
    accounts.write_bytes(bytes(_ACCOUNTS_BYTES))
    return Bench(programs, rings, folder / "raw", folder / "spill", accounts)


Mounter = Callable[[Path, str], None]


@contextmanager
def mounting() -> Iterator[Mounter]:
    """A function that mounts a small file system (`tmpfs size=1m`, `ramfs`) on a folder, or skips for want of root."""
    mounted: list[Path] = []

    def mount(path: Path, what: str) -> None:
        path.mkdir(parents=True, exist_ok=True)
        kind, *options = what.split()
        command = ["mount", "-t", kind, *(["-o", *options] if options else []), kind, str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{' '.join(command)}: {done.stderr.strip()} (needs root)")
        mounted.append(path)

    try:
        yield mount
    finally:
        for path in reversed(mounted):
            subprocess.run(["umount", "-l", path], check=True)


def valid_ring(bench: Bench) -> Path:
    """The ring of a program that wrote 100 records and ended."""
    bench.run("ring_writer", str(bench.accounts_path), "1", "100", "0", EFAPROF_BUFFER=str(256 << 10))
    (ring,) = bench.ring_dir.glob("*.ring")
    return ring


def change(path: Path, **fields: int) -> None:
    """Set fields of a ring's header."""
    header = np.fromfile(path, HEADER, count=1)
    for name, value in fields.items():
        header[name] = value
    with path.open("r+b") as file:
        file.write(header.tobytes())


def own_start() -> int:
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
