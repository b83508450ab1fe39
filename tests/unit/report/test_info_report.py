"""What info says of a run."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
from operation_runs import every_outcome

from efaprof import report
from efaprof.report.info_json import info_document
from efaprof.report.info_report import info_on
from efaprof.report.info_sections import info_heading, info_sections
from efaprof.report.sections import as_terminal
from efaprof.trace.reader import open_tables
from efaprof.trace.synth import SynthRun

SCHEMA = json.loads((Path(report.__file__).parent / "schemas" / "efaprof.info.1.json").read_text())


def document(info):
    made = json.loads(json.dumps(info_document(info)))
    jsonschema.validate(made, SCHEMA)
    return made


def test_the_document_counts_records_outcomes_and_rings(tmp_path):
    run = every_outcome(tmp_path / "run")
    made = document(info_on(run, open_tables(run)))
    assert made["records"]["op"] == made["operations"]["count"] == 15
    assert sum(made["operations"]["outcomes"].values()) == 15
    assert made["unmatched"] == {"arrival": 1}, "what is in flight at the end is not unmatched"
    assert made["operations"]["outcomes"]["in-flight"] == 2
    assert made["rings"][0]["bytes"] == made["sizes"]["raw_bytes"] == run.raw_files[0].stat().st_size
    assert made["processes"] == [{"comm": "client", "pid": 100, "producer": "fi"}]
    assert made["run"]["is_closed"] is True
    assert made["warnings"] == ["probe nic was degraded: no line rate of eth1"]


def test_the_text_reads_as_its_golden(tmp_path, golden):
    run = every_outcome(tmp_path / "run")
    info = info_on(run, open_tables(run))
    said = as_terminal(info_heading(info), info_sections(info))
    derived = next(line for line in said.splitlines() if "derived" in line)
    golden("info.txt", said.replace(derived, "     raw … derived …"))


def test_a_run_in_which_nothing_was_recorded_still_has_a_manifest(tmp_path):
    run = SynthRun(tmp_path / "run").finish(signal=9, exit_code=None)
    info = info_on(run, None)
    made = document(info)
    assert made["warnings"] == ["nothing was recorded"]
    assert (made["operations"]["count"], made["losses"]) == (0, None)
    assert "ended by signal 9" in as_terminal(info_heading(info), info_sections(info))


def test_losses_are_shown_ring_by_ring(tmp_path):
    synth = SynthRun(tmp_path / "run")
    synth.ring(dropped=5).counter("a", 1, 1)
    run = synth.finish()
    made = document(info_on(run, open_tables(run)))
    assert (made["drops"], made["rings"][0]["dropped"], made["losses"]["dropped"]) == (5, 5, 5)
