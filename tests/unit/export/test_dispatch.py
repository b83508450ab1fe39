"""Operations of a dispatch path on the timeline, against the closed form of a steady run."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from run_samples import START_NS, operation, ops_frame, run_tables
from trace_processor import WasmTraceProcessor, load

from efaprof.export.dispatch import DispatchSource
from efaprof.export.draw import Drawn, draw
from efaprof.export.perfetto.writer import PerfettoWriter
from efaprof.export.run_tables import load as load_run
from efaprof.export.source import RunTables, Window, expected_slices, first_slices
from efaprof.trace import dispatch, schema
from efaprof.trace.steady import Steady, write_steady
from efaprof.trace.survey import survey
from efaprof.trace.widerow import DispatchChunk

STEADY = Steady(steps=20, commands=8, ranks=3)
PATH = ["kernel", "ring", "proxy", "libfabric", "nic", "rx"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_steady(tmp_path_factory.mktemp("steady") / "run", STEADY)


def drawn(tables: RunTables) -> tuple[WasmTraceProcessor, Drawn]:
    out = io.BytesIO()
    writer = PerfettoWriter(out, clocks=tables.clocks)
    result = draw(tables, writer)
    engine = load(out.getvalue())
    assert engine.bad_stats() == []
    assert engine.values("select count() from slice") == [writer.written.slices + 1]
    return engine, result


def sums(engine: WasmTraceProcessor) -> dict[str, tuple[int, int]]:
    rows = engine.rows(
        "select t.name, count() as n, sum(s.dur) as total from slice s join track t on t.id = s.track_id group by 1"
    )
    return {row["name"]: (row["n"], row["total"]) for row in rows if row["name"] != "efaprof run"}


def expected_sums() -> dict[str, tuple[int, int]]:
    n, steps, times = STEADY.operations, STEADY.steps * STEADY.ranks, STEADY.times()
    ring = int((times["seen"] - times["publish"]).sum()) * steps
    layers = {layer: (n, n * getattr(STEADY, f"{layer}_ns")) for layer in ("kernel", "proxy", "libfabric", "nic", "rx")}
    poll = STEADY.wall_ns - int(times["publish"][-1])
    others = {"steps": STEADY.wall_ns, "compute": STEADY.compute_ns, "waits": poll}
    return layers | {"ring": (n, ring), "told": (n, 0)} | {name: (steps, steps * each) for name, each in others.items()}


@pytest.mark.parametrize("chunk_ops", [1, 100, 1 << 18])
def test_every_layer_has_the_sum_of_the_closed_form(run, chunk_ops: int) -> None:
    tables = load_run(run)
    surveyed = survey(run.raw_files)
    source = replace(tables.dispatch, chunks=lambda: dispatch.chunks(surveyed, chunk_ops=chunk_ops))
    engine, result = drawn(replace(tables, dispatch=source))
    with engine:
        assert sums(engine) == expected_sums()
    assert (result.not_drawn, result.missing_stamps) == ({}, 0)


def test_one_flow_leads_every_operation_from_the_kernel_to_the_other_rank(run) -> None:
    engine, _ = drawn(load_run(run))
    with engine:
        arrows = engine.rows(
            "select f.trace_id as flow, ot.name as source, it.name as target, op.upid as here, ip.upid as there,"
            " extract_arg(o.arg_set_id, 'debug.seq') = extract_arg(i.arg_set_id, 'debug.seq') as same, i.ts as ts"
            " from flow f join slice o on o.id = f.slice_out join slice i on i.id = f.slice_in"
            " join process_track ot on ot.id = o.track_id join process_track it on it.id = i.track_id"
            " join process op on op.upid = ot.upid join process ip on ip.upid = it.upid order by f.trace_id, i.ts"
        )
        processes = engine.rows("select name, pid from process where pid > 0 order by pid")
    chains: dict[int, list[str]] = {}
    for arrow in arrows:
        assert arrow["same"]
        assert (arrow["here"] == arrow["there"]) == (arrow["target"] != "rx")
        chains.setdefault(arrow["flow"], [arrow["source"]]).append(arrow["target"])
    assert len(chains) == STEADY.operations
    assert all(chain == PATH for chain in chains.values())
    assert processes == [{"name": f"rank {rank} · lane0", "pid": 100 + rank} for rank in range(3)]


def test_slices_are_counted_and_limited_before_they_are_drawn(run) -> None:
    tables = load_run(run)
    engine, _ = drawn(tables)
    with engine:
        assert engine.values("select count() - 1 from slice") == [expected_slices(tables)]
    half = replace(tables, window=first_slices(tables, expected_slices(tables) // 2))
    assert 0.4 < expected_slices(half) / expected_slices(tables) < 0.6
    engine, _ = drawn(half)
    with engine:
        assert engine.values("select count() - 1 from slice") == [expected_slices(half)]


def chunk(operations: list[dict[str, Any]]) -> DispatchChunk:
    fixed = {
        "process": 0, "rank": 0, "ring": 0, "step": 1, "layer": 2, "phase": "dispatch", "kind": "put", "peer": 1,
        "channel": 3, "bytes": 100, "is_fenced": False, "is_posted": False, "eagain": 0, "error": 0,
    }  # fmt: skip
    frame = pl.DataFrame([fixed | row for row in operations], schema=schema.DISPATCH)
    frame = frame.with_columns(pl.col(name) + START_NS for name in schema.DISPATCH if name.endswith("_ns"))
    empty = {name: pl.DataFrame(schema=getattr(schema, name)) for name in ("STEPS", "WAITS", "COMPUTES")}
    return DispatchChunk(empty["STEPS"], frame, empty["WAITS"], empty["COMPUTES"])


def tables_of(*chunks: DispatchChunk, **more: Any) -> RunTables:
    extent = Window(START_NS, START_NS + 100_000)
    source = DispatchSource(frozenset({0, 1}), extent, lambda: iter(chunks))
    return replace(run_tables(**more), dispatch=source)


FULL = {"seq": 0, "enter_ns": 0, "publish_ns": 10, "seen_ns": 20, "call_ns": 60, "return_ns": 70, "done_ns": 500}


def on(engine: WasmTraceProcessor, track: str) -> list[tuple[int, int, str]]:
    rows = engine.rows(
        f"select s.ts, s.dur, s.name from slice s join track t on t.id = s.track_id where t.name = '{track}' order by 1"
    )
    return [(row["ts"] - START_NS, row["dur"], row["name"]) for row in rows]


def test_a_fence_is_a_line_below_the_proxy() -> None:
    engine, _ = drawn(tables_of(chunk([FULL | {"kind": "signal", "is_fenced": True, "fenced_ns": 50}])))
    with engine:
        assert on(engine, "proxy") == [(20, 40, "dispatch signal")]
        assert on(engine, "fence") == [(20, 30, "dispatch signal")]
        assert engine.values("select count() from flow") == [4]


def test_what_a_kernel_posted_has_no_line_of_the_host() -> None:
    posted = {"is_posted": True, "enter_ns": 0, "publish_ns": 10, "return_ns": 30, "done_ns": 500}
    rows = [posted | {"seq": 0}, {name: value + 600 for name, value in posted.items() if name != "is_posted"}]
    rows[1] |= {"is_posted": True, "seq": 1, "is_fenced": True, "fenced_ns": 608}
    engine, result = drawn(tables_of(chunk(rows)))
    with engine:
        assert on(engine, "kernel") == [(0, 30, "dispatch put"), (600, 30, "dispatch put")]
        assert on(engine, "nic") == [(30, 470, "dispatch put"), (630, 470, "dispatch put")]
        assert on(engine, "fence") == [(600, 8, "dispatch put")]
        assert on(engine, "ring") == on(engine, "proxy") == on(engine, "libfabric") == []
    assert result.missing_stamps == 0


def test_an_operation_under_way_ends_open_where_it_is() -> None:
    rows = [FULL | {"done_ns": None}, {"seq": 1, "enter_ns": 30, "publish_ns": 40, "phase": "none", "kind": "barrier"}]
    engine, result = drawn(tables_of(chunk(rows)))
    with engine:
        assert on(engine, "nic") == [(70, -1, "dispatch put")]
        assert on(engine, "ring") == [(10, 10, "dispatch put"), (40, -1, "barrier")]
        assert on(engine, "proxy") == [(20, 40, "dispatch put")]
    assert result.missing_stamps == 0


def test_a_stage_without_a_record_is_not_drawn_and_counted() -> None:
    engine, result = drawn(tables_of(chunk([FULL | {"seen_ns": None}])))
    with engine:
        assert on(engine, "ring") == on(engine, "proxy") == []
        assert on(engine, "libfabric") == [(60, 10, "dispatch put")]
    assert result.missing_stamps == 1


def test_an_arrival_before_the_post_returned_still_ends_in_one_chain() -> None:
    early = FULL | {"arrival_ns": 65, "signal_ns": 80, "process": 1, "rank": 1, "peer": 0}
    other = {name: value + 1000 for name, value in FULL.items()}
    engine, _ = drawn(tables_of(chunk([early, other])))
    with engine:
        assert on(engine, "rx") == [(65, 15, "dispatch put")]
        assert engine.values("select count() from flow group by trace_id order by 1") == [4, 5]


def test_a_late_start_in_an_early_chunk_keeps_its_times() -> None:
    late = FULL | {"call_ns": 900, "return_ns": 950, "done_ns": 999}
    following = {
        "seq": 1, "enter_ns": 100, "publish_ns": 110, "seen_ns": 120, "call_ns": 130, "return_ns": 140, "done_ns": 990,
    }  # fmt: skip
    engine, result = drawn(tables_of(chunk([late]), chunk([following])))
    with engine:
        assert on(engine, "libfabric") == [(130, 10, "dispatch put"), (900, 50, "dispatch put")]
        assert on(engine, "nic") == [(140, 850, "dispatch put"), (950, 49, "dispatch put")]
    assert result.not_drawn == {}


def test_recorded_calls_have_lines_of_their_own_beside_the_stages() -> None:
    engine, _ = drawn(tables_of(chunk([FULL]), ops=ops_frame([operation(60, 70, 500)])))
    with engine:
        counters = {"outstanding operations", "bytes in flight"}
        assert set(sums(engine)) - counters == {*PATH[:-1], "libfabric calls", "nic calls"}
        assert on(engine, "nic calls") == [(70, 430, "rma.write")]
        assert on(engine, "nic") == [(70, 430, "dispatch put")]
        assert engine.values("select count() from flow group by trace_id order by 1") == [1, 4]
