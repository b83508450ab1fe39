"""`efaprof export` as a user meets it."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from synth_runs import traffic_run
from trace_processor import load

from efaprof.errors import UsageError
from efaprof.export import output, request
from efaprof.export.formats import Format
from efaprof.export.request import Request, export_run
from efaprof.trace.rundir import Run
from efaprof.trace.traffic import Traffic

TRAFFIC = Traffic(batches=50, lag=2)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return traffic_run(tmp_path / "efaprof-traffic", TRAFFIC)


def export(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "efaprof", "export", *map(str, arguments)],
        cwd=cwd, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_the_newest_run_becomes_a_trace_whose_sums_are_known(run: Run, tmp_path: Path) -> None:
    done = export(cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "efaprof-traffic/trace.pftrace\n"
    assert done.stderr.startswith("run: efaprof-traffic\n")
    assert f"{2 * TRAFFIC.operations + TRAFFIC.batches - TRAFFIC.lag:,} slices" in done.stderr
    with load(tmp_path / done.stdout.strip()) as engine:
        assert engine.bad_stats() == []
        sums = engine.rows(
            "select t.name, count() as n, sum(max(s.dur, 0)) as total, sum(s.dur < 0) as open"
            " from slice s join track t on t.id = s.track_id where s.name = 'rma.write' group by 1 order by 1"
        )
        (flows,) = engine.values("select count() from flow")
        facts = engine.rows(
            "select a.key, a.display_value as v from slice s join args a using (arg_set_id)"
            " where s.name = 'efaprof run'"
        )
        (last,) = engine.values("select max(ts + dur) from slice")
    assert sums == [
        {"name": "libfabric", "n": TRAFFIC.operations, "total": TRAFFIC.libfabric_sum_ns, "open": 0},
        {
            "name": "nic",
            "n": TRAFFIC.operations,
            "total": TRAFFIC.nic_sum_ns,
            "open": TRAFFIC.operations - TRAFFIC.completed,
        },
    ]
    assert flows == TRAFFIC.operations
    assert last == TRAFFIC.end_ns, "times are nanoseconds of the run's CLOCK_MONOTONIC"
    assert {"key": "debug.command", "v": "traffic --of 'a test'"} in facts
    assert {"key": "debug.emulated", "v": "synth"} in facts


def test_what_exists_is_written_anew_only_when_asked(run: Run, tmp_path: Path) -> None:
    assert export(run.path, cwd=tmp_path).returncode == 0
    again = export(run.path, cwd=tmp_path)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.startswith(f"error: {run.path}/trace.pftrace exists\n")
    assert "hint: write it anew with -f" in again.stderr
    assert export(run.path, "-f", cwd=tmp_path).returncode == 0


def test_a_window_and_a_limit_are_said(run: Run, tmp_path: Path) -> None:
    done = export(run.path, "--window", "0:0.0005", "--max-events", "100", "-o", "part.pftrace.gz", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "part.pftrace.gz\n")
    assert "kept the first 100 of" in done.stderr
    with load(gzip.decompress((tmp_path / "part.pftrace.gz").read_bytes())) as engine:
        assert engine.bad_stats() == []
        assert 90 < engine.values("select count() from slice")[0] <= 101


def test_a_compressed_trace_loads_as_it_is(run: Run, tmp_path: Path) -> None:
    outcome = export_run(Request(run, output=tmp_path / "a.pftrace.gz"))
    with load(outcome.paths[0]) as engine:
        assert engine.bad_stats() == []
        assert engine.values("select count() from slice")[0] > TRAFFIC.operations


def test_a_large_trace_is_compressed_by_itself(run: Run, monkeypatch) -> None:
    monkeypatch.setattr(output, "COMPRESS_ABOVE_BYTES", 10_000)
    outcome = export_run(Request(run))
    assert [path.name for path in outcome.paths] == ["trace.pftrace.gz"]
    with load(outcome.paths[0]) as engine:
        assert engine.bad_stats() == []


def test_many_slices_are_a_warning_with_what_to_type(run: Run, monkeypatch) -> None:
    monkeypatch.setattr(request, "MANY_SLICES", 800)
    (warning, *_) = export_run(Request(run)).remarks
    assert warning.startswith("warning: 1,648 slices make a viewer take about 0.0 GB")
    command = warning.partition("for a part of them: ")[2].partition(", or")[0]
    window = command.split("--window ")[1]
    assert command.startswith(f"efaprof export {run.path} -f --window 0:0.000")
    narrowed = export_run(Request(run, force=True, window=window))
    assert not any(remark.startswith("warning") for remark in narrowed.remarks)


def test_chrome_json_loads_without_a_lost_event(run: Run, tmp_path: Path) -> None:
    done = export(run.path, "--format", "chrome", cwd=tmp_path)
    assert done.stdout == f"{run.path}/trace.json\n"
    data = (run.path / "trace.json").read_bytes()
    assert len(json.loads(data)["traceEvents"]) > 2 * TRAFFIC.operations
    with load(data) as engine:
        assert engine.bad_stats() == []
        (total,) = engine.values("select sum(max(dur, 0)) from slice where name = 'rma.write'")
    assert total == TRAFFIC.libfabric_sum_ns + TRAFFIC.nic_sum_ns


def test_parquet_of_the_whole_run_is_what_the_run_keeps(run: Run, tmp_path: Path) -> None:
    done = export(run.path, "--format", "parquet", cwd=tmp_path)
    paths = [Path(line) for line in done.stdout.splitlines()]
    assert {path.name for path in paths} == {f"{name}.parquet" for name in TABLES}
    assert pl.read_parquet(run.path / "ops.parquet").height == TRAFFIC.operations


TABLES = ("ops", "arrivals", "reads", "counters", "spans", "device_work", "processes", "threads", "objects")


@pytest.mark.parametrize("form", [Format.PARQUET, Format.CSV])
def test_tables_of_a_window_go_to_a_folder(run: Run, tmp_path: Path, form: Format) -> None:
    whole = pl.read_parquet(export_run(Request(run, Format.PARQUET)).paths[0])
    folder = tmp_path / "new" / "tables"
    outcome = export_run(Request(run, form, output=folder, window="0:0.0003"))
    assert [path.name for path in outcome.paths] == [f"{name}.{form}" for name in TABLES]
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in outcome.paths)
    ops = pl.read_parquet(outcome.paths[0]) if form is Format.PARQUET else pl.read_csv(outcome.paths[0])
    start = whole["post_ns"].min()
    assert ops.height == whole.filter(pl.col("post_ns") < start + 300_000).height
    assert ops["bytes"].sum() == ops.height * TRAFFIC.len_bytes


def test_csv_reads_back_as_the_table(run: Run, tmp_path: Path) -> None:
    done = export(run.path, "--format", "csv", "-o", tmp_path / "csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    whole = pl.read_parquet(run.path / "ops.parquet").with_columns(pl.col(pl.Enum, pl.Categorical).cast(pl.String))
    text = (tmp_path / "csv" / "ops.csv").read_bytes()
    back = pl.read_csv(io.BytesIO(text), schema_overrides=dict(whole.schema))
    assert back.equals(whole)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"window": "x"}, "--window 'x' is not A:B"),
        ({"window": "99:"}, "--window 99: starts after the end: the run is 0.00"),
        ({"format": Format.PARQUET, "window": "0:1"}, "a part of a run does not replace its own tables"),
        ({"format": Format.CSV, "max_slices": 5}, "--max-events counts slices of a timeline"),
        ({"output": Path("no/such/folder/x.pftrace")}, "no/such/folder/x.pftrace cannot be written"),
    ],
)
def test_bad_requests_are_refused_in_one_line(run: Run, wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        export_run(Request(run, **wanted))
    assert raised.value.message.startswith(message)
    assert raised.value.hint or "after the end" in message


def test_bad_input_ends_with_a_line_a_hint_and_a_code(tmp_path: Path) -> None:
    done = export("nowhere", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("error: nowhere does not exist\n")
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_recorded_nothing_has_nothing_to_export(tmp_path: Path) -> None:
    run = traffic_run(tmp_path / "efaprof-empty", Traffic(batches=0))
    done = export(run.path, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (5, "")
    assert "error: " in done.stderr
    assert "hint: efaprof info" in done.stderr
    assert not (run.path / "trace.pftrace").exists()


def test_no_run_here_says_how_to_make_one(tmp_path: Path) -> None:
    done = export(cwd=tmp_path)
    assert done.returncode == 5
    assert "no efaprof-* run directory" in done.stderr


def test_several_processes_keep_their_sums(tmp_path: Path) -> None:
    run = traffic_run(tmp_path / "efaprof-two", TRAFFIC, processes=2)
    outcome = export_run(Request(run))
    with load(outcome.paths[0]) as engine:
        assert engine.bad_stats() == []
        rows = engine.rows(
            "select p.name, p.pid, sum(s.dur) as total from slice s join process_track t on t.id = s.track_id"
            " join process p using (upid) where t.name = 'libfabric' group by 1 order by 2"
        )
    assert rows == [{"name": f"rank{n}", "pid": 100 + n, "total": TRAFFIC.libfabric_sum_ns} for n in range(2)]
