"""Runs that differ in a lever: elasticities as the generator's closed form has them, or a refusal that names why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from efaprof import report
from efaprof.analyzers.elasticity import Axis
from efaprof.analyzers.loggp import LogGP, Refusal
from efaprof.errors import NothingToAnalyse, UsageError
from efaprof.report.attribution_json import attribution_document
from efaprof.report.attribution_report import report_on
from efaprof.report.lever_report import lever_keys, lever_report, lever_sections
from efaprof.report.sections import as_terminal
from efaprof.trace.reader import open_tables
from efaprof.trace.rundir import open_run
from efaprof.trace.steady import Steady, write_steady

SCHEMA = json.loads((Path(report.__file__).parent / "schemas" / "efaprof.attribution.1.json").read_text())
BYTES = 65_536


def steady(commands, step_bytes):
    return Steady(steps=40, commands=commands, proxy_ns=5_000, len_bytes=step_bytes // commands)


FIXED_BYTES = [steady(commands, BYTES) for commands in (8, 16, 32)]


def reported(steadies, folder):
    runs = [write_steady(folder / f"run{number}", one) for number, one in enumerate(steadies)]
    return [report_on([(run, open_tables(run))]) for run in runs]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return reported(FIXED_BYTES, tmp_path_factory.mktemp("lever"))


def test_operations_at_fixed_bytes_have_the_elasticity_of_the_closed_form(reports):
    found = lever_report(reports, ["commands"])
    time = [one.wall_ns - one.compute_ns for one in FIXED_BYTES]
    expected = np.polyfit(np.log([one.commands for one in FIXED_BYTES]), np.log(time), 1)[0]
    assert found.features["elasticity_operations"].value == pytest.approx(expected, rel=1e-9)
    assert set(found.refused) == {Axis.BYTES, Axis.PARALLELISM, Axis.LOAD}
    assert isinstance(found.loggp, Refusal) and "same number of bytes" in found.loggp.reason
    assert found.first.decode is not None
    assert "elasticity_operations" not in found.first.decode.decode.verdict.unknown
    assert found.first.verdict is found.first.decode.decode.verdict


def test_proxies_are_issue_parallelism_and_one_is_not_named(tmp_path):
    steadies = [Steady(steps=40, commands=16, proxies=count, proxy_ns=5_000) for count in (1, 2, 4)]
    runs = [write_steady(tmp_path / f"run{one.proxies}", one) for one in steadies]
    for run, one in zip(runs, steadies, strict=True):
        manifest = run.manifest
        named = manifest.fingerprint | ({"proxies": one.proxies} if one.proxies > 1 else {})
        replace(manifest, fingerprint=named).write(run.path)
    opened = [open_run(run.path) for run in runs]
    found = lever_report([report_on([(run, open_tables(run))]) for run in opened], ["proxies"])
    assert [one.axes[Axis.PARALLELISM] for one in found.points] == [1, 2, 4]
    time = [one.wall_ns - one.compute_ns for one in steadies]
    expected = np.polyfit(np.log([1, 2, 4]), np.log(time), 1)[0]
    assert expected < -0.5
    assert found.features["elasticity_parallelism"].value == pytest.approx(expected, rel=1e-9)


def test_the_document_with_levers_fits_its_schema_and_the_section_says_what_is_unknown(reports):
    found = lever_report(reports, ["commands"])
    document = attribution_document(found.first) | lever_keys(found)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    text = as_terminal("", lever_sections(found))
    assert "elasticity_bytes unknown: bytes moved by a factor of 1.00" in text
    assert "LogGP refused" in text


def test_a_grid_of_operations_and_bytes_gives_loggp(tmp_path):
    grid = [steady(commands, size) for commands in (16, 48) for size in (BYTES, 4 * BYTES)]
    found = lever_report(reported(grid, tmp_path), ["commands"])
    assert isinstance(found.loggp, LogGP)
    # One command more costs the proxy's service; bytes cost nothing in this generator.
    assert found.loggp.per_operation_us.value == pytest.approx(5.9, rel=1e-3)
    assert found.loggp.per_byte_us.value == pytest.approx(0, abs=1e-9)


def test_runs_that_differ_in_more_than_the_lever_are_not_comparable(tmp_path):
    mixed = reported([steady(8, BYTES), Steady(steps=40, commands=16, ranks=3)], tmp_path)
    with pytest.raises(NothingToAnalyse, match="also differ in ranks"):
        lever_report(mixed, ["commands"])


def test_a_lever_that_moved_nothing_is_a_usage_error(reports):
    with pytest.raises(UsageError, match="the same hidden") as caught:
        lever_report(reports, ["hidden"])
    assert "commands" in str(caught.value.hint)
