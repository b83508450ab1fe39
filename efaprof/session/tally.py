"""What a recording captured, counted from the headers of rings and raw files; records are not decoded here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from efaprof.session import host
from efaprof.session.cpu import pid_namespace
from efaprof.session.ringname import ring_names
from efaprof.trace.header import HEADER_BYTES, MAGIC, SLOT_BYTES, unpack
from efaprof.trace.rundir import RAW_DIR, RAW_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PARENT = "parent"  # producer name of the recorder's own ring

_KEPT_SUFFIX = f".kept{RAW_SUFFIX}"  # beside a file that --max-size shortened: what its later records refer to


@dataclass(frozen=True, slots=True)
class Tally:
    """What the recorded processes wrote (the recorder's own samples left out)."""

    processes: int
    threads: int  # rings; a ring serves several threads of a process when they do not live at the same time
    size: int  # bytes of records
    dropped: int  # records that could not be written


@dataclass(frozen=True, slots=True)
class Leftover:
    """A ring that is still there after everything that could be copied was copied."""

    path: Path
    pid: int
    is_alive: bool  # its process runs, as far as can be seen from here
    waiting: int  # bytes that were published and not copied


def count(run: Path) -> Tally:
    """What stands in the run's raw files."""
    files = [
        (path, header) for path in (run / RAW_DIR).glob(f"*{RAW_SUFFIX}") if (header := read_header(path)) is not None
    ]
    recorded = [header for _, header in files if bytes(header["producer"]) != PARENT.encode()]
    return Tally(
        processes=len(
            {(int(header["pid_ns"]), int(header["pid"]), int(header["process_start"])) for header in recorded}
        ),
        threads=sum(1 for path, header in files if _is_thread(path, header)),
        size=SLOT_BYTES * sum(int(header["head"]) - int(header["first"]) for header in recorded),
        dropped=sum(int(header["dropped"]) + int(header["nested"]) + int(header["failed"]) for header in recorded),
    )


def _is_thread(path: Path, header: dict[str, int | bytes]) -> bool:
    """Not the recorder's file, not one that only counts losses (no slots), not what was kept of a file's front."""
    is_ours = bytes(header["producer"]) == PARENT.encode()
    return not is_ours and bool(header["capacity"]) and not path.name.endswith(_KEPT_SUFFIX)


def leftovers(folders: Iterable[Path]) -> list[Leftover]:
    """The rings in these folders, this process's own left out."""
    found: list[Leftover] = []
    own_namespace = pid_namespace()
    for ring in ring_names(*folders):
        header = read_header(ring.path)
        if header is None or ring.pid == os.getpid():
            continue
        # A process of another pid namespace cannot be asked for by its id: it counts as alive.
        is_alive = ring.pid_ns != own_namespace or (
            host.is_running(ring.pid) and host.process_start(ring.pid) == int(header["process_start"])
        )
        waiting = SLOT_BYTES * max(int(header["head"]) - int(header["tail"]), 0)
        found.append(Leftover(ring.path, ring.pid, is_alive, waiting))
    return found


def read_header(path: Path) -> dict[str, int | bytes] | None:
    """Header of a ring or raw file; None when it is not one of ours."""
    try:
        with path.open("rb") as file:
            page = file.read(HEADER_BYTES)
    except OSError:
        return None
    if len(page) < HEADER_BYTES:
        return None
    header = unpack(page)
    return header if header["magic"] == MAGIC else None
