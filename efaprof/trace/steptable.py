"""A table of numbers that grows chunk by chunk and is read column by column: flat memory, however many rows.

It stays in memory up to a bound, beyond it in a temporary file that nobody else sees. Any thread may read it.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from efaprof.trace.cells import Cells, narrowed
from efaprof.trace.sink import ParquetSink

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Column = NDArray[Any]

SPILL_BYTES = 8 << 20
_ROWS_AT_A_TIME = 1 << 14


class _Piece:
    """Rows that were appended together."""

    __slots__ = ("begin", "cells", "kept", "place", "rows")

    def __init__(self, rows: int, begin: int, columns: Mapping[str, Column]) -> None:
        self.rows = rows
        self.begin = begin  # in the temporary file, once it is there
        self.cells: dict[str, Cells] = {}
        self.place: dict[str, int] = {}  # of a column's numbers within the piece
        parts, size = [], 0
        for name, values in columns.items():
            self.cells[name], narrow = narrowed(values)
            parts.append(narrow.data.cast("B") if narrow.nbytes else b"")
            self.place[name] = size
            size += narrow.nbytes
        self.kept: bytes | None = b"".join(parts)

    def read(self, name: str, file: int, out: Column) -> None:
        """One column's numbers; 0 where the piece has none."""
        cells = self.cells.get(name)
        if cells is None:
            out[...] = 0
            return
        place = self.place[name]
        if self.kept is not None:
            cells.read(memoryview(self.kept)[place : place + cells.size], out)
        else:
            cells.read(os.pread(file, cells.size, self.begin + place), out)


class StepTable:
    """Rows of columns; where a piece lacks one, it is 0 there."""

    def __init__(self, enums: Mapping[str, pl.Enum] | None = None, *, spill_bytes: int = SPILL_BYTES) -> None:
        """`enums` names the columns that hold numbers of words."""
        self._enums = dict(enums or {})
        self._spill_bytes = spill_bytes
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the table
        weakref.finalize(self, self._file.close)
        self._end = 0
        self._spilled = 0  # pieces that are in the file
        self._rows = 0
        self._open: list[tuple[int, dict[str, Column]]] = []  # rows that are no piece yet
        self._open_rows = 0
        self._pieces: list[_Piece] = []
        self._lock = threading.Lock()
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
        own = {
            name: values.astype(self._types.setdefault(name, values.dtype), copy=False)
            for name, values in columns.items()
        }
        rows = len(next(iter(own.values())))
        self._rows += rows
        self._open.append((rows, own))
        self._open_rows += rows
        if self._open_rows >= _ROWS_AT_A_TIME:
            self._close()

    def _close(self) -> None:
        """Make one piece of the rows that came since the last one."""
        with self._lock:
            if not self._open:
                return
            names = dict.fromkeys(name for _, own in self._open for name in own)
            whole = {
                name: np.concatenate([own.get(name, np.zeros(rows, self._types[name])) for rows, own in self._open])
                for name in names
            }
            piece = _Piece(self._open_rows, self._end, whole)
            assert piece.kept is not None  # until it is in the file
            self._end += len(piece.kept)
            self._pieces.append(piece)
            self._open, self._open_rows = [], 0
            if self._end > self._spill_bytes:
                self._spill()

    def _spill(self) -> None:
        for piece in self._pieces[self._spilled :]:
            assert piece.kept is not None  # these are those that are not in the file
            left = memoryview(piece.kept)
            while left:
                left = left[os.pwrite(self._file.fileno(), left, piece.begin + len(piece.kept) - len(left)) :]
            piece.kept = None
        self._spilled = len(self._pieces)

    def merge(self, name: str, parts: Sequence[str], *, hidden: Sequence[str] = ()) -> None:
        """From here on the sum of the parts that there are stands in their place; `hidden` are gone with them."""
        known = [part for part in parts if part in self._types]
        self._hidden |= {*known, *hidden}
        if known:
            self._sums[name] = known
            self._types[name] = self._types[known[0]]

    def column(self, name: str) -> Column:
        """All rows of one column."""
        self._close()
        return self._read(name, self._pieces)

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
        self._close()
        first, rows = 0, 0
        for at, piece in enumerate(self._pieces, 1):
            rows += piece.rows
            if rows >= _ROWS_AT_A_TIME or at == len(self._pieces):
                pieces = self._pieces[first:at]
                yield pl.DataFrame([self._series(name, self._read(name, pieces)) for name in self.columns])
                first, rows = at, 0

    def _series(self, name: str, values: Column) -> pl.Series:
        words = self._enums.get(name)
        if words is None:
            return pl.Series(name, values)
        return pl.Series(name, words.categories, dtype=words).gather(values)

    def _read(self, name: str, pieces: Sequence[_Piece]) -> Column:
        if name in self._sums:
            summed: Column = np.sum([self._read(part, pieces) for part in self._sums[name]], axis=0)
            return summed
        values = np.empty(sum(piece.rows for piece in pieces), self._types[name])
        at = 0
        for piece in pieces:
            piece.read(name, self._file.fileno(), values[at : at + piece.rows])
            at += piece.rows
        return values
