"""Which processes belong to a recording, and which of them run Python."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from efaprof import env

_PYTHON = re.compile(r"python(\d[\d.]*)?")
_LIBRARY = re.compile(rb"/libpython\d[^/\n]*\.so")


@dataclass(slots=True)
class ProcessTree:
    """The recorder's descendants, and whoever carries its ring directory in its environment (daemons do)."""

    recorder: int
    ring_dir: Path
    _ours: dict[int, None] = field(default_factory=dict)  # in the order in which they were seen
    _others: set[int] = field(default_factory=set)

    def scan(self, *, ignored: set[int]) -> list[int]:
        """Process ids of the recorded processes that live, in the order in which they were first seen."""
        alive = set(numbered(Path("/proc")))
        for gone in [pid for pid in self._ours if pid not in alive]:
            del self._ours[gone]
        self._others &= alive
        fresh = sorted(alive - self._ours.keys() - self._others - ignored - {self.recorder})
        parents = {pid: parent for pid in fresh if (parent := _parent(pid)) is not None}
        grown = True
        while grown:  # a child may have a lower id than its parent
            grown = False
            for pid, parent in parents.items():
                if pid not in self._ours and (parent == self.recorder or parent in self._ours or self._is_named(pid)):
                    self._ours[pid] = None
                    grown = True
        self._others |= parents.keys() - self._ours.keys()
        return list(self._ours)

    def _is_named(self, pid: int) -> bool:
        """Its environment, as it was when it was started, names our ring directory."""
        try:
            return f"\0{env.RING_DIR}={self.ring_dir}\0".encode() in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False


def numbered(folder: Path) -> list[int]:
    """Entries of a folder of /proc that are numbers: process or thread ids."""
    with os.scandir(folder) as entries:
        return [int(entry.name) for entry in entries if entry.name.isdigit()]


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def is_python(pid: int) -> bool | None:
    """The process runs a Python interpreter, its own program or a library; None when we may not look."""
    try:
        program = Path(os.readlink(f"/proc/{pid}/exe")).name  # noqa: PTH115 - Path.readlink has nothing more to give
        if _PYTHON.fullmatch(program.removesuffix(" (deleted)")):
            return True
        return _LIBRARY.search(Path(f"/proc/{pid}/maps").read_bytes()) is not None
    except PermissionError:
        return None
    except OSError:
        return False
