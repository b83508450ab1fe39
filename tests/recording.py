"""Running `efaprof record` as a user does, and looking at what it wrote without the reader under test elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from efaprof import native
from efaprof.session.tally import read_header
from efaprof.trace.layout import COUNTER, HEAD, HEADER_BYTES, NAME, SLOT_BYTES, Shape

if TYPE_CHECKING:
    from collections.abc import Callable

EFAPROF = (sys.executable, "-m", "efaprof")

# A program that writes `argv[1]` records 0, 1, 2, … of the counter test.value, then runs argv[2] if there is one.
WRITER = """
import os, sys, threading, time
from efaprof import native
def write(count, start=0):
    native.set_producer("workload")
    for value in range(start, start + count):
        native.counter("test.value", value)
write(int(sys.argv[1]))
exec(sys.argv[2] if len(sys.argv) > 2 else "")
"""


def writer(count: int, then: str = "") -> tuple[str, ...]:
    """Command line of a program that writes `count` records and then runs the Python code `then`."""
    return (sys.executable, "-c", WRITER, str(count), then)


def efaprof(
    *args: str | Path, cwd: Path, env: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run efaprof to its end, output captured."""
    return subprocess.run(
        [*EFAPROF, *map(str, args)], cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True,
        timeout=120, check=False, **options,
    )  # fmt: skip


def the_run(folder: Path) -> Path:
    """The only run directory in `folder`."""
    (run,) = folder.glob("efaprof-*")
    return run


def manifest(run: Path) -> dict[str, Any]:
    """The run's manifest as it stands in the file."""
    return json.loads((run / "manifest.json").read_text())


def wait_until(condition: Callable[[], Any], *, seconds: float = 60) -> Any:
    """The first true value of `condition`, asked again and again; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
    return value


@dataclass(frozen=True)
class Written:
    """What the raw files of a run hold."""

    kinds: dict[str, set[Shape]] = field(default_factory=dict)  # by producer
    counters: dict[str, list[int]] = field(default_factory=dict)  # values by name, in order within each file
    dropped: int = 0
    pids: set[int] = field(default_factory=set)


def written(run: Path) -> Written:
    """Decode the run's raw files."""
    kinds: dict[str, set[Shape]] = {}
    values: list[tuple[int, int]] = []
    names: dict[int, str] = {}
    dropped, pids = 0, set()
    for path in sorted((run / "raw").glob("*.efr")):
        header = read_header(path)
        assert header is not None, path
        dropped += int(header["dropped"])
        pids.add(int(header["pid"]))
        slots = np.fromfile(path, np.uint8, offset=HEADER_BYTES + SLOT_BYTES * int(header["first"]))
        starts = native.index_records(slots).starts.astype(np.int64) * SLOT_BYTES
        for start in starts:
            head = slots[start : start + HEAD.itemsize].view(HEAD)[0]
            shape = Shape(int(head["kind"]) >> 8)
            kinds.setdefault(bytes(header["producer"]).decode(), set()).add(shape)
            if shape == Shape.COUNTER:
                record = slots[start : start + SLOT_BYTES].view(COUNTER)[0]
                values.append((int(record["name"]), int(record["value"])))
            elif shape == Shape.NAME:
                record = slots[start : start + SLOT_BYTES].view(NAME)[0]
                text = slots[start + SLOT_BYTES : start + SLOT_BYTES + int(record["x"])].tobytes()
                names[int(record["id"])] = text.decode()
    counters: dict[str, list[int]] = {}
    for name, value in values:
        counters.setdefault(names[name], []).append(value)
    return Written(kinds, counters, dropped, pids)
