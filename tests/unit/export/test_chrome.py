from __future__ import annotations

import io
import json
from collections import Counter
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_samples import START_NS, operation, ops_frame, rows_frame, run_tables, steady_ops, threads_frame
from trace_processor import load

from efaprof.export.chrome import ChromeWriter
from efaprof.export.draw import draw
from efaprof.trace.layers import Match

ONE_CALLER = threads_frame(1)


def document(tables: Any) -> bytes:
    out = io.BytesIO()
    writer = ChromeWriter(out)
    draw(tables, writer)
    writer.close()
    return out.getvalue()


def events(data: bytes) -> list[dict[str, Any]]:
    return json.loads(data)["traceEvents"]


def shown(data: bytes) -> Counter[tuple[str, int, int]]:
    with load(data) as engine:
        assert engine.bad_stats() == []
        rows = engine.rows("select name, ts, dur from slice where name != 'efaprof run'")
    return Counter((row["name"], row["ts"] - START_NS, row["dur"]) for row in rows)


def test_the_engine_shows_every_slice_to_the_nanosecond() -> None:
    ops = steady_ops(2000)
    expected = Counter(zip(ops["kind"], ops["post_ns"] - START_NS, ops["return_ns"] - ops["post_ns"], strict=True))
    flights = ops.drop_nulls("done_ns")
    expected += Counter(
        zip(
            flights["kind"], flights["doorbell_ns"] - START_NS, flights["done_ns"] - flights["doorbell_ns"], strict=True
        )
    )
    assert shown(document(run_tables(ops))) == expected


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=25))
def test_spans_of_a_thread_keep_their_times_however_they_lie(pairs: list[tuple[int, int]]) -> None:
    spans = [
        {"process": 0, "thread": 0, "name": f"{begin}+{length}", "begin_ns": begin, "end_ns": begin + length}
        for begin, length in pairs
    ]
    table = rows_frame("SPANS", spans).with_columns(pl.col("begin_ns", "end_ns") + START_NS)
    found = shown(document(run_tables(spans=table)))
    assert found == Counter((f"{begin}+{length}", begin, length) for begin, length in pairs)


def test_complete_events_that_overlap_would_be_dropped() -> None:
    planted = [{"ph": "X", "pid": 1, "tid": 1, "name": "a", "ts": ts, "dur": dur} for ts, dur in ((0, 100), (50, 150))]
    with load(json.dumps({"traceEvents": planted}).encode()) as engine:
        assert [stat["name"] for stat in engine.bad_stats()] == ["slice_drop_overlapping_complete_event"]


def test_operations_in_flight_stay_open_and_open_spans_too() -> None:
    spans = rows_frame("SPANS", [{"process": 0, "thread": 0, "name": "open", "begin_ns": START_NS + 5}])
    ops = ops_frame([operation(0, 10, None, match=Match.IN_FLIGHT.value)])
    assert shown(document(run_tables(ops, spans=spans, threads=ONE_CALLER))) == Counter(
        [("rma.write", 0, 10), ("rma.write", 10, -1), ("open", 5, -1)]
    )


def test_the_document_is_json_with_names_as_they_are() -> None:
    odd = 'Über "x" \\ 🧵'
    spans = rows_frame(
        "SPANS", [{"process": 0, "thread": 0, "name": odd, "begin_ns": START_NS, "end_ns": START_NS + 1}]
    )
    processes = pl.DataFrame([{"process": 0, "host": "h", "pid": 7, "rank": None, "comm": odd, "producer": ""}])
    found = events(document(run_tables(spans=spans, processes=processes)))
    assert odd in {event["name"] for event in found}
    assert {"name": odd} in [event["args"] for event in found if event["name"] == "process_name"]


def test_arguments_and_counters_are_there() -> None:
    ops = ops_frame([operation(0, 10, 50, eagain=3, peer=9), operation(20, 30, 60)])
    found = events(document(run_tables(ops, threads=ONE_CALLER)))
    assert [event["args"] for event in found if event["ph"] == "b" and event["cat"] == "libfabric"] == [
        {"op": 0, "bytes": 4096, "peer": 9, "eagain": 3}, {"op": 1, "bytes": 4096},
    ]  # fmt: skip
    levels = [event for event in found if event["ph"] == "C" and event["name"] == "outstanding operations (operations)"]
    assert [event["args"]["value"] for event in levels] == [1, 2, 1, 0]


@pytest.mark.parametrize("time", [0, 999, 1_000, 1_001, 312_000_000_000_123])
def test_microseconds_keep_three_places(time: int) -> None:
    ops = ops_frame([operation(time - START_NS, time - START_NS + 1, time - START_NS + 2)])
    assert f'"ts":{time // 1000}.{time % 1000:03d}' in document(run_tables(ops, threads=ONE_CALLER)).decode()
