"""Numbers of one column kept as narrowly as loses nothing: a base, and what each is above it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Column = NDArray[Any]

_WIDTHS: tuple[tuple[int, np.dtype[Any]], ...] = tuple(
    (int(np.iinfo(one).max), np.dtype(one)) for one in (np.uint8, np.uint16, np.uint32)
)


@dataclass(frozen=True, slots=True)
class Cells:
    """The values of a column's next rows."""

    rows: int
    base: int
    narrow: np.dtype[Any] | None  # None: all of them are the base

    @property
    def size(self) -> int:
        """Bytes that `kept` gives."""
        return 0 if self.narrow is None else self.rows * self.narrow.itemsize

    def read(self, kept: bytes | memoryview, out: Column) -> None:
        """The values as they were, into `out`."""
        if not self.rows:
            return
        if self.narrow is None:
            out[...] = self.base
        elif out.dtype.kind == "f" or not self.base:
            out[...] = np.frombuffer(kept, self.narrow)
        else:
            np.add(np.frombuffer(kept, self.narrow), self.base, out=out, dtype=out.dtype, casting="unsafe")


def narrowed(values: Column) -> tuple[Cells, Column]:
    """How to read these numbers or truth values, and what is to be kept of them."""
    rows = len(values)
    if not rows or values.dtype.kind not in "iu":
        if values.dtype == np.float64:
            with np.errstate(over="ignore"):
                half = values.astype(np.float32)
            if (half == values).all():
                return Cells(rows, 0, half.dtype), half
        return Cells(rows, 0, values.dtype), np.ascontiguousarray(values)
    low, high = int(values.min()), int(values.max())
    if low == high:
        return Cells(rows, low, None), values[:0]
    for most, narrow in _WIDTHS:
        if high - low <= most and narrow.itemsize < values.dtype.itemsize:
            return Cells(rows, low, narrow), (values - values.dtype.type(low)).astype(narrow)
    return Cells(rows, 0, values.dtype), np.ascontiguousarray(values)
