"""The names of ring files, which say whose ring it is: `host.pidns.pid.tid.random.ring`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_SUFFIX = ".ring"


@dataclass(frozen=True, slots=True)
class RingName:
    """Whose ring a file is."""

    host: str
    pid_ns: int
    pid: int  # as seen inside that namespace
    tid: int  # of the thread that made the ring; a later thread of the process may have taken it over
    path: Path


def ring_names(*folders: Path) -> list[RingName]:
    """The rings in these folders; files with other names, and folders that do not exist, are passed over."""
    return [ring for folder in folders for name in _names(folder) if (ring := parse(folder / name))]


def parse(path: Path) -> RingName | None:
    """What the file's name says, or None when it is not a ring's name. A host name may hold dots."""
    parts = path.name.removesuffix(_SUFFIX).rsplit(".", 4)
    are_numbers = len(parts) == 5 and all(part.isascii() and part.isdigit() for part in parts[1:4])
    if not are_numbers or not path.name.endswith(_SUFFIX):
        return None
    return RingName(parts[0], int(parts[1]), int(parts[2]), int(parts[3]), path)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - ten times a second: names are enough
    except OSError:
        return []
