"""Sampled Python stacks in the attribution report."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
from operation_runs import every_outcome
from stack_files import events, sampling, write

from efaprof import report
from efaprof.report.attribution_json import attribution_document
from efaprof.report.attribution_report import report_on
from efaprof.report.attribution_sections import attribution_heading, attribution_sections
from efaprof.report.host_report import host_section
from efaprof.report.sections import as_terminal
from efaprof.trace.reader import open_tables

SCHEMA = json.loads((Path(report.__file__).parent / "schemas" / "efaprof.attribution.1.json").read_text())


def reported(run):
    return report_on([(run, open_tables(run))])


def test_a_run_without_samples_says_nothing_of_the_host(tmp_path):
    made = reported(every_outcome(tmp_path / "efaprof-client"))
    assert made.host is None
    assert attribution_document(made)["host"] is None


def test_the_functions_of_the_steps_are_named_where_no_layers_are_marked(tmp_path):
    run = every_outcome(tmp_path / "efaprof-client")  # its one step lies from 9 to 75 µs, in process 100
    placed = {"spawned_ns": 0, "running_ns": 0, "ended_ns": 200_500}  # the last stamp, 200 µs, at 200.5 µs of our clock
    found = events(100, [(0, 20, "main;schedule"), (20, 200, "main;forward")])
    write(run.path, found, sampling(100, **placed))
    made = reported(run)
    assert made.host is not None
    time = made.host.time
    assert time is not None
    assert (time.window, time.window_ns) == ("decode steps", 66_000)
    assert [(one.function, one.ns) for one in time.functions] == [("forward", 55_000), ("schedule", 11_000)]
    document = json.loads(json.dumps(attribution_document(made)))
    jsonschema.validate(document, SCHEMA)
    assert document["host"]["functions"][0] == {
        "function": "forward", "file": "/app/forward.py", "caller": "main", "us": 55.0, "share": 55 / 66,
    }  # fmt: skip
    text = as_terminal(attribution_heading(made), attribution_sections(made))
    assert "host in decode steps" in text
    assert "app/forward.py" in text
    assert "not of launch and idle gaps: the steps have no layers on record" in text


def test_stacks_of_another_process_than_the_steps_leave_nothing(tmp_path):
    run = every_outcome(tmp_path / "efaprof-client")
    write(run.path, events(7, [(0, 20, "main")]), sampling(7))
    found = host_section(run, open_tables(run))
    assert found is not None
    assert found.time is not None
    assert (found.time.functions, found.time.window_ns) == ((), 0)


def test_samples_that_cannot_be_read_are_said(tmp_path):
    run = every_outcome(tmp_path / "efaprof-client")
    write(run.path, [], sampling(100))
    (run.path / "raw" / "python-1-0.json").write_text("{")
    made = reported(run)
    text = as_terminal(attribution_heading(made), attribution_sections(made))
    assert "Python was to be sampled, and no stack was" in text
    assert "raw/python-1-0.json: Python stacks not read" in text
