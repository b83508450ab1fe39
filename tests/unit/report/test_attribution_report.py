"""The attribution report: three renderings of one value."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from operation_runs import every_outcome

from efaprof import report
from efaprof.analyzers.by import By
from efaprof.analyzers.signatures import ProcessLayers, Segmentation
from efaprof.errors import NothingToAnalyse
from efaprof.report.attribution_json import attribution_document
from efaprof.report.attribution_report import report_on
from efaprof.report.attribution_sections import attribution_heading, attribution_sections
from efaprof.report.sections import as_markdown, as_terminal
from efaprof.trace.manifest import DrainCounts
from efaprof.trace.reader import open_tables
from efaprof.trace.synth import SynthRun

SCHEMA = json.loads((Path(report.__file__).parent / "schemas" / "efaprof.attribution.1.json").read_text())


@pytest.fixture
def run(tmp_path):
    return every_outcome(tmp_path / "efaprof-client")


def reported(run, by=By.KIND):
    return report_on([(run, open_tables(run))], by=by)


def document(run, by=By.KIND):
    made = json.loads(json.dumps(attribution_document(reported(run, by))))
    jsonschema.validate(made, SCHEMA)
    return made


def text(run, render, by=By.KIND):
    made = reported(run, by)
    return render(attribution_heading(made), attribution_sections(made)).replace(str(run.path), run.path.name)


def test_the_terminal_report_reads_as_its_golden(run, golden):
    golden("attribution.txt", text(run, as_terminal))


def test_the_markdown_report_reads_as_its_golden(run, golden):
    golden("attribution.md", text(run, as_markdown, By.PEER))


def test_the_report_fits_a_screen_and_needs_no_colour(run):
    lines = text(run, as_terminal).splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 160
    assert "\x1b" not in "".join(lines)


def test_the_document_fits_its_schema_whatever_it_is_grouped_by(run):
    for by in By:
        made = document(run, by)
        assert made.get("operations", {}).get("by", {"key": "kind"})["key"] == by.value


def test_the_schema_refuses_a_number_without_provenance(run):
    made = document(run)
    del made["operations"]["by_kind"]["rma.write"]["provenance"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(made, SCHEMA)


def test_figures_are_those_of_the_run(run):
    made = document(run)
    write = made["operations"]["by_kind"]["rma.write"]
    assert (write["count"], write["bytes"], write["outcomes"]["exact"]) == (8, 8 * 4096, 8)
    assert write["libfabric"] == {"n": 8, "sum_us": 8.0, "p50_us": 1.0, "p90_us": 1.0, "p99_us": 1.0, "max_us": 1.0}
    assert write["nic"]["p50_us"] == 3.0
    assert made["operations"]["by_kind"]["msg.recv"]["nic"] is None
    assert made["operations"]["by_kind"]["msg.recv"]["until_message"]["max_us"] == 69.0
    assert [row["kind"] for row in made["operations"]["nested"]] == ["msg.sendv"]
    assert made["unmatched"] == {"arrival": 1}
    assert made["operations"]["arrivals"] == {"explained": 1, "unexplained": 1, "provenance": "measured"}
    assert made["delivery"]["level"] == 2
    assert made["utilisation"]["line_rate_bytes_s"] == 12_500_000_000
    assert made["utilisation"]["window"] == "comm-active"
    assert made["run"]["emulated"] == ["synth"]


def test_every_operation_of_a_kind_has_one_outcome(run):
    made = document(run)
    for kind, group in made["operations"]["by_kind"].items():
        assert sum(group["outcomes"].values()) == group["count"], kind


def test_a_run_without_steps_says_what_is_missing_for_a_verdict(run):
    made = document(run)
    assert (made["steps"], made["layers"], made["wall_us"], made["groups"]) == (0, [], None, None)
    assert made["verdict"]["path"] == "inconclusive"
    assert made["verdict"]["step"] is None
    assert "no decode steps" in made["verdict"]["reason"]
    assert "delta_issue" in made["verdict"]["unknown"]
    assert {rule["label"] for rule in made["verdict"]["rules"]} >= {"issue-bound", "wire-bound/bandwidth"}
    assert not any(rule["holds"] for rule in made["verdict"]["rules"])


def test_an_unknown_line_rate_is_never_invented(tmp_path):
    synth = SynthRun(tmp_path / "run")
    synth.ring().op("msg.inject", 10, 20, ep=1)
    made = document(synth.finish())
    assert made["utilisation"]["value"] is None
    assert made["utilisation"]["line_rate_bytes_s"] is None
    assert made["delivery"]["nic"] is None


def test_warnings_of_the_recording_and_of_the_reading_stand_in_the_report(tmp_path):
    synth = SynthRun(tmp_path / "run")
    synth.ring(dropped=4).op("msg.inject", 10, 20, ep=1)
    said = document(synth.finish(ended_realtime_ns=None, warnings=["the disk was full"]))["warnings"]
    assert said[0] == "the disk was full"
    assert any("did not end in order" in line for line in said)
    assert any(line.startswith("4 records could not be written") for line in said)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ({"exit_code": 0}, []),
        ({"exit_code": 1}, ["synth ended with exit code 1"]),
        ({"exit_code": None, "signal": 40}, ["synth was killed by signal 40"]),
    ],
    ids=["well", "code", "signal"],
)
def test_a_program_that_failed_is_warned_of(tmp_path, end, said):
    synth = SynthRun(tmp_path / "run")
    synth.ring().op("msg.inject", 10, 20, ep=1)
    assert [line for line in document(synth.finish(**end))["warnings"] if line.startswith("synth")] == said


def test_what_the_recorder_told_is_not_told_twice(tmp_path):
    synth = SynthRun(tmp_path / "run")
    synth.ring(dropped=4).op("msg.inject", 10, 20, ep=1)
    said = document(synth.finish(warnings=["4 records were dropped"], drain=DrainCounts(dropped=4)))["warnings"]
    assert said == ["4 records were dropped"]


def test_no_operations_is_an_error_that_says_what_was_seen(tmp_path):
    synth = SynthRun(tmp_path / "run")
    synth.ring().counter("nic.a.tx_bytes", 1, 2)
    with pytest.raises(NothingToAnalyse, match="records seen: 1 name, 1 counter") as error:
        reported(synth.finish())
    assert "efaprof info" in error.value.hint


def test_many_groups_are_summed_up_on_the_screen_and_whole_in_the_document(tmp_path):
    synth = SynthRun(tmp_path / "run")
    ring = synth.ring()
    for peer in range(30):
        ring.op("msg.inject", 10 + 10 * peer, 12 + 10 * peer, ep=1, fi_addr=peer)
    run = synth.finish()
    assert "18 more" in text(run, as_terminal, By.PEER)
    assert len(document(run, By.PEER)["operations"]["by"]["groups"]) == 30


def test_steps_found_by_signature_are_said_and_stand_in_the_document(run):
    writes = np.full(20, 14)
    begins = np.arange(21) * 50_000
    one = ProcessLayers(
        process=1, begin_ns=begins, writes=writes, pause_ns=writes, libfabric_ns=writes * 100, nic_ns=writes * 200,
        barrier_bytes=16, peers=3,
    )  # fmt: skip
    found = Segmentation((one,), layers_per_step=4, first=0, is_decode=np.array([True, True, False, True, True]))
    made = replace(reported(run), segmentation=found)
    text = as_terminal(attribution_heading(made), attribution_sections(made))
    assert "4 decode steps by signature" in text.splitlines()[0]
    assert "two barriers of 16 B to each peer in each" in text
    assert "4 ○ decode steps of 4 layers (1 unclassified): 200 µs each, libfabric 5.60 µs, nic 11.2 µs" in text
    document = json.loads(json.dumps(attribution_document(made)))
    jsonschema.validate(document, SCHEMA)
    assert document["segmentation"]["step"] == {"wall_us": 200, "libfabric_us": 5.6, "nic_us": 11.2}
    assert document["segmentation"]["coverage"] == pytest.approx(4.2 / 50)
    assert (document["steps"], document["steps_excluded"]) == (4, {"unclassified": 1})
