"""Tables written while they are made."""

from __future__ import annotations

import threading
from pathlib import Path

import polars as pl
import pytest

from efaprof.errors import TraceError
from efaprof.trace import sink
from efaprof.trace.sink import ParquetSink

SCHEMA = {"a": pl.Int64(), "kind": pl.Enum(["x", "y"])}


def frame(first, rows):
    return pl.DataFrame({"a": range(first, first + rows), "kind": ["x", "y"] * (rows // 2)}, schema=SCHEMA)


def test_frames_become_one_file_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(sink, "ROW_GROUP_ROWS", 64)
    writer = ParquetSink(tmp_path / "t.parquet", SCHEMA)
    for number in range(100):
        writer.write(frame(10 * number, 10))
    writer.close()
    table = pl.read_parquet(tmp_path / "t.parquet")
    assert table.equals(frame(0, 1000))


def test_a_table_without_rows_has_its_columns(tmp_path):
    writer = ParquetSink(tmp_path / "t.parquet", SCHEMA)
    writer.write(frame(0, 0))
    writer.close()
    assert dict(pl.read_parquet_schema(tmp_path / "t.parquet")) == SCHEMA


@pytest.mark.parametrize("path", [Path("/dev/full"), Path("/no/such/folder/t.parquet")])
def test_what_cannot_be_written_is_a_trace_error_and_never_a_hang(path, monkeypatch):
    monkeypatch.setattr(sink, "ROW_GROUP_ROWS", 1000)
    before = threading.active_count()
    writer = ParquetSink(path, SCHEMA)
    with pytest.raises(TraceError, match=f"{path} cannot be written") as error:
        for number in range(50):
            writer.write(frame(1000 * number, 1000))
        writer.close()
    assert "free some space" in error.value.hint
    assert threading.active_count() == before
