"""The shipped SQL in Perfetto's own engine against the same figures from the analyzers."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from hand_made import HandMade
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from run_samples import processes_frame, run_tables, steady_ops
from trace_processor import WasmTraceProcessor, load

from efaprof.analyzers.attribution import decode_split
from efaprof.analyzers.exclusive import PRIORITY
from efaprof.analyzers.layers import LayerSplitter
from efaprof.export.dispatch import DispatchSource
from efaprof.export.draw import draw
from efaprof.export.perfetto.writer import PerfettoWriter
from efaprof.export.queries import FOLDER, prelude
from efaprof.export.run_tables import load as load_run
from efaprof.export.source import RunTables, Window
from efaprof.trace import dispatch
from efaprof.trace.steady import Steady, write_steady
from efaprof.trace.survey import survey
from efaprof.trace.widerow import DispatchChunk

STEADY = Steady(steps=30, commands=6, ranks=2)
LAYERS = [layer.value for layer in PRIORITY if layer.value != "launch"]
STAMPS = ("enter", "publish", "seen", "call", "return", "done", "told")


def engine_of(tables: RunTables) -> WasmTraceProcessor:
    """The engine with the timeline of these tables and the views on it."""
    out = io.BytesIO()
    draw(tables, PerfettoWriter(out, clocks=tables.clocks))
    engine = load(out.getvalue())
    assert engine.bad_stats() == []
    engine.query(prelude())
    return engine


def by_step(engine: WasmTraceProcessor) -> dict[tuple[int, int], dict[str, int]]:
    found: dict[tuple[int, int], dict[str, int]] = {}
    for row in engine.rows("select rank, step, layer, ns from efaprof_step_layers where ns > 0"):
        found.setdefault((row["rank"], row["step"]), {})[row["layer"]] = row["ns"]
    return found


def expected_by_step(*chunks: DispatchChunk) -> dict[tuple[int, int], dict[str, int]]:
    splitter = LayerSplitter()
    found: dict[tuple[int, int], dict[str, int]] = {}
    for chunk in chunks:
        for row in splitter.split(chunk).to_dicts():
            costs = {layer: row.get(f"{layer}_ns") or 0 for layer in (*LAYERS, "idle")}
            assert sum(costs.values()) == row["wall_ns"]
            found[row["rank"], row["step"]] = {layer: ns for layer, ns in costs.items() if ns}
    return found


@pytest.fixture(scope="module")
def steady(tmp_path_factory):
    run = write_steady(tmp_path_factory.mktemp("steady") / "run", STEADY)
    with engine_of(load_run(run)) as engine:
        yield run, engine


def test_the_exclusive_split_of_every_step_is_that_of_the_analyzers(steady):
    run, engine = steady
    found = by_step(engine)
    assert found == expected_by_step(*dispatch.chunks(survey(run.raw_files)))
    assert len(found) == STEADY.steps * STEADY.ranks


def test_lines_of_a_further_proxy_are_lines_of_their_layer(tmp_path):
    steady = replace(STEADY, proxies=2, proxy_ns=4_000)
    run = write_steady(tmp_path / "run", steady)
    with engine_of(load_run(run)) as engine:
        assert by_step(engine) == expected_by_step(*dispatch.chunks(survey(run.raw_files)))
        rows = engine.rows("select line, operations from efaprof_stage_times where line in ('ring', 'proxy', 'nic')")
        assert {row["line"]: row["operations"] for row in rows} == dict.fromkeys(
            ("ring", "proxy", "nic"), steady.operations
        )
        names = set(engine.values("select distinct name from process_track"))
        assert {"ring", "ring 1", "proxy", "proxy 1", "libfabric 1", "kernel"} <= names
        assert not {"kernel 1", "nic 1", "ring 2"} & names


def test_the_mean_over_decode_steps_and_ranks_is_that_of_the_attribution(steady):
    run, engine = steady
    splitter = LayerSplitter()
    split = decode_split(pl.concat(splitter.split(chunk) for chunk in dispatch.chunks(survey(run.raw_files))))
    assert split is not None
    wanted = {row.layer.value: (row.us.value, row.share) for row in split.layers if row.us.value}
    found = {row["layer"]: (row["us_per_step"], row["share"]) for row in engine.rows("select * from efaprof_layers")}
    assert set(found) == set(wanted)
    for layer, pair in wanted.items():
        assert found[layer] == pytest.approx(pair, rel=1e-9), layer
    assert sum(us for us, _ in found.values()) == pytest.approx(STEADY.wall_ns / 1e3, rel=1e-9)


def test_operations_and_bytes_by_kind_are_those_of_the_run(steady):
    run, engine = steady
    operations = pl.concat(chunk.operations for chunk in dispatch.chunks(survey(run.raw_files)))
    wanted = {
        f"{phase} {kind}": (count, size)
        for phase, kind, count, size in operations.group_by("phase", "kind")
        .agg(pl.len(), pl.sum("bytes").cast(pl.Int64))
        .iter_rows()
    }
    rows = engine.rows("select * from efaprof_operations")
    assert {row["name"]: (row["operations"], row["bytes"]) for row in rows} == wanted
    assert sum(row["per_rank_and_step"] for row in rows) == STEADY.commands
    (stages,) = engine.values("select operations from efaprof_stage_times where line = 'libfabric'")
    assert stages == STEADY.operations


def test_the_worst_steps_are_the_longest(steady):
    _, engine = steady
    worst = engine.rows("select * from efaprof_worst_steps")
    assert len(worst) == 20
    assert {row["dur"] for row in worst} == {STEADY.wall_ns}


def test_views_can_be_made_twice(steady):
    _, engine = steady
    engine.query(prelude())
    assert engine.values("select count() from efaprof_steps") == [STEADY.steps * STEADY.ranks]


def test_every_file_says_what_it_is_for():
    files = sorted(FOLDER.glob("*.sql"))
    assert len(files) == 4
    assert all(path.read_text().startswith("-- ") for path in files)


def tables_of(chunk: DispatchChunk) -> RunTables:
    """A run of two ranks with these steps."""
    source = DispatchSource(frozenset({0, 1}), Window(0, 10_000), chunks=lambda: iter([chunk]))
    return run_tables(processes=processes_frame(2), dispatch=source)


operation = st.fixed_dictionaries(
    {
        "rank": st.integers(0, 1),
        "times": st.lists(st.integers(0, 120), min_size=7, max_size=7),
        "fence": st.none() | st.integers(0, 100),  # of the time between seen and call, in percent
        "arrival": st.none() | st.tuples(st.integers(0, 120), st.integers(0, 10)),
        "is_combine": st.booleans(),
        "is_posted": st.booleans(),
        "done": st.booleans(),
    }
)


# Without shrinking: every example loads an engine.
@settings(max_examples=10, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(operation, max_size=8),
    st.lists(
        st.tuples(st.sampled_from(["compute", "wait"]), st.integers(0, 1), st.integers(0, 110), st.integers(0, 30))
    ),
)
def test_whatever_is_open_the_split_is_the_same(operations: list[dict[str, Any]], others):
    made = HandMade(unit=1)
    for rank in range(2):
        made.step(rank, 0, 60)
        made.step(rank, 60, 120, number=1)
        # Every rank of a dispatch path posts something: that tells it from a program that only names its steps.
        made.operation(rank, 1000 + rank, 1 - rank, **dict.fromkeys(STAMPS, 0))
    for seq, one in enumerate(operations):
        stamps: dict[str, int | None] = dict(zip(STAMPS, sorted(one["times"]), strict=True))
        if one["fence"] is not None:
            stamps["fenced"] = stamps["seen"] + (stamps["call"] - stamps["seen"]) * one["fence"] // 100
        if one["arrival"] is not None:
            stamps["arrival"], stamps["signal"] = one["arrival"][0], sum(one["arrival"])
        if not one["done"] and one["arrival"] is None:  # else the picture lacks its flight, and says so
            stamps["done"] = stamps["told"] = None
        if one["is_posted"]:  # by the kernel itself: no ring, no proxy, no library
            if stamps.get("fenced") is not None:
                stamps["fenced"] = (stamps["enter"] + stamps["return"]) // 2
            stamps["publish"] = stamps["seen"] = stamps["call"] = stamps["told"] = None
        phase, kind = ("combine", "put") if one["is_combine"] else ("dispatch", "signal")
        made.operation(one["rank"], seq, 1 - one["rank"], phase=phase, kind=kind, is_posted=one["is_posted"], **stamps)
    for what, rank, begin, length in others:
        if what == "compute":
            made.compute(rank, begin, begin + length)
        else:
            made.wait(rank, begin, begin + length, source=1 - rank)
    chunk = made.chunk()
    with engine_of(tables_of(chunk)) as engine:
        assert by_step(engine) == expected_by_step(chunk)


def test_calls_of_a_program_without_steps_are_counted_by_kind():
    ops = steady_ops(50)
    with engine_of(run_tables(ops)) as engine:
        rows = engine.rows(
            "select kind, sum(calls) as calls, sum(bytes) as bytes, sum(libfabric_us) as own_us,"
            " sum(in_flight_us) as flight_us from efaprof_calls group by kind"
        )
        assert engine.values("select count() from efaprof_steps") == [0]
    flies = pl.col("match").cast(pl.String) == "exact"
    wanted = ops.group_by(pl.col("kind").cast(pl.String)).agg(
        pl.len(),
        pl.sum("bytes").cast(pl.Int64),
        (pl.col("return_ns") - pl.col("post_ns")).sum() / 1e3,
        (pl.col("done_ns") - pl.col("doorbell_ns")).filter(flies).sum() / 1e3,
    )
    names = ("kind", "calls", "bytes", "own_us", "flight_us")
    for row, expected in zip(rows, sorted(wanted.rows()), strict=True):
        assert row["kind"] == expected[0]
        assert [row[name] for name in names[1:]] == pytest.approx(expected[1:])
