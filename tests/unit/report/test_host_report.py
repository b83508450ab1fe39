"""Sampled Python stacks in the attribution report."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import polars as pl
import pytest
from operation_runs import every_outcome
from stack_files import events, sampling, write

from efaprof import report
from efaprof.analyzers.intervals import covering, union
from efaprof.report import host_report
from efaprof.report.attribution_json import attribution_document
from efaprof.report.attribution_report import report_on
from efaprof.report.attribution_sections import attribution_heading, attribution_sections
from efaprof.report.host_report import host_section
from efaprof.report.sections import as_terminal
from efaprof.trace.reader import open_tables
from efaprof.trace.steady import Steady, write_steady
from efaprof.trace.synth import SynthRun
from efaprof.trace.traffic import open_endpoint

SCHEMA = json.loads((Path(report.__file__).parent / "schemas" / "efaprof.attribution.1.json").read_text())


def reported(run):
    return report_on([(run, open_tables(run))])


def test_a_run_without_samples_says_nothing_of_the_host(tmp_path):
    made = reported(every_outcome(tmp_path / "efaprof-client"))
    assert made.host is None
    assert attribution_document(made)["host"] is None


def annotated(path):
    """Three annotated steps of 100 µs, 150 µs apart, in process 100; the first 20 µs of each are a libfabric call."""
    synth = SynthRun(path)
    ring = synth.ring(pid=100, comm="serve")
    open_endpoint(ring, 0x1000, 0x2000)
    for at in range(0, 450_000, 150_000):
        ring.op("msg.inject", at, at + 20_000, ep=0x1000, len=8)
        ring.span("step", at, at + 100_000, is_step=True)
    return synth.finish(program="serve", command=["serve"], cpus=2)


def test_the_functions_in_launch_and_idle_gaps_of_annotated_steps_are_named(tmp_path):
    run = annotated(tmp_path / "efaprof-serve")
    placed = {"spawned_ns": 0, "running_ns": 0, "ended_ns": 500_500}  # the last stamp, 500 µs, at 500.5 µs of our clock
    found = events(100, [(0, 30, "main;dispatch"), (30, 120, "main;schedule"), (120, 500, "main;forward")])
    write(run.path, found, sampling(100, **placed))
    made = reported(run)
    assert made.host is not None
    time = made.host.time
    assert time is not None
    # Steps reach to the next begin; the last one to its own end. Gaps: 20 to 150, 170 to 300, 320 to 400 µs.
    assert (time.window, time.window_ns, time.note) == ("launch and idle gaps", 340_000, "")
    assert [(one.function, one.ns) for one in time.functions] == [
        ("forward", 240_000), ("schedule", 90_000), ("dispatch", 10_000),
    ]  # fmt: skip
    document = json.loads(json.dumps(attribution_document(made)))
    jsonschema.validate(document, SCHEMA)
    layers = {row["layer"]: row["us"]["value"] for row in document["layers"]}
    assert (layers["launch"] + layers["idle"]) * 3 == pytest.approx(time.window_ns / 1000)
    assert document["host"]["functions"][0] == {
        "function": "forward", "file": "/app/forward.py", "caller": "main", "us": 240.0, "share": 240 / 340,
    }  # fmt: skip
    text = as_terminal(attribution_heading(made), attribution_sections(made))
    assert "host in launch and idle gaps" in text
    assert "app/forward.py" in text


def test_without_steps_the_whole_recording_is_taken_and_said(tmp_path):
    run = every_outcome(tmp_path / "efaprof-client")
    placed = {"spawned_ns": 0, "running_ns": 0, "ended_ns": 200_500}
    write(run.path, events(100, [(0, 20, "main;schedule"), (20, 200, "main;forward")]), sampling(100, **placed))
    made = reported(run)
    assert made.host is not None
    assert made.host.time is not None
    assert [(one.function, one.ns) for one in made.host.time.functions] == [("forward", 180_000), ("schedule", 20_000)]
    text = as_terminal(attribution_heading(made), attribution_sections(made))
    assert "not of launch and idle gaps: there are no steps on record" in text


def test_stacks_of_another_process_than_the_steps_leave_nothing(tmp_path):
    run = annotated(tmp_path / "efaprof-serve")
    write(run.path, events(7, [(0, 20, "main")]), sampling(7))
    made = reported(run)
    assert made.host is not None
    assert made.host.time is not None
    assert (made.host.time.functions, made.host.time.window_ns) == ((), 0)
    assert "no thread of a process with steps" in as_terminal("", attribution_sections(made))


def test_samples_that_cannot_be_read_are_said(tmp_path):
    run = every_outcome(tmp_path / "efaprof-client")
    write(run.path, [], sampling(100))
    (run.path / "raw" / "python-1-0.json").write_text("{")
    made = reported(run)
    text = as_terminal(attribution_heading(made), attribution_sections(made))
    assert "Python was to be sampled, and no stack was" in text
    assert "raw/python-1-0.json: Python stacks not read" in text


def test_marked_steps_without_gaps_are_taken_whole(tmp_path):
    run = write_steady(tmp_path / "run", Steady(steps=5))
    tables = open_tables(run)
    pid = int(tables.processes.filter(pl.col("producer") != "parent")["pid"][0])
    # Stamps end at the recording's end, so that one frame covers all of it.
    last_us = tables.facts.last_ns // 1000
    placed = {"spawned_ns": 0, "running_ns": 0, "ended_ns": tables.facts.last_ns + 500}
    write(run.path, events(pid, [(0, last_us, "main;engine")]), sampling(pid, **placed))
    found = host_section(run, tables)
    assert found is not None
    assert found.time is not None
    assert (found.time.window, found.time.note) == ("decode steps", "there are no gaps")
    assert found.time.functions[0].function == "engine"
    assert found.time.sampled_ns == found.time.window_ns > 0


@pytest.mark.parametrize(
    ("lengths_us", "window", "ns"), [((50, 3), "launch and idle gaps", 50_000), ((9, 9, 9), "decode steps", 400_000)]
)
def test_gaps_answer_when_most_of_them_are_longer_than_the_samples_are_sure(
    tmp_path, monkeypatch, lengths_us, window, ns
):
    run = every_outcome(tmp_path / "efaprof-client")
    begin = np.arange(len(lengths_us), dtype=np.int64) * 100_000
    gaps = union(begin, begin + np.array(lengths_us) * 1000)
    monkeypatch.setattr(host_report, "_marked", lambda _run, _tables: ({100: covering(0, 400_000)}, {100: gaps}))
    tables = open_tables(run)
    tables.facts.records["mark"] = 5
    placed = {"spawned_ns": 0, "running_ns": 0, "ended_ns": 400_000}
    write(run.path, events(100, [(0, 400, "main")]), sampling(100, **placed), rate_hz=50_000)  # sure within 10 µs
    found = host_section(run, tables)
    assert found is not None
    assert found.time is not None
    assert (found.time.window, found.time.window_ns) == (window, ns)
