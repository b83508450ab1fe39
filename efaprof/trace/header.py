"""The header page of a ring or raw file, and what else of the format a recorder needs, without numpy (0.1 s)."""

from __future__ import annotations

import struct
from enum import IntEnum

MAGIC = 0x31524645
FORMAT_VERSION = 1
OLDEST_READABLE = 0  # 0 was before the format was fixed; its records are those of 1
SLOT_BYTES = 32
HEADER_BYTES = 4096


class Clock(IntEnum):
    """Which clock a ring's ticks are of."""

    TSC = 1
    MONOTONIC = 2


# Name, type in struct's letters, byte.
FIELDS: tuple[tuple[str, str, int], ...] = (
    ("magic", "I", 0), ("version", "I", 4), ("slot_bytes", "I", 8), ("clock", "I", 12), ("capacity", "Q", 16),
    ("boot_id", "2Q", 24), ("pid_ns", "Q", 40), ("pid", "I", 48), ("tid", "I", 52), ("start_ticks", "Q", 56),
    ("process_start", "Q", 64), ("host", "64s", 72), ("comm", "16s", 136), ("producer", "16s", 152),
    ("head", "Q", 256), ("state", "I", 264), ("dropped", "Q", 320), ("nested", "Q", 328), ("names_cut", "Q", 336),
    ("failed", "Q", 344), ("tail", "Q", 384), ("first", "Q", 392),
)  # fmt: skip


def numpy_format(letters: str) -> str | tuple[str, int]:
    """The same type in numpy's spelling."""
    if letters.endswith("s"):
        return f"S{letters[:-1]}"
    count, letter = letters[:-1], letters[-1]
    single = {"I": "<u4", "Q": "<u8"}[letter]
    return (single, int(count)) if count else single


def unpack(page: bytes) -> dict[str, int | bytes]:
    """The fields of a header page by name; texts without their padding, of the boot id its first half."""
    found: dict[str, int | bytes] = {}
    for name, letters, at in FIELDS:
        value = struct.unpack_from(f"<{letters}", page, at)[0]
        found[name] = value.rstrip(b"\0") if isinstance(value, bytes) else value
    return found
