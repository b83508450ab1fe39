"""The CUDA timeline, on a libcupti without a GPU: launches, graphs, kernels, and whose CUPTI it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import polars as pl
import pytest
from recording import efaprof, manifest, the_run
from trace_processor import load

from efaprof import native
from efaprof.analyzers.device_clock import Bounds, device_clocks
from efaprof.trace.layout import EVERY_STREAM, Payload
from efaprof.trace.reader import Tables, open_tables
from efaprof.trace.rundir import open_run

STEPS = 6
NODES = 3  # kernels of the fake graph
GRAPH = 42
STREAM, CONTEXT = 7, 1


@pytest.fixture(name="program")
def _program(build_dir) -> str:
    path = build_dir / "bin/fake_cuda_program"
    if not path.exists():
        pytest.skip("the CUDA timeline was not built: cupti.h is not on this machine")
    return str(path)


def recorded(folder: Path, *command: str, cuda: str = "graph", env: dict[str, str] | None = None) -> tuple[str, Tables]:
    """What the program printed, and the tables of its run."""
    done = efaprof("record", "--cuda", cuda, "--", *command, cwd=folder, env={**os.environ, **(env or {})})
    assert done.returncode == 0, done.stderr
    return done.stdout, open_tables(open_run(the_run(folder)))


def kinds(tables: Tables) -> dict[str, int]:
    counted = tables.device_work.group_by("kind").len().collect()
    return dict(counted.iter_rows())


def notes(tables: Tables) -> list[str]:
    return [note.text for note in tables.facts.notes]


def test_a_graph_is_told_as_a_whole_with_the_call_that_launched_it(program, tmp_path):
    _, tables = recorded(tmp_path, program, str(STEPS))
    assert kinds(tables) == {"graph": STEPS, "kernel": STEPS}
    calls = tables.spans.filter(pl.col("name").cast(pl.String) == "cuGraphLaunch").collect()
    graphs = tables.device_work.filter(pl.col("kind") == "graph").collect()
    assert calls["payload"].to_list() == graphs["graph"].to_list() == [GRAPH] * STEPS
    assert calls["correlation"].to_list() == graphs["correlation"].to_list()
    # The fake runs a graph when the call has returned: on one clock, so the order shows.
    assert (graphs["begin_ns"] >= calls["end_ns"]).all()
    assert (graphs["end_ns"] >= graphs["begin_ns"]).all()


def test_what_ran_before_recording_was_stopped_is_kept_although_it_is_told_later(program, tmp_path):
    stopped_at = 4
    core = {"EFAPROF_CORE": str(native.lib_path())}
    _, tables = recorded(tmp_path, program, str(STEPS), "stop-at", str(stopped_at), env=core)
    assert kinds(tables) == {"graph": stopped_at, "kernel": stopped_at}
    launches = tables.spans.filter(pl.col("what").cast(pl.String).is_in(["graph", "launch"])).collect()
    assert launches.height == 2 * stopped_at


def test_node_detail_tells_each_kernel_by_its_name(program, tmp_path):
    _, tables = recorded(tmp_path, program, str(STEPS), cuda="node")
    assert kinds(tables) == {"kernel": STEPS * (1 + NODES)}
    kernels = tables.device_work.collect()
    assert set(kernels.filter(pl.col("graph") == GRAPH)["name"].cast(pl.String)) <= {
        "_Z9fake_nodePf",
        "fake_node(float*)",
    }
    assert kernels.filter(pl.col("graph").is_null()).height == STEPS


def test_a_window_of_nodes_ends_after_so_many_launches(program, tmp_path):
    window = 2
    _, tables = recorded(tmp_path, program, str(STEPS), cuda=f"node:{window}")
    assert kinds(tables) == {"kernel": STEPS + window * NODES, "graph": STEPS - window}
    assert "graphs are told as a whole from here" in notes(tables)


def test_a_profiler_of_the_program_gets_cupti_and_the_trace_says_so(program, tmp_path):
    at = 4
    told, tables = recorded(tmp_path, program, str(STEPS), "profile-at", str(at))
    assert "own profiler: subscribe 0" in told
    assert f"own profiler: {(STEPS - at) * (1 + NODES)} records" in told
    assert kinds(tables) == {"graph": at, "kernel": at}
    given = [note for note in tables.facts.notes if note.text == "CUPTI given to fake_cuda_program"]
    assert given
    assert given[0].is_degraded


def clock_of(tables: Tables) -> Bounds:
    (only,) = device_clocks(tables)
    return only.bounds


def test_calls_that_wait_are_told_with_what_they_wait_for(program, tmp_path):
    _, tables = recorded(tmp_path, program, str(STEPS), "wait-from", "0")
    assert kinds(tables) == {"graph": STEPS, "kernel": STEPS + 1, "copy": STEPS}
    waits = tables.spans.filter(pl.col("what") == "wait").sort("begin_ns").collect()
    # Neither the one that fails nor the one for an event that is no more.
    assert waits["name"].cast(pl.String).to_list() == [
        "cuMemcpyDtoH_v2", "cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize", "cuMemcpyDtoH_v2",
        "cuCtxSynchronize",
    ]  # fmt: skip
    (event,) = tables.spans.filter(pl.col("what") == "event").collect().rows(named=True)
    assert (event["name"], event["payload"], event["category"]) == ("cuEventRecord", STREAM, CONTEXT)
    assert waits["payload"].to_list() == [0, EVERY_STREAM, STREAM, event["correlation"], 0, EVERY_STREAM]
    assert waits["payload_type"].to_list() == [
        Payload.NONE, Payload.U64, Payload.U64, Payload.U32, Payload.NONE, Payload.U64,
    ]  # fmt: skip
    assert waits["category"].to_list() == [0, CONTEXT, CONTEXT, 0, 0, CONTEXT]
    work = tables.device_work.select("context", "stream").unique().collect()
    assert work.rows() == [(CONTEXT, STREAM)]


def test_launches_and_waits_bound_the_error_of_a_gpus_times(program, tmp_path):
    _, tables = recorded(tmp_path, program, str(STEPS), "wait-from", "0")
    (only,) = device_clocks(tables)
    assert (only.launches, only.waits) == (3 * STEPS + 1, STEPS)
    found = only.bounds
    assert found.lowest_ns is not None
    assert found.highest_ns is not None
    assert found.lowest_ns <= 0 <= found.highest_ns
    assert found.off_ns == found.wander_ns == 0


@pytest.mark.parametrize(("ticks", "sign"), [("1000000000", -1), ("-200000000", 1)])
def test_times_that_are_told_wrong_are_found_out(program, tmp_path, ticks, sign):
    _, tables = recorded(tmp_path, program, str(STEPS), "wait-from", "0", env={"FAKE_CUPTI_SHIFT": ticks})
    found = clock_of(tables)
    assert found.off_ns * sign >= 20_000_000  # at 10 GHz; ticks are of this machine's clock
    run = the_run(tmp_path)
    word = "late" if sign < 0 else "early"
    assert f"are {word} by " in efaprof("info", run, cwd=tmp_path).stdout
    (told,) = json.loads(efaprof("info", run, "--json", cwd=tmp_path).stdout)["gpu_times"]
    assert (told["lowest_shift_ns"], told["highest_shift_ns"]) == (found.lowest_ns, found.highest_ns)


def test_without_waits_the_error_is_known_on_one_side(program, tmp_path):
    _, tables = recorded(tmp_path, program, str(STEPS))
    found = clock_of(tables)
    assert found.lowest_ns is not None
    assert found.highest_ns is None
    assert "how early is not known" in efaprof("info", the_run(tmp_path), cwd=tmp_path).stdout


def test_lost_records_are_said(program, tmp_path):
    _, tables = recorded(tmp_path, program, "1", env={"FAKE_CUPTI_DROPPED": "17"})
    assert any(note.text == "CUPTI lost records of the GPU" and note.value == 17 for note in tables.facts.notes)


def test_a_program_that_aborts_keeps_its_launch_calls(program, tmp_path):
    done = efaprof("record", "--cuda", "graph", "--", program, str(STEPS), "abort-at", "3", cwd=tmp_path)
    assert done.returncode == 128 + 6
    tables = open_tables(open_run(the_run(tmp_path)))
    assert tables.spans.filter(pl.col("name").cast(pl.String) == "cuGraphLaunch").collect().height == 3


def test_off_and_a_machine_without_a_gpu_leave_the_program_alone(program, tmp_path):
    told, _ = recorded(tmp_path, program, "1", cuda="off")
    assert "injection none" in told
    probe = next(one for one in manifest(the_run(tmp_path))["probes"] if one["name"] == "cuda")
    assert probe["state"] == "off"


def test_the_users_own_injected_tool_begins_first(program, tmp_path, build_dir):
    theirs = str(build_dir / "lib/libefaprof-nvtx.so")  # has no InitializeInjection
    told, tables = recorded(tmp_path, program, "1", env={"CUDA_INJECTION64_PATH": theirs})
    assert "injection ok" in told
    assert any(note.startswith("CUDA_INJECTION64_PATH cannot be chained to: ") for note in notes(tables))
    assert kinds(tables) == {"graph": 1, "kernel": 1}


def test_a_wrong_detail_is_a_usage_error(tmp_path):
    done = efaprof("record", "--cuda", "nodes", "--", "true", cwd=tmp_path)
    assert done.returncode == 125
    assert "--cuda nodes is none of off, auto, graph, node or node:N" in done.stderr


def test_the_timeline_shows_a_line_for_each_stream(program, tmp_path):
    _, tables = recorded(tmp_path, program, str(STEPS), "wait-from", "1")
    run = the_run(tmp_path)
    assert efaprof("export", str(run), cwd=tmp_path).returncode == 0
    engine = load(run / "trace.pftrace")
    drawn = engine.rows(
        "select s.name, count(*) from slice s join track t on t.id = s.track_id"
        " where t.name = 'GPU 0 · stream 7' group by 1 order by 1"
    )
    assert [tuple(row.values()) for row in drawn] == [
        ("_Z13fake_samplingIfEvPT_i", STEPS + 1), ("copy", STEPS - 1), (f"graph {GRAPH}", STEPS),
    ]  # fmt: skip
    waits = engine.rows("select count(*) as n from slice where name in ('cuStreamSynchronize', 'cuCtxSynchronize')")
    assert waits == [{"n": 3}]
    found = clock_of(tables)
    facts = engine.rows("select string_value as value from args where key like '%shift of times of GPU 0 in %'")
    assert facts == [{"value": f"{found.lowest_ns} to {found.highest_ns}"}]
