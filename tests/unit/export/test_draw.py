"""A run's tables against what Perfetto's engine shows of them."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from run_samples import START_NS, operation, ops_frame, rows_frame, run_tables, steady_ops, threads_frame
from timeline_samples import decoded
from trace_processor import WasmTraceProcessor, load

from efaprof.analyzers.steps import FoundBy, FoundSteps, ProcessSteps
from efaprof.errors import NothingToAnalyse
from efaprof.export import source
from efaprof.export.draw import Drawn, draw
from efaprof.export.perfetto.writer import PerfettoWriter
from efaprof.export.source import RunTables, Window
from efaprof.trace.layers import Match
from efaprof.trace.layout import Payload

ONE_CALLER = threads_frame(1)


def engine_of(tables: RunTables) -> tuple[WasmTraceProcessor, Drawn]:
    out = io.BytesIO()
    writer = PerfettoWriter(out, clocks=tables.clocks)
    drawn = draw(tables, writer)
    engine = load(out.getvalue())
    assert engine.bad_stats() == []
    assert engine.values("select count() from slice") == [writer.written.slices + 1]  # and the mark with the facts
    assert engine.values("select count() from counter") == [writer.written.counter_points]
    return engine, drawn


def per_track(engine: WasmTraceProcessor) -> dict[tuple[str, str], tuple[int, int, int, int]]:
    """Count, sum of durations, first and last instant by (process, track)."""
    rows = engine.rows(
        "select p.name as process, t.name as track, count() as n, sum(s.dur) as total, min(s.ts) as low,"
        " max(s.ts + s.dur) as high from slice s join process_track t on t.id = s.track_id join process p using (upid)"
        " group by p.upid, t.name"
    )
    return {(row["process"], row["track"]): tuple(row[name] for name in ("n", "total", "low", "high")) for row in rows}


def on_track(engine: WasmTraceProcessor, track: str) -> list[tuple[int, int, str]]:
    """(start, duration, name) of a track's slices."""
    rows = engine.rows(
        "select s.ts, s.dur, s.name from slice s join track t on t.id = s.track_id"
        f" where t.name = '{track}' order by s.ts, s.name"
    )
    return [(row["ts"] - START_NS, row["dur"], row["name"]) for row in rows]


def points(engine: WasmTraceProcessor, counter: str) -> list[tuple[int, float]]:
    """(time, value) of a counter."""
    rows = engine.rows(
        "select c.ts, c.value from counter c join counter_track t on t.id = c.track_id"
        f" where t.name = '{counter}' order by c.ts"
    )
    return [(row["ts"] - START_NS, row["value"]) for row in rows]


def arguments(engine: WasmTraceProcessor, names: str) -> dict[tuple[int, str], dict[str, str]]:
    """Arguments as text of the slices whose names are like this, by (start, name)."""
    found: dict[tuple[int, str], dict[str, str]] = {}
    for row in engine.rows(
        "select s.ts, s.name, a.key, a.display_value as v from slice s join args a using (arg_set_id)"
        f" where s.name like '{names}'"
    ):
        found.setdefault((row["ts"] - START_NS, row["name"]), {})[row["key"].removeprefix("debug.")] = row["v"]
    return found


def parents(tables: RunTables) -> dict[str, str]:
    """Name of the track above each one that has one."""
    out = io.BytesIO()
    draw(tables, PerfettoWriter(out))
    described = [packet.track_descriptor for packet in decoded(out.getvalue()) if packet.HasField("track_descriptor")]
    names = {one.uuid: one.name or one.process.process_name or one.thread.thread_name for one in described}
    return {names[one.uuid]: names[one.parent_uuid] for one in described if one.parent_uuid}


def reads_frame(*rows: tuple[int, int, int]) -> pl.DataFrame:
    """Reads of one entry each: (begin, end, empty ones before)."""
    fixed = {"process": 0, "thread": 0, "cq": 1, "nest": 0, "entries": 1}
    return rows_frame(
        "READS",
        [fixed | {"begin_ns": START_NS + b, "end_ns": START_NS + e, "empties": n} for b, e, n in rows],
    )


