"""Tables that spill: the same rows in memory and in a file, whatever a piece lacks is 0."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from efaprof.trace import steptable
from efaprof.trace.schema import StepKind
from efaprof.trace.steptable import StepTable


@pytest.fixture(params=[1, 20, 1 << 14], autouse=True)
def rows_at_a_time(request, monkeypatch):
    """Pieces of one append, of several, and of all."""
    monkeypatch.setattr(steptable, "_ROWS_AT_A_TIME", request.param)


def filled(spill_bytes, pieces=5):
    table = StepTable({"kind": StepKind}, spill_bytes=spill_bytes)
    for piece in range(pieces):
        rows = np.arange(piece * 10, piece * 10 + 10)
        more = {"extra_ns": rows * 3} if piece % 2 else {}
        table.append({"step": rows, "kind": np.zeros(10, np.uint8), "share": rows / 7, **more})
    return table


@pytest.mark.parametrize("spill_bytes", [1, 1 << 20])
def test_columns_read_back_as_they_were_put_in(spill_bytes):
    table = filled(spill_bytes)
    assert len(table) == 50
    assert table.columns == ["step", "kind", "share", "extra_ns"]
    assert table.column("step").tolist() == list(range(50))
    assert (table.column("share") == np.arange(50) / 7).all()
    is_odd = np.arange(50) // 10 % 2 == 1
    assert table.column("extra_ns").tolist() == np.where(is_odd, np.arange(50) * 3, 0).tolist()


def test_reading_does_not_move_where_the_next_rows_go():
    table = filled(1)
    table.column("step")
    table.append({"step": np.array([50]), "kind": np.array([0], np.uint8), "share": np.array([0.0])})
    assert table.column("step").tolist() == list(range(51))


def test_it_filters_and_is_kept_as_a_table(tmp_path):
    table = filled(64)
    table.append({"step": np.array([99]), "kind": np.array([1], np.uint8), "share": np.array([0.5])})
    assert table.filter(pl.col("kind") == "decode")["step"].to_list() == list(range(50))
    table.write_parquet(tmp_path / "steps.parquet")
    kept = pl.read_parquet(tmp_path / "steps.parquet")
    assert kept["kind"].dtype == StepKind
    assert kept.equals(table.filter(pl.lit(value=True)))


def test_an_empty_table_has_no_rows():
    assert len(StepTable()) == 0
    assert StepTable().filter(pl.lit(value=True)).is_empty()
