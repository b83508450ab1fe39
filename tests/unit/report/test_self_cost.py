"""What recording cost, from above: records at their measured price over the time of the ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ci_runs import changed

from efaprof.report.attribution_json import attribution_document
from efaprof.report.attribution_report import report_on
from efaprof.report.attribution_sections import attribution_heading, attribution_sections
from efaprof.report.sections import as_terminal
from efaprof.trace.reader import open_tables
from efaprof.trace.steady import Steady, write_steady
from efaprof.trace.synth import SynthRun

STEADY = Steady(steps=40, commands=9, proxy_ns=7_000)


def reported(run, price):
    run = changed(run, event_cost_ns=price)
    tables = open_tables(run)
    return report_on([(run, tables)]), sum(tables.facts.records.values())


def test_all_records_at_their_price_over_the_time_of_all_steps(tmp_path):
    report, records = reported(write_steady(tmp_path / "run", STEADY), 20.0)
    found = report.self_cost
    assert (found.records, found.event_ns) == (records, 20.0)
    assert found.share == pytest.approx(records * 20.0 / (STEADY.steps * STEADY.ranks * STEADY.wall_ns))
    assert found.us_per_step == pytest.approx(found.share * STEADY.wall_ns / 1e3)
    text = as_terminal(attribution_heading(report), attribution_sections(report))
    assert "self cost ≤ " in text
    assert attribution_document(report)["self_cost"]["share"] == found.share


def test_a_program_without_steps_is_held_against_its_run(tmp_path):
    synth = SynthRun(tmp_path / "run")
    ring = synth.ring()
    for number in range(10):
        ring.op("rma.write", 1_000 * number, 1_000 * number + 400, ep=1, ctx=number, len=64)
    report, records = reported(synth.finish(), 5.0)
    whole = next(one.length_ns for one in report.recorded.windows if one.window == "whole run")
    assert report.self_cost.share == pytest.approx(records * 5.0 / (whole * report.recorded.processes))
    assert report.self_cost.us_per_step is None


def test_runs_of_before_it_was_measured_have_none(tmp_path):
    report, _ = reported(write_steady(tmp_path / "run", replace(STEADY, steps=12)), None)
    assert report.self_cost is None
    assert attribution_document(report)["self_cost"] is None