def expected_row(frame: pl.DataFrame, start: str, end: str) -> tuple[int, int, int, int]:
    lasts = pl.max_horizontal(start, end)
    return frame.select(
        pl.len(),
        (lasts - pl.col(start)).sum().alias("total"),
        pl.col(start).min().alias("low"),
        lasts.max().alias("high"),
    ).row(0)


@pytest.mark.parametrize("chunk_rows", [700, 1 << 18])
def test_every_track_has_the_sums_of_the_table(monkeypatch, chunk_rows: int) -> None:
    monkeypatch.setattr(source, "CHUNK_ROWS", chunk_rows)
    ops = steady_ops(6000)
    engine, drawn = engine_of(run_tables(ops))
    with engine:
        found = per_track(engine)
    expected = {}
    for (process, thread), frame in ops.partition_by("process", "thread", as_dict=True).items():
        name = f"libfabric · worker-{thread % 2} {4242 + thread % 2}"
        expected[process_name(process), name] = expected_row(frame, "post_ns", "return_ns")
    for (process,), frame in ops.drop_nulls("done_ns").partition_by("process", as_dict=True).items():
        expected[process_name(process), "nic"] = expected_row(frame, "doorbell_ns", "done_ns")
    assert found == expected
    assert drawn.not_drawn == {}


def process_name(process: int) -> str:
    return f"rank {process} · worker" + (" · pid 4242" if process else "")


def test_every_operation_has_one_flow_from_its_call_to_its_flight() -> None:
    ops = steady_ops(3000)
    engine, _ = engine_of(run_tables(ops))
    with engine:
        arrows = engine.rows(
            "select extract_arg(o.arg_set_id, 'debug.op') as source, extract_arg(i.arg_set_id, 'debug.op') as target,"
            " o.ts + o.dur as post, i.ts as doorbell, ot.name as above, it.name as below, o.name = i.name as same"
            " from flow join slice o on o.id = slice_out join slice i on i.id = slice_in"
            " join track ot on ot.id = o.track_id join track it on it.id = i.track_id"
        )
    assert {row["source"] for row in arrows} == set(ops.drop_nulls("done_ns")["op"].to_list())
    assert len(arrows) == ops.drop_nulls("done_ns").height
    assert all(row["source"] == row["target"] and row["same"] for row in arrows)
    assert all(row["post"] == row["doorbell"] for row in arrows)
    assert {(row["above"].split(" ·")[0], row["below"]) for row in arrows} == {("libfabric", "nic")}


def test_arguments_are_those_of_the_table() -> None:
    rows = [
        operation(0, 10, 50, bytes=2**32 - 1, peer=2**40, eagain=7),
        operation(100, 110, 150, bytes=0, error=113),
        operation(200, 210, None, ret=-11, match=Match.FAILED_POST.value, eagain=65535),
    ]
    engine, _ = engine_of(run_tables(ops_frame(rows), threads=ONE_CALLER))
    with engine:
        found = arguments(engine, "rma%")
    assert found == {
        (0, "rma.write"): {"op": "0", "bytes": str(2**32 - 1), "peer": str(2**40), "eagain": "7"},
        (10, "rma.write"): {"op": "0", "bytes": str(2**32 - 1)},
        (100, "rma.write"): {"op": "1", "bytes": "0"},
        (110, "rma.write error"): {"op": "1", "bytes": "0", "errno": "113"},
        (200, "rma.write failed"): {"op": "2", "bytes": "4096", "eagain": "65535", "errno": "11"},
    }


def test_what_has_no_end_is_drawn_as_what_it_is() -> None:
    rows = [
        operation(0, 10, None, match=Match.IN_FLIGHT.value),
        operation(20, 30, None, match=Match.UNEXPLAINED.value),
        operation(40, 50, None, match=Match.CANCELLED.value),
        operation(60, 70, None, match=Match.EXPECTED_NONE.value),
        operation(80, 90, 85),  # its completion was read by another thread before the call returned
    ]
    engine, drawn = engine_of(run_tables(ops_frame(rows), threads=ONE_CALLER))
    with engine:
        assert on_track(engine, "nic") == [
            (10, -1, "rma.write"), (30, 0, "rma.write unexplained"), (50, 0, "rma.write cancelled"),
            (90, 0, "rma.write"),
        ]  # fmt: skip
        assert points(engine, "outstanding operations") == [(10, 1.0)]
    assert drawn.early_done == 1


