from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from run_samples import START_NS, operation, ops_frame, rows_frame, run_tables, steady_ops

from efaprof.errors import NothingToAnalyse, UsageError
from efaprof.export import source
from efaprof.export.source import Window, expected_slices, first_slices, seconds_window
from efaprof.trace.layers import Match


def narrowed(tables, start: int, end: int):
    return replace(tables, window=Window(START_NS + start, START_NS + end))


def test_a_window_keeps_what_touches_it() -> None:
    rows = [
        operation(0, 10, 50), operation(100, 110, 900), operation(400, 410, 420), operation(700, 710, 720),
        operation(200, 210, None, match=Match.IN_FLIGHT.value),
        operation(220, 230, None, match=Match.EXPECTED_NONE.value),
    ]  # fmt: skip
    kept = narrowed(run_tables(ops_frame(rows)), 300, 600).named()["ops"].collect()
    assert (kept["post_ns"] - START_NS).to_list() == [100, 200, 400]


def test_the_extent_leaves_out_ends_that_never_came() -> None:
    tables = run_tables(ops_frame([operation(5, 10, 90), operation(20, 30, None, match=Match.IN_FLIGHT.value)]))
    assert tables.extent() == Window(START_NS + 5, START_NS + 91)


def test_the_extent_covers_every_table() -> None:
    counters = rows_frame(
        "COUNTERS", [{"process": 0, "name": "x", "time_ns": START_NS - 7, "value": 1, "is_monotone": True}]
    )
    spans = rows_frame(
        "SPANS", [{"process": 0, "thread": 0, "name": "s", "begin_ns": START_NS, "end_ns": START_NS + 500}]
    )
    assert run_tables(counters=counters, spans=spans).extent() == Window(START_NS - 7, START_NS + 501)


def test_an_empty_run_has_no_extent() -> None:
    with pytest.raises(NothingToAnalyse, match="holds no operations") as raised:
        run_tables().extent()
    assert "efaprof info" in raised.value.hint


def test_chunks_are_the_rows_of_the_window_in_order(monkeypatch) -> None:
    monkeypatch.setattr(source, "CHUNK_ROWS", 100)
    tables = narrowed(run_tables(steady_ops(1000)), 50_000, 120_000)
    parts = list(tables.chunks("ops", tables.ops))
    assert all(0 < part.height <= 100 for part in parts)
    assert pl.concat(parts).equals(tables.named()["ops"].collect())


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("0:0.0001", 0, 100_000), ("0.00005:", 50_000, None), (":0.0001", 0, 100_000),
        ("0.0001:99", 100_000, None), (" 0 : 1e-4 ", 0, 100_000),
    ],
)  # fmt: skip
def test_windows_are_seconds_from_the_first_event(text: str, start: int, end: int | None) -> None:
    tables = run_tables(steady_ops(1000))
    extent = tables.extent()
    window = seconds_window(tables, text)
    assert window.start_ns == extent.start_ns + start
    assert window.end_ns == (extent.end_ns if end is None else extent.start_ns + end)


@pytest.mark.parametrize("text", ["", "1", "a:b", "2:1", "1:1", "-1:2", "nan:1", "1:nan", "0:1:2"])
def test_a_window_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="A:B") as raised:
        seconds_window(run_tables(steady_ops(10)), text)
    assert "--window" in raised.value.hint


def test_a_window_after_the_end_says_how_long_the_run_is() -> None:
    with pytest.raises(UsageError, match="after the end"):
        seconds_window(run_tables(steady_ops(10)), "5:6")


def test_slices_are_counted_before_they_are_drawn() -> None:
    rows = [
        operation(0, 10, 50),
        operation(20, 30, None, match=Match.EXPECTED_NONE.value),
        operation(40, 50, None, match=Match.FAILED_POST.value),
    ]
    reads = [
        {
            "process": 0,
            "thread": 0,
            "cq": 1,
            "nest": nest,
            "begin_ns": START_NS,
            "end_ns": START_NS,
            "entries": n,
            "empties": 0,
        }
        for n, nest in ((1, 0), (0, 0), (3, 1))
    ]
    tables = run_tables(ops_frame(rows), reads=rows_frame("READS", reads))
    assert expected_slices(tables) == 2 + 1 + 1 + 1


def test_the_first_slices_end_where_the_next_one_would_be_too_many() -> None:
    tables = run_tables(ops_frame([operation(100 * n, 100 * n + 10, 100 * n + 50) for n in range(10)]))
    window = first_slices(tables, 6)
    assert window == Window(START_NS, START_NS + 300)
    assert expected_slices(replace(tables, window=window)) == 6
    assert first_slices(tables, 7) == window
    assert first_slices(tables, 1000) == tables.extent()
