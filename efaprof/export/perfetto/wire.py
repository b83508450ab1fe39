"""Protobuf wire format: single fields as bytes, and whole columns as varints of one width."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Widths that a column's varints are padded to. A varint may carry empty high groups (0x80 … 0x00); readers accept it,
# and with it every row of a chunk has the same length, so rows are filled column by column.
WIDTHS = (1, 2, 4, 8, 10)
_SPARE_BITS = {1: 7, 2: 14, 4: 28, 8: 56, 10: 64}


def varint(value: int) -> bytes:
    """Shortest varint of a value in [-2**63, 2**64); negative values take ten bytes."""
    rest = value & 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def tag(number: int, wire_type: int) -> bytes:
    """Key that precedes a field: 0 varint, 1 fixed 64 bits, 2 length-delimited."""
    return varint(number << 3 | wire_type)


def uint_field(number: int, value: int) -> bytes:
    """Varint field; also for int32, int64, bool and enums."""
    return tag(number, 0) + varint(value)


def double_field(number: int, value: float) -> bytes:
    """Field of type double."""
    return tag(number, 1) + struct.pack("<d", value)


def bytes_field(number: int, data: bytes) -> bytes:
    """Field of type bytes or message."""
    return tag(number, 2) + varint(len(data)) + data


def text_field(number: int, text: str) -> bytes:
    """Field of type string; a lone surrogate, which UTF-8 cannot hold, becomes '?'."""
    return bytes_field(number, text.encode("utf-8", errors="replace"))


def width_of(values: NDArray[np.uint64]) -> int:
    """Smallest of WIDTHS that holds every value."""
    bits = int(values.max()).bit_length() if values.size else 0
    return next(width for width in WIDTHS if bits <= _SPARE_BITS[width])


def put_varints(rows: NDArray[np.uint8], offset: int, width: int, values: NDArray[np.uint64]) -> None:
    """Write `values` into bytes [offset, offset + width) of each row."""
    if width == 1:
        rows[:, offset] = values
        return
    if width == 2:
        low = values.astype(np.uint16)
        _window(rows, offset, "<u2")[:] = (low & 0x7F) | (low >> 7 << 8) | 0x80
        return
    if width == 4:
        word = values.astype(np.uint32)
        pair = (word & 0x3FFF) | (word & 0xFFFC000) << 2
        _window(rows, offset, "<u4")[:] = (pair & 0x7F007F) | (pair & 0x3F803F80) << 1 | 0x808080
        return
    last = width == 8
    _window(rows, offset, "<u8")[:] = _spread(values, 0x0080808080808080 if last else 0x8080808080808080)
    if not last:
        top = (values >> np.uint64(56)).astype(np.uint16)
        _window(rows, offset + 8, "<u2")[:] = (top & 0x7F) | (top >> 7 << 8) | 0x80


def put_fixed64(rows: NDArray[np.uint8], offset: int, values: NDArray[np.uint64] | NDArray[np.float64]) -> None:
    """Write 64-bit little-endian values into bytes [offset, offset + 8) of each row."""
    _window(rows, offset, "<f8" if values.dtype.kind == "f" else "<u8")[:] = values


def _window(rows: NDArray[np.uint8], offset: int, kind: str) -> NDArray[np.generic]:
    """Unaligned view of a column of the rows as integers."""
    size = int(kind[-1])
    view: NDArray[np.generic] = rows[:, offset : offset + size].view(kind)[:, 0]
    return view


def _spread(values: NDArray[np.uint64], continuation: int) -> NDArray[np.uint64]:
    """Low 56 bits of each value as eight groups of seven, in three halvings: 28 + 28, 14 each, 7 each."""
    out = values & np.uint64(0x0FFFFFFF)
    high = values & np.uint64(0x00FFFFFFF0000000)
    high <<= np.uint64(4)
    out |= high
    for keep, move, shift in (
        (0x00003FFF00003FFF, 0x0FFFC0000FFFC000, 2),
        (0x007F007F007F007F, 0x3F803F803F803F80, 1),
    ):
        np.bitwise_and(out, np.uint64(move), out=high)
        high <<= np.uint64(shift)
        out &= np.uint64(keep)
        out |= high
    out |= np.uint64(continuation)
    return out
