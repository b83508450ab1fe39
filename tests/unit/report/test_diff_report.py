"""The comparison's report on hand-made runs: its screen, its JSON, what poor data and other verdicts do to it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from efaprof import report
from efaprof.analyzers.diff import Margins, Outcome, RunMeasures
from efaprof.analyzers.limits import GateStatus
from efaprof.errors import NothingToAnalyse
from efaprof.report.benchmark_json import diff_rows
from efaprof.report.diff_json import diff_document
from efaprof.report.diff_report import diff_report, signed
from efaprof.report.diff_runs import ReadRun
from efaprof.report.diff_sections import diff_heading, diff_sections
from efaprof.report.sections import as_terminal

SCHEMA = json.loads((Path(report.__file__).parent / "schemas" / "efaprof.diff.1.json").read_text())
SOUND = {
    "wall_us": {"value": 1000.0},
    "coverage": 0.99,
    "drops": 0,
    "unmatched": {},
    "operations": {"count": 10_000},
    "conservation_error_ns": 0,
    "clock_clip_ns": 0,
}


def side(letter, proxy_us, *, starts, verdict="issue-bound/proxy", **document):
    made = []
    for number, start in enumerate(starts):
        noise_us = (0.0, 3.0, -2.0)[number % 3]
        measures = RunMeasures(
            name=f"{letter}{number + 1}",
            started_realtime_ns=start,
            wall_us=600.0 + proxy_us + noise_us,
            median_us=598.0 + proxy_us + noise_us,
            layers_us={"compute": 500.0 + noise_us, "proxy": proxy_us, "nic": 100.0},
            host_us=proxy_us / 2,
            verdict=verdict,
            comparable={"hidden": 1024},
            noted={"host": "node"},
        )
        made.append(ReadRun({**SOUND, **document}, measures))
    return made


FIRST = side("A", 400.0, starts=[1, 4, 5])
SLOWER = side("B", 480.0, starts=[2, 3, 6])


def compared(first=FIRST, second=SLOWER):
    return diff_report(first, second, margins=Margins(), allowed=frozenset())


def test_the_screen(golden):
    made = compared()
    golden("diff.txt", as_terminal(diff_heading(made), diff_sections(made)))


def test_the_document_fits_its_schema_and_names_the_layer():
    document = diff_document(compared())
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    assert document["outcome"] == "regression"
    assert [one["name"] for one in document["measures"] if one["outcome"] == "regression"] == [
        "step", "step p50", "proxy", "host recoverable",
    ]  # fmt: skip
    assert document["measures"][3]["change"]["value"] == pytest.approx(0.2)


def test_too_few_runs_still_fit_the_schema():
    document = diff_document(compared(FIRST[:1], SLOWER[:1]))
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    assert document["outcome"] == "inconclusive"
    assert document["recommended"]["runs"] is None


def test_poor_data_show_no_regression_and_fail_their_own_gate():
    made = compared(second=side("B", 480.0, starts=[2, 3, 6], coverage=0.5))
    assert made.outcome is Outcome.INCONCLUSIVE
    assert [gate.name for gate in made.gates if gate.status is GateStatus.FAILED] == ["coverage"]
    assert "50.0% of the step is placed in a layer (B1)" in [gate.detail for gate in made.gates]


def test_another_verdict_is_a_warning():
    made = compared(second=side("B", 400.0, starts=[2, 3, 6], verdict="skew-bound"))
    assert made.has_verdict_changed
    assert "the verdict changed: issue-bound/proxy (3 of 3) → skew-bound (3 of 3)" in made.warnings
    assert made.outcome is Outcome.UNCHANGED


def test_a_layer_that_cannot_be_told_does_not_hold_up_a_strict_job():
    noisy = []
    for one, factor in zip(FIRST, (0.5, 1.0, 2.0), strict=True):
        layers = {**one.measures.layers_us, "nic": 100.0 * factor}
        noisy.append(ReadRun(one.document, replace(one.measures, layers_us=layers)))
    made = compared(second=noisy)
    assert {one.name: one.outcome for one in made.diff.measures}["nic"] is Outcome.INCONCLUSIVE
    assert {gate.status for gate in made.gates} == {GateStatus.PASSED, GateStatus.UNKNOWN}


def test_another_host_is_noted_and_another_model_is_refused():
    moved = [ReadRun(one.document, replace(one.measures, noted={"host": "other"})) for one in SLOWER]
    assert "host differs: node / other" in compared(second=moved).warnings
    wider = [ReadRun(one.document, replace(one.measures, comparable={"hidden": 2048})) for one in SLOWER]
    with pytest.raises(NothingToAnalyse, match="they differ in hidden: 1024 / 2048"):
        compared(second=wider)


def test_rows_for_a_benchmark_history_are_the_second_sides_times():
    rows = diff_rows(compared().diff)
    assert rows[0] == {"name": "step", "unit": "µs/token", "value": pytest.approx(1080.333, abs=0.01),
                       "extra": "mean of 3 runs, +8.00%"}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"), [(0.034, "+3.4 %"), (-0.5, "-50.0 %"), (0.999, "+99.9 %"), (1.35, "×2.35"), (1324.4, "×1 325")]
)
def test_changes_are_percentages_until_they_are_multiples(change, words):
    assert signed(change) == words
