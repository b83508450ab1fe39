"""log.txt of a run: what the recorder did, and when."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Log:
    """Appends lines; each carries the wall-clock time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, line: str) -> None:
        """Append one line. A log that cannot be written (disk full) must not end a recording."""
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))
        try:
            with self._path.open("a", encoding="utf-8", errors="replace") as file:
                file.write(f"{stamp}.{int(now * 1000) % 1000:03d} {line}\n")
        except OSError:
            return