def test_deferred_doorbells_are_drawn_in_order_across_chunks(monkeypatch) -> None:
    monkeypatch.setattr(source, "CHUNK_ROWS", 3)
    rows = [operation(10 * n, 10 * n + 5, 300 + n, doorbell=200 if n % 3 == 1 else 10 * n + 5) for n in range(20)]
    engine, drawn = engine_of(run_tables(ops_frame(rows), threads=ONE_CALLER))
    with engine:
        found = on_track(engine, "nic")
    expected = [
        (row["doorbell_ns"] - START_NS, row["done_ns"] - row["doorbell_ns"], "rma.write")
        for row in sorted(rows, key=lambda row: row["doorbell_ns"])
    ]
    assert sorted(found) == sorted(expected)
    assert drawn.not_drawn == {}


def test_seventy_in_flight_leave_six_undrawn_and_the_counter_whole() -> None:
    rows = [operation(10 * n, 10 * n + 5, 5000 + n) for n in range(70)]
    engine, drawn = engine_of(run_tables(ops_frame(rows), threads=ONE_CALLER))
    with engine:
        assert len(on_track(engine, "nic")) == 64
        assert max(value for _, value in points(engine, "outstanding operations")) == 70
        facts = arguments(engine, "efaprof run")[0, "efaprof run"]
    assert drawn.not_drawn == {"nic of rank 0 · worker": 6}
    assert facts["slices not drawn (no free lane)"] == "6"


def test_counters_are_the_running_sums_of_the_table() -> None:
    ops = steady_ops(2000, processes=1)
    engine, _ = engine_of(run_tables(ops))
    with engine:
        outstanding, in_flight = points(engine, "outstanding operations"), points(engine, "bytes in flight")
        units = dict(row.values() for row in engine.rows("select name, unit from counter_track"))
    finished = ops.drop_nulls("done_ns")
    starts, ends, size = (finished[name].to_numpy() for name in ("doorbell_ns", "done_ns", "bytes"))
    starts, ends = starts - START_NS, ends - START_NS
    for time, value in outstanding:
        assert value == (starts <= time).sum() - (ends <= time).sum()
    for time, value in in_flight:
        assert value == size[starts <= time].sum() - size[ends <= time].sum()
    assert {time for time, _ in outstanding} <= set(starts.tolist()) | set(ends.tolist())
    assert units == {"outstanding operations": "operations", "bytes in flight": "B"}


def test_nested_providers_have_their_own_lines_below() -> None:
    rows = []
    for n in range(0, 5000, 1000):
        rows.append(operation(n, n + 500, n + 800, provider="tcp;ofi_rxm", kind="msg.send"))
        rows.append(operation(n + 100, n + 300, n + 700, provider="tcp", nest=1, kind="msg.sendv"))
    rows.append(operation(5000, 5010, 9000, provider="tcp;ofi_rxm", kind="msg.recv", direction="rx"))
    mark = {"process": 0, "thread": 0, "time_ns": START_NS + 50, "error": 0, "immediate": 9, "bytes": 8}
    arrivals = rows_frame("ARRIVALS", [mark | {"is_explained": explained} for explained in (True, False)])
    tables = run_tables(ops_frame(rows), threads=ONE_CALLER, arrivals=arrivals, reads=reads_frame((900, 950, 4)))
    engine, _ = engine_of(tables)
    with engine:
        order = engine.rows(
            "select name, min(extract_arg(source_arg_set_id, 'sibling_order_rank')) as place from track"
            " where extract_arg(source_arg_set_id, 'sibling_order_rank') is not null group by name order by place"
        )
        ordering = engine.values(
            "select extract_arg(source_arg_set_id, 'child_ordering') from track where name = 'efaprof'"
        )
        assert on_track(engine, "rx: arrivals") == [(50, 0, "arrival"), (50, 0, "arrival unexplained")]
    assert [row["name"] for row in order] == [
        "outstanding operations", "bytes in flight", "posted receives waiting",
        "outstanding operations (tcp under rxm)", "bytes in flight (tcp under rxm)", "empty polls",
        "libfabric", "libfabric (tcp under rxm)", "completion queue reads · worker-0 4242",
        "nic", "nic (tcp under rxm)", "rx: arrivals", "rx: posted receives",
    ]  # fmt: skip
    assert ordering == ["explicit"]


