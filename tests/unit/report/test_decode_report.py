"""Reports on runs with steps: the walked layers, what replays save, and a document that fits its schema."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from efaprof import report
from efaprof.analyzers.by import PathBy
from efaprof.analyzers.replay import parse_change
from efaprof.errors import NothingToAnalyse
from efaprof.report.attribution_json import attribution_document
from efaprof.report.attribution_report import report_on
from efaprof.report.attribution_sections import attribution_heading, attribution_sections
from efaprof.report.sections import as_terminal
from efaprof.trace.layers import Layer
from efaprof.trace.reader import open_tables
from efaprof.trace.rundir import open_run
from efaprof.trace.steady import Steady, write_steady

SCHEMA = json.loads((Path(report.__file__).parent / "schemas" / "efaprof.attribution.1.json").read_text())
STEADY = Steady(steps=60, commands=9, proxy_ns=9_000)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    run = write_steady(tmp_path_factory.mktemp("steady") / "run", STEADY)
    return report_on([(run, open_tables(run))], what_if=[parse_change("proxy=x0.5"), parse_change("proxies=2")])


def test_the_document_of_a_run_with_steps_fits_its_schema(made):
    document = attribution_document(made)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    assert document["method"] == "critical-path"
    assert document["conservation_error_ns"] == 0
    assert document["coverage"] == 1
    assert document["recoverable_is_upper_bound"] is True
    layers = {row["layer"]: row for row in document["layers"]}
    assert sum(row["us"]["value"] for row in layers.values()) == pytest.approx(STEADY.wall_ns / 1000, rel=1e-12)
    assert layers["proxy"]["us"]["value"] == 9 * 9.0
    assert layers["proxy"]["recoverable_us"]["value"] > 70
    assert layers["skew"]["true_us"] == 0
    assert "launch" not in layers
    assert set(document["groups"]) == {"host", "issue", "receive", "fence"}
    assert document["groups"]["issue"]["recoverable_us"]["value"] >= layers["proxy"]["recoverable_us"]["value"]
    assert document["groups"]["fence"]["recoverable_us"]["value"] == 0
    assert [row["change"] for row in document["what_if"]] == ["proxy=x0.5", "proxies=2"]
    assert all(row["recoverable_us"]["value"] > 30 for row in document["what_if"])


def test_a_run_with_several_proxies_says_so(tmp_path):
    run = write_steady(tmp_path / "run", Steady(steps=60, commands=8, proxies=2, proxy_ns=9_000))
    report = report_on([(run, open_tables(run))])
    assert "2 ranks with 2 proxies each · 60 decode steps" in attribution_heading(report)
    document = attribution_document(report)
    assert (document["conservation_error_ns"], document["coverage"]) == (0, 1)
    assert document["operations"]["per_step"]["stamped"] == 1


def test_the_terminal_report_keeps_to_one_screen_and_says_what_bounds_it(made):
    text = as_terminal(attribution_heading(made), attribution_sections(made))
    lines = text.splitlines()
    assert "method critical-path" in lines[0]
    assert len(lines) <= 45
    assert "recoverable ≤" in text
    assert "at most: the NIC's own ceiling is not calibrated" in text
    assert "what if proxies=2" in text


def test_the_layers_of_the_slowest_steps_stand_in_one_line_and_not_where_all_steps_are_alike(made):
    assert "\ntail  " not in as_terminal(attribution_heading(made), attribution_sections(made))
    tail = {Layer.PROXY: -0.0312, Layer.NIC: 0.1234, Layer.RX: 0.0004, Layer.RING: -0.0915}
    decode = made.decode.decode
    uneven = replace(decode, split=replace(decode.split, tail=tail))
    text = as_terminal("", attribution_sections(replace(made, decode=replace(made.decode, decode=uneven))))
    line = next(line for line in text.splitlines() if line.startswith("tail  "))
    assert line.endswith("points of share ○: nic +12.3, ring -9.2, proxy -3.1")


@pytest.mark.parametrize("by", list(PathBy))
def test_groups_of_the_path_sum_to_what_they_are_of(tmp_path, by):
    run = write_steady(tmp_path / "run", STEADY)
    made = report_on([(run, open_tables(run))], path_by=by)
    document = attribution_document(made)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    groups = document["path_by"]["groups"]
    wall_us = STEADY.wall_ns / 1000
    for group in groups:
        assert sum(group["layers_us"].values()) == pytest.approx(group["us"])
    if by in {PathBy.STEP, PathBy.RANK}:
        assert [group["us"] for group in groups] == [pytest.approx(wall_us)] * (60 if by is PathBy.STEP else 2)
    else:
        assert sum(group["us"] for group in groups) == pytest.approx(wall_us)
    text = as_terminal(attribution_heading(made), attribution_sections(made))
    assert f"path by {by}" in text
    assert len(text.splitlines()) <= 48


def by_rank(folder):
    """The steady run as each of its ranks would have recorded it for itself."""
    whole = write_steady(folder / "whole", STEADY)
    runs = []
    for rank in range(STEADY.ranks):
        path = folder / f"rank{rank}"
        shutil.copytree(whole.path, path)
        for raw in (path / "raw").iterdir():
            # Process 1 is the recorder's, 100 + rank the rank's.
            if raw.name.split(".")[2] not in {"1", str(100 + rank)}:
                raw.unlink()
        runs.append(open_run(path))
    return whole, runs


def test_the_runs_of_the_ranks_of_a_job_read_as_the_run_of_all(tmp_path):
    whole, runs = by_rank(tmp_path)
    one = attribution_document(report_on([(whole, open_tables(whole))]))
    several = attribution_document(report_on([(run, open_tables(run)) for run in runs]))
    jsonschema.Draft202012Validator(SCHEMA).validate(several)
    assert several["layers"] == one["layers"]
    assert several["groups"] == one["groups"]
    assert several["run"]["runs"] == ["rank0", "rank1"]


def test_a_rank_that_nobody_recorded_is_named_and_leaves_waits_unattributed(tmp_path):
    _, (run, _) = by_rank(tmp_path)
    document = attribution_document(report_on([(run, open_tables(run))]))
    assert any("no run has rank 1" in warning for warning in document["warnings"])
    assert document["conservation_error_ns"] == 0
    assert document["coverage"] < 0.9


def test_runs_with_the_same_rank_are_not_taken_for_one_job(tmp_path):
    _, (run, _) = by_rank(tmp_path)
    with pytest.raises(NothingToAnalyse) as caught:
        report_on([(run, open_tables(run))] * 2)
    assert "rank 0 stands in several of them" in caught.value.message
