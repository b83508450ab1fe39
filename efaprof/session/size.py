"""Sizes in bytes as people write them."""

from __future__ import annotations

import re

from efaprof.errors import UsageError

_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b?)\s*", re.IGNORECASE | re.ASCII)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Bytes of `4096`, `4MiB`, `64M`, `1.5GiB`; K, M, G, T are powers of 1024 with or without `iB`."""
    found = _WRITTEN.fullmatch(text)
    # "1i" would match the pattern, and nobody means anything by it.
    if not found or found[3].lower() == "i":
        raise UsageError(f"{text!r} is not a size", hint="write it like 4MiB, 64M or 1GiB")
    size = int(float(found[1]) * 1024 ** _POWER[found[2].lower()])
    if size < 1:
        raise UsageError(f"{text!r} is less than one byte", hint="write it like 4MiB, 64M or 1GiB")
    return size


def format_size(size: int) -> str:
    """`size` bytes with the largest unit that keeps it at one or more: `512 B`, `1.5 MiB`."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