def test_spans_nest_on_their_thread_and_what_crosses_goes_below() -> None:
    spans = [
        {"name": "step", "begin_ns": 0, "end_ns": 1000, "payload": 1},
        {"name": "layer", "begin_ns": 0, "end_ns": 500, "payload": 7},
        {"name": "layer", "begin_ns": 500, "end_ns": 1000, "payload": None},
        {"name": "odd", "begin_ns": 400, "end_ns": 1400, "payload": 3},
        {"name": "open", "begin_ns": 2000, "end_ns": None, "payload": 4},
    ]
    table = rows_frame("SPANS", [{"process": 0, "thread": 0} | span for span in spans])
    engine, _ = engine_of(run_tables(spans=table.with_columns(pl.col("begin_ns", "end_ns") + START_NS)))
    with engine:
        rows = engine.rows(
            "select s.name, s.ts, s.dur, s.depth, t.name as track, thread.tid,"
            " extract_arg(s.arg_set_id, 'debug.payload') as payload"
            " from slice s join track t on t.id = s.track_id left join thread_track k on k.id = s.track_id"
            " left join thread on thread.utid = k.utid where s.name != 'efaprof run' order by s.ts, s.dur desc"
        )
    below = {row.pop("track") for row in rows if row["name"] == "odd"}
    assert [
        (row["name"], row["ts"] - START_NS, row["dur"], row["depth"], row["tid"], row["payload"]) for row in rows
    ] == [
        ("step", 0, 1000, 0, 4242, 1), ("layer", 0, 500, 1, 4242, 7), ("odd", 400, 1000, 0, 4242, 3),
        ("layer", 500, 500, 1, 4242, None), ("open", 2000, -1, 0, 4242, 4),
    ]  # fmt: skip
    assert below == {"overlapping spans"}


def test_domains_of_nvtx_have_lines_below_their_thread_and_payloads_are_of_their_type() -> None:
    half, whole = np.float32(-0.5).view(np.uint32), np.float64(2.5).view(np.uint64)
    spans = [
        {"name": "mine", "payload": 7, "payload_type": Payload.U32},
        {"name": "theirs", "domain": "lib", "payload": (1 << 64) - 5, "payload_type": Payload.I64, "category": 3},
        {"name": "double", "domain": "lib", "payload": int(whole), "payload_type": Payload.F64},
        {"name": "float", "domain": "lib", "payload": int(half), "payload_type": Payload.F32},
        {"name": "step", "payload": 2 << 32 | 6, "payload_type": Payload.STEP, "source": "annotation", "category": 1},
        {"name": "step", "what": "step began"},
    ]
    rows = [
        {"process": 0, "thread": 0, "begin_ns": START_NS + 100 * n, "end_ns": START_NS + 100 * n + 50,
         "source": "nvtx", "what": "range"} | span
        for n, span in enumerate(spans)
    ]  # fmt: skip
    engine, _ = engine_of(run_tables(spans=rows_frame("SPANS", rows)))
    arguments = ("payload", "payload (millionths)", "tokens", "batch", "category")
    asked = ", ".join(f"extract_arg(s.arg_set_id, 'debug.{name}') as a{n}" for n, name in enumerate(arguments))
    with engine:
        drawn = engine.rows(
            f"select s.name, t.name as track, {asked} from slice s join track t on t.id = s.track_id"
            " where s.name != 'efaprof run' order by s.ts"
        )
    found = [(row["name"], row["track"], *(row[f"a{n}"] for n in range(len(arguments)))) for row in drawn]
    assert [one[:1] + one[2:] for one in found] == [
        ("mine", 7, None, None, None, None), ("theirs", -5, None, None, None, 3),
        ("double", None, 2_500_000, None, None, None), ("float", None, -500_000, None, None, None),
        ("step", None, None, 6, 2, None),
    ]  # fmt: skip
    assert [track == "NVTX lib" for _, track, *_ in found] == [False, True, True, True, False]


