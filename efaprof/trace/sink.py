"""Writing a table as parquet while it is being made: frames in, one file with row groups of bounded size out."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

import polars as pl
from polars.io.plugins import register_io_source

from efaprof.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

ROW_GROUP_ROWS = 1 << 18
_DEPTH = 2  # frames that may wait for the writer
_POLL_S = 0.2


class ParquetSink:
    """One file; a thread encodes and writes while the caller makes the next frame."""

    def __init__(self, path: Path, schema: Mapping[str, pl.DataType], *, group_rows: int = ROW_GROUP_ROWS) -> None:
        self._path = path
        self._group_rows = group_rows
        self._schema = dict(schema)
        self._frames: queue.Queue[pl.DataFrame | None] = queue.Queue(_DEPTH)
        self._kept: list[pl.DataFrame] = []
        self._kept_rows = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"write {path.name}", daemon=True)
        self._thread.start()

    def write(self, frame: pl.DataFrame) -> None:
        """Append rows."""
        if not frame.height:
            return
        self._kept.append(frame)
        self._kept_rows += frame.height
        if self._kept_rows >= self._group_rows:
            self._hand_over()

    def close(self) -> None:
        """Finish the file; TraceError when it could not be written."""
        if self._kept:
            self._hand_over()
        self._put(None)
        self._thread.join()
        self._check()

    def _hand_over(self) -> None:
        self._put(pl.concat(self._kept, rechunk=True) if len(self._kept) > 1 else self._kept[0])
        self._kept, self._kept_rows = [], 0

    def _put(self, frame: pl.DataFrame | None) -> None:
        while self._thread.is_alive():
            try:
                self._frames.put(frame, timeout=_POLL_S)
            except queue.Full:
                continue
            return
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise TraceError(
                f"{self._path} cannot be written: {self._error}", hint="free some space, or make the directory writable"
            ) from self._error

    def _run(self) -> None:
        try:
            pl.LazyFrame.sink_parquet(
                register_io_source(self._source, schema=self._schema),
                self._path,
                compression="zstd",
                compression_level=1,
                row_group_size=self._group_rows,
                statistics=False,  # a sixth of the time of writing; rows are in order, and read by position
                maintain_order=True,
            )
        except Exception as error:  # noqa: BLE001 - handed to the caller's thread, which raises it
            self._error = error

    def _source(
        self, columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, batch: int | None
    ) -> Iterator[pl.DataFrame]:
        del columns, predicate, rows, batch  # everything is written
        while (frame := self._frames.get()) is not None:
            yield frame
