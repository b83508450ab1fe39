"""What became of each operation, by its number, in a scratch file: random access at bounded resident memory."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
from typing import IO, TYPE_CHECKING, Self

import numpy as np

from efaprof.errors import TraceError
from efaprof.trace.layers import Match

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

MATCHES = tuple(Match)
CODE = {match: code for code, match in enumerate(MATCHES)}
# Bits of the state byte above the match.
HAS_DONE = 0x80
HAS_DOORBELL = 0x40
MATCH_MASK = 0x0F

_BYTES = 8 + 8 + 2 + 1
_KEPT_ROWS = 1 << 20  # rows whose pages stay resident


class Outcomes:
    """Columns over operation numbers; a number without an outcome yet has state 0."""

    def __init__(self, count: int, folder: Path) -> None:
        """Room for `count` operations, on the disk of `folder`."""
        size = max(count * _BYTES, mmap.PAGESIZE)
        try:
            self._file = _room(folder, size)
        except OSError as error:
            hint = f"free {size >> 20} MiB there" if error.errno == errno.ENOSPC else "is it writable?"
            raise TraceError(f"{folder} has no room for a scratch file: {error.strerror}", hint=hint) from error
        self._map = mmap.mmap(self._file.fileno(), size)
        self.done_ns: NDArray[np.int64] = np.frombuffer(self._map, np.int64, count)
        self.doorbell_ns: NDArray[np.int64] = np.frombuffer(self._map, np.int64, count, 8 * count)
        self.error: NDArray[np.int16] = np.frombuffer(self._map, np.int16, count, 16 * count)
        self.state: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8, count, 18 * count)
        self._released = 0

    def release(self, below: int) -> None:
        """Let the pages of early operations leave memory; they stay readable and writable."""
        target = max(below - _KEPT_ROWS, 0)
        if target - self._released < _KEPT_ROWS:
            return
        count = len(self.state)
        for start, width in ((0, 8), (8 * count, 8), (16 * count, 2), (18 * count, 1)):
            low = start // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, low, start + target * width - low)
        self._released = target

    def rewind(self) -> None:
        """Begin releasing from the first operation again."""
        self._released = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        del self.done_ns, self.doorbell_ns, self.error, self.state
        self._file.close()
        with contextlib.suppress(BufferError):  # an error's traceback may hold an array: the mapping goes with it
            self._map.close()


def _room(folder: Path, size: int) -> IO[bytes]:
    """A nameless file with all its room taken: a mapping of a full disk would kill the process when written to."""
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(tempfile.TemporaryFile(dir=folder))
        os.posix_fallocate(file.fileno(), 0, size)
        opened.pop_all()
    return file