def test_annotated_steps_have_a_line_above_what_happens_in_them() -> None:
    steps = ProcessSteps(
        process=0, number=np.array([5, 6, 7]), begin_ns=START_NS + np.array([0, 1000, 2000]),
        end_ns=START_NS + np.array([900, 1900, 2900]), until_ns=START_NS + np.array([1000, 2000, 2900]),
        kind=("prefill", "decode", None), tokens=(512, 6, None), batch=(1, 3, None), has_ends=True,
    )  # fmt: skip
    found = FoundSteps((FoundBy.ANNOTATION,), ("step",), (steps,), 0)
    engine, _ = engine_of(run_tables(ops_frame([operation(0, 10, 50)]), threads=ONE_CALLER, steps=found))
    with engine:
        drawn = on_track(engine, "steps")
        rows = engine.rows(
            "select extract_arg(s.arg_set_id, 'debug.tokens') as tokens,"
            " extract_arg(s.arg_set_id, 'debug.step') as step from slice s join track t on t.id = s.track_id"
            " where t.name = 'steps' order by s.ts"
        )
    assert drawn == [(0, 1000, "prefill step"), (1000, 1000, "decode step"), (2000, 900, "step")]
    assert [(row["step"], row["tokens"]) for row in rows] == [(5, 512), (6, 6), (7, None)]


def test_empty_polls_stand_at_the_read_before_them_and_none_is_lost() -> None:
    reads = reads_frame((100, 120, 5), (300, 320, 0), (900, 950, 7), (1000, 1001, 0))
    engine, _ = engine_of(run_tables(ops_frame([operation(0, 10, 50)]), threads=ONE_CALLER, reads=reads))
    with engine:
        assert points(engine, "empty polls") == [(0, 5.0), (120, 0.0), (320, 7.0), (950, 0.0)]


def test_nic_counters_are_rates_in_a_group_of_their_host() -> None:
    counters = {"nic.efa0.tx_bytes": 500, "nic.efa0.rx_drops": 0, "cpu.run_delay_ns.7": 3}
    samples = [
        {"process": 1, "name": name, "time_ns": START_NS + n * 10**9, "value": step * n, "is_monotone": True}
        for name, step in counters.items()
        for n in range(3)
    ]
    tables = run_tables(counters=rows_frame("COUNTERS", samples))
    engine, drawn = engine_of(tables)
    with engine:
        units = engine.rows("select name, unit from counter_track order by 1")
        values = points(engine, "efa0.tx_bytes")
    assert units == [{"name": "cpu.run_delay_ns.7", "unit": "ns/s"}, {"name": "efa0.tx_bytes", "unit": "B/s"}]
    assert values == [(0, 500.0), (10**9, 500.0), (2 * 10**9, 0.0)]
    assert (drawn.counters.still, drawn.counters.resets) == (1, 0)
    assert parents(tables) == {
        "efa0.tx_bytes": "NIC counters of node-b",
        "cpu.run_delay_ns.7": "efaprof",
        "efaprof": "rank 1 · worker · pid 4242",
    }


def test_equal_pids_of_several_hosts_stay_apart() -> None:
    engine, _ = engine_of(run_tables(steady_ops(200)))
    with engine:
        rows = engine.rows("select pid, name from process where pid != 0 order by pid")
        labels = engine.values("select display_value from args where key = 'chrome.process_label[0]' order by 1")
    assert rows == [{"pid": 4242, "name": "rank 0 · worker"}, {"pid": 10_004_242, "name": "rank 1 · worker · pid 4242"}]
    assert labels == ["node-a", "node-b"]


