"""A table of numbers that grows chunk by chunk and is read column by column: flat memory, however many rows.

It stays in memory up to a bound, beyond it in a temporary file that nobody else sees.
"""

from __future__ import annotations

import tempfile
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from efaprof.trace.sink import ParquetSink

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Column = NDArray[Any]

SPILL_BYTES = 32 << 20
_ROWS_AT_A_TIME = 1 << 15


class StepTable:
    """Rows of columns; where a piece lacks one, it is 0 there."""

    def __init__(self, enums: Mapping[str, pl.Enum] | None = None, *, spill_bytes: int = SPILL_BYTES) -> None:
        """`enums` names the columns that hold numbers of words."""
        self._enums = dict(enums or {})
        self._file = tempfile.SpooledTemporaryFile(max_size=spill_bytes)  # noqa: SIM115 - closed with the table
        weakref.finalize(self, self._file.close)
        self._end = 0
        self._rows = 0
        self._pieces: list[tuple[int, dict[str, int]]] = []  # rows, and where each column begins
        self._types: dict[str, np.dtype[Any]] = {}
        self._sums: dict[str, list[str]] = {}
        self._hidden: set[str] = set()

    def __len__(self) -> int:
        return self._rows

    @property
    def columns(self) -> list[str]:
        """Names, in the order in which they came."""
        return [name for name in self._types if name not in self._hidden]

    def append(self, columns: Mapping[str, Column]) -> None:
        """More rows; a column keeps the type that it came with first."""
        places = {}
        self._file.seek(self._end)
        rows = 0
        for name, values in columns.items():
            own = np.ascontiguousarray(values, self._types.setdefault(name, values.dtype))
            places[name], rows = self._end, len(own)
            self._file.write(own.data)
            self._end += own.nbytes
        self._rows += rows
        self._pieces.append((rows, places))

    def merge(self, name: str, parts: Sequence[str], *, hidden: Sequence[str] = ()) -> None:
        """From here on the sum of the parts that there are stands in their place; `hidden` are gone with them."""
        known = [part for part in parts if part in self._types]
        self._hidden |= {*known, *hidden}
        if known:
            self._sums[name] = known
            self._types[name] = self._types[known[0]]

    def column(self, name: str) -> Column:
        """All rows of one column."""
        return np.concatenate([self._read(name, *piece) for piece in self._pieces])

    def __getitem__(self, name: str) -> pl.Series:
        return self._series(name, self.column(name))

    def filter(self, wanted: pl.Expr) -> pl.DataFrame:
        """The rows that are wanted, all in memory."""
        frames = [frame.filter(wanted) for frame in self._frames()]
        return pl.concat(frames) if frames else pl.DataFrame()

    def write_parquet(self, path: Path) -> None:
        """Keep the table; TraceError when that fails."""
        types = {name: self._types[name] for name in self.columns}
        schema = {name: self._enums.get(name) or pl.Series(np.empty(0, own)).dtype for name, own in types.items()}
        sink = ParquetSink(path, schema, group_rows=_ROWS_AT_A_TIME)
        try:
            for frame in self._frames():
                sink.write(frame)
        finally:
            sink.close()

    def _frames(self) -> Iterator[pl.DataFrame]:
        for piece in self._pieces:
            yield pl.DataFrame([self._series(name, self._read(name, *piece)) for name in self.columns])

    def _series(self, name: str, values: Column) -> pl.Series:
        words = self._enums.get(name)
        if words is None:
            return pl.Series(name, values)
        return pl.Series(name, words.categories, dtype=words).gather(values)

    def _read(self, name: str, rows: int, places: Mapping[str, int]) -> Column:
        own = self._types[name]
        if name in self._sums:
            summed: Column = np.sum([self._read(part, rows, places) for part in self._sums[name]], axis=0)
            return summed
        if name not in places:
            return np.zeros(rows, own)
        self._file.seek(places[name])
        return np.frombuffer(self._file.read(rows * own.itemsize), own)
