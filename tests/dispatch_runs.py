"""Runs of efaprof-dispatch, recorded by hand, and their raw records as numpy arrays."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from raw_files import RawFile, names_of, of, read_raw

from efaprof import native
from efaprof.instrument.dispatch import DispatchOptions, binary
from efaprof.trace import layout
from efaprof.trace.layout import Shape, Stage

if TYPE_CHECKING:
    from numpy.typing import NDArray

SECONDS = 120


def start(options: DispatchOptions, *more: str, rings: Path | None = None) -> subprocess.Popen[str]:
    """The program, running; with `rings` it records into a folder there."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EFAPROF_RING")}
    if rings is not None:
        (rings / "rings").mkdir(parents=True, mode=0o700)
        environment["EFAPROF_RING_DIR"] = str(rings / "rings")
    return subprocess.Popen(
        [str(binary()), *options.arguments(), *more], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """What it said and how it ended."""
    out, err = process.communicate(timeout=SECONDS)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(options: DispatchOptions, *more: str) -> subprocess.CompletedProcess[str]:
    """Run to the end, nothing recorded."""
    return finish(start(options, *more))


@dataclass(frozen=True)
class Recorded:
    """A run that ended, and everything that its ranks recorded."""

    options: DispatchOptions
    summary: dict[str, Any]
    ranks: tuple[Rank, ...]
    dropped: int


@dataclass(frozen=True)
class Rank:
    """Records of one rank, over its threads; stages sorted by sequence."""

    stages: dict[Stage, NDArray[np.void]]
    records: dict[Shape, NDArray[np.void]]
    counters: dict[str, list[int]]
    notes: dict[str, int]

    @property
    def issued(self) -> NDArray[np.void]:
        """One row per operation, in order: its KERNEL stage."""
        return self.stages[Stage.KERNEL]

    @cached_property
    def wire_seq(self) -> NDArray[np.int64]:
        """Wire sequence of each operation as format.h derives it; −1 for one that is not sequenced."""
        x, peer = self.issued["x"], self.issued["peer"]
        kind = x >> 12
        sequenced = (x & layout.X_IMM != 0) | (kind == layout.Command.SIGNAL) | (kind == layout.Command.BARRIER)
        wire = np.full(len(x), -1)
        word = peer.astype(np.int64) << 8 | x & 0xFF
        for key in np.unique(word[sequenced]):
            chosen = np.flatnonzero(sequenced & (word == key))
            wire[chosen] = np.arange(len(chosen))
        return wire


def record(options: DispatchOptions, folder: Path, *more: str) -> Recorded:
    """Run to the end, which must be a good one, and read what was recorded."""
    done = finish(start(options, "--json", *more, rings=folder))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return Recorded(options, json.loads(done.stdout), *_read(options.ranks, folder))


def drain(folder: Path) -> list[Path]:
    """Copies the rings below `folder`; the raw files."""
    (folder / "raw").mkdir()
    native.RingDrain(folder / "rings", folder / "raw").close()
    return sorted((folder / "raw").glob("*.efr"))


def seq(stage: NDArray[np.void]) -> NDArray[np.int64]:
    """Command number of each stage record."""
    return (stage["op"] & np.uint64((1 << 48) - 1)).astype(np.int64)


def begin(records: NDArray[np.void]) -> NDArray[np.uint64]:
    """Ticks at which each record's stretch began."""
    return records["t_end"] - records["dur"]


def _read(ranks: int, folder: Path) -> tuple[tuple[Rank, ...], int]:
    by_pid: dict[int, list[RawFile]] = {}
    dropped = 0
    for path in drain(folder):
        file = read_raw(path)
        assert file.producer == "dispatch"
        dropped += int(file.header["dropped"]) + int(file.header["nested"]) + int(file.header["failed"])
        by_pid.setdefault(int(file.header["pid"]), []).append(file)
    found = [_rank(files) for files in by_pid.values()]
    found.sort(key=lambda rank: rank.counters["job.rank"][0])
    assert [rank.counters["job.rank"] for rank in found] == [[number] for number in range(ranks)]
    return tuple(found), dropped


def _rank(files: list[RawFile]) -> Rank:
    records = {shape: np.concatenate([of(file, shape) for file in files]) for shape in layout.RECORDS}
    names = {key: text for file in files for key, text in names_of(file).items()}
    counters: dict[str, list[int]] = {}
    for counter in records[Shape.COUNTER]:
        counters.setdefault(names[int(counter["name"])], []).append(int(counter["value"]))
    notes = {names[int(note["name"])]: int(note["value"]) for note in records[Shape.NOTE]}
    stages = {}
    for stage in Stage:
        rows = records[Shape.STAGE][records[Shape.STAGE]["kind"] & 0xFF == stage]
        stages[stage] = rows[np.argsort(seq(rows), kind="stable")]
    return Rank(stages, records, counters, notes)