def test_one_operation_alone() -> None:
    engine, _ = engine_of(run_tables(ops_frame([operation(0, 10, 50)]), threads=ONE_CALLER))
    with engine:
        assert per_track(engine) == {
            ("rank 0 · worker", "libfabric"): (1, 10, START_NS, START_NS + 10),
            ("rank 0 · worker", "nic"): (1, 40, START_NS + 10, START_NS + 50),
        }


def test_an_empty_run_cannot_be_drawn() -> None:
    with pytest.raises(NothingToAnalyse):
        engine_of(run_tables())


def test_a_window_draws_what_touches_it_and_the_level_from_before() -> None:
    rows = [operation(0, 10, 5000), operation(1000, 1010, 1500), operation(9000, 9010, 9500)]
    tables = run_tables(ops_frame(rows), threads=ONE_CALLER)
    engine, _ = engine_of(replace(tables, window=Window(START_NS + 1200, START_NS + 4000)))
    with engine:
        assert on_track(engine, "nic") == [(10, 4990, "rma.write"), (1010, 490, "rma.write")]
        assert points(engine, "outstanding operations") == [(1200, 2.0), (1500, 1.0), (3999, 0.0)]


def test_flows_of_two_runs_do_not_meet() -> None:
    files = []
    for name in ("run a", "run b"):
        out = io.BytesIO()
        draw(run_tables(steady_ops(300), identity=name), PerfettoWriter(out))
        files.append(out.getvalue())
    ids = []
    for data in files:
        with load(data) as engine:
            ids.append(set(engine.values("select trace_id from flow")))
    assert len(ids[0]) > 200
    assert not ids[0] & ids[1]


def test_operations_of_unknown_processes_are_still_drawn() -> None:
    tables = run_tables(ops_frame([operation(0, 10, 50, process=9, thread=9, provider=None)]))
    engine, _ = engine_of(tables)
    with engine:
        assert per_track(engine) == {
            ("process", "libfabric"): (1, 10, START_NS, START_NS + 10),
            ("process", "nic"): (1, 40, START_NS + 10, START_NS + 50),
        }


def test_nothing_depends_on_the_type_that_categories_have() -> None:
    ops = steady_ops(500).with_columns(pl.col("kind", "match", "direction").cast(pl.String))
    first, second = io.BytesIO(), io.BytesIO()
    draw(run_tables(steady_ops(500)), PerfettoWriter(first))
    draw(run_tables(ops), PerfettoWriter(second))
    assert first.getvalue() == second.getvalue()
    assert np.frombuffer(first.getvalue(), np.uint8).size > 10_000


def test_python_stacks_stand_on_a_sampled_line_of_their_thread_each_frame_in_its_caller():
    row = {
        "process": 0,
        "pid": 4242,
        "tid": 4242,
        "thread": "MainThread",
        "file": "/app/serve.py",
        "line": 7,
        "parent": -1,
    }
    frames = [
        row | {"function": "main", "depth": 0, "begin_ns": START_NS, "end_ns": START_NS + 100},
        row | {"function": "step", "depth": 1, "begin_ns": START_NS, "end_ns": START_NS + 60},
        row | {"function": "idle", "depth": 1, "begin_ns": START_NS + 60, "end_ns": START_NS + 100},
    ]
    stacks = pl.DataFrame(frames, schema=source.STACKS).lazy()
    engine, _ = engine_of(run_tables(stacks=stacks, stacks_hz=100.0))
    line = "Python (sampled, 100 Hz) · MainThread"
    assert on_track(engine, line) == [
        (0, 100, "main (serve.py)"),
        (0, 60, "step (serve.py)"),
        (60, 40, "idle (serve.py)"),
    ]
    depths = engine.rows("select name, depth from slice where name like '%serve.py%'")
    assert {row["name"]: row["depth"] for row in depths} == {
        "main (serve.py)": 0, "step (serve.py)": 1, "idle (serve.py)": 1,
    }  # fmt: skip
