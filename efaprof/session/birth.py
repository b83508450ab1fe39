"""When a file was made, which Python's os.stat does not say on Linux."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_AT_FDCWD = -100
_BORN = 0x800  # STATX_BTIME
# struct statx: mask at 0, birth time (s64 seconds, u32 nanoseconds) at 80; 256 bytes in all.
_SIZE, _BIRTH = 256, 80


@functools.cache
def _statx() -> Any:
    try:
        return ctypes.CDLL(None, use_errno=True).statx
    except (OSError, AttributeError):
        return None


def birth_ns(path: Path) -> int | None:
    """CLOCK_REALTIME at which the file was made, as coarse as the kernel's tick; None where that is not kept."""
    call = _statx()
    if call is None:
        return None
    buffer = ctypes.create_string_buffer(_SIZE)
    if call(_AT_FDCWD, os.fsencode(path), 0, _BORN, buffer) != 0:
        return None
    if not int.from_bytes(buffer.raw[:4], "little") & _BORN:
        return None
    seconds = int.from_bytes(buffer.raw[_BIRTH : _BIRTH + 8], "little", signed=True)
    return seconds * 1_000_000_000 + int.from_bytes(buffer.raw[_BIRTH + 8 : _BIRTH + 12], "little")
