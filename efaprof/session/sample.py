"""Counter files of the kernel: opened once, read again and again."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

_LONGEST_VALUE = 256  # bytes read of a file


class Emit(Protocol):
    """Writes one counter record at the present time (efaprof.native.counter)."""

    def __call__(self, name: str, value: int, *, monotone: bool = True) -> None:
        """Record `value` of the counter `name`; a gauge when not `monotone`."""


class Sampler(Protocol):
    """Something to be sampled from time to time by the recording loop."""

    interval_s: float  # until the next sample; may change from sample to sample

    @property
    def complaint(self) -> str:
        """What the user must know about the samples taken; empty when all went as asked."""

    def sample(self, emit: Emit) -> None:
        """Read and emit what there is; never raises for a source that went away."""


@dataclass(slots=True)
class CounterFile:
    """One number in one file of sysfs or procfs; `word` says which of the words in it."""

    name: str
    path: Path
    word: int = 0
    scale: int = 1
    _fd: int = field(default=-1, repr=False)

    def read(self) -> int | None:
        """The value now, or None when there is none (any more)."""
        try:
            if self._fd < 0:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(self._fd, _LONGEST_VALUE, 0).split()[self.word]) * self.scale
        except (OSError, ValueError, IndexError):
            self.close()
            return None

    def is_readable(self) -> bool:
        """There is a value; the file is not kept open for it."""
        value = self.read()
        self.close()
        return value is not None

    def close(self) -> None:
        """Let the file go; `read` opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
