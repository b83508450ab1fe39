"""The comparison as JSON, schema efaprof.diff/1 (efaprof/report/schemas/efaprof.diff.1.json)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from efaprof.analyzers.diff import has_measure
from efaprof.analyzers.run_changes import MOST_RUNS, POWER
from efaprof.report.gates_json import gate_rows
from efaprof.trace.layers import Provenance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from efaprof.analyzers.diff import MeasureChange, RunMeasures
    from efaprof.report.diff_report import DiffReport

SCHEMA = "efaprof.diff/1"
DERIVED = Provenance.DERIVED.value


def diff_document(report: DiffReport) -> dict[str, Any]:
    """The whole comparison; changes are relative, numbers are not rounded."""
    diff = report.diff
    recommended = diff.recommended
    return {
        "schema": SCHEMA,
        "outcome": report.outcome.value,
        "first": _side(diff.first, report.verdicts[0]),
        "second": _side(diff.second, report.verdicts[1]),
        "order": diff.order,
        "is_interleaved": diff.is_interleaved,
        "unit": "run",
        "test": "Welch t on log means of runs; Benjamini-Hochberg over layers",
        "margins": {"step": diff.margins.step, "layer": diff.margins.layer},
        "measures": [
            _measure(one, [has_measure(side, one.name) for side in (diff.first, diff.second)]) for one in diff.measures
        ],
        "noise": diff.noise,
        "recommended": {
            "runs": None if recommended is None or recommended > MOST_RUNS else recommended,
            "most": MOST_RUNS,
            "effect": diff.effect,
            "power": POWER,
            "provenance": DERIVED,
        },
        "verdict_changed": report.has_verdict_changed,
        "allowed": {key: list(values) for key, values in report.allowed.items()},
        "gates": gate_rows(report.gates),
        "warnings": list(report.warnings),
    }


def _side(runs: Sequence[RunMeasures], verdicts: Mapping[str, int]) -> dict[str, Any]:
    return {
        "runs": [{"run": run.name, "wall_us": run.wall_us, "verdict": run.verdict} for run in runs],
        "verdicts": dict(verdicts),
        "fingerprint": dict(runs[0].comparable),
    }


def _measure(one: MeasureChange, is_there: Sequence[bool]) -> dict[str, Any]:
    return {
        "name": one.name,
        "first_us": one.first_us if is_there[0] else None,
        "second_us": one.second_us if is_there[1] else None,
        "change": {"value": one.change, "lo": one.lo, "hi": one.hi},
        "margin": one.margin,
        "false_discovery_rate": one.discovery_rate,
        "smallest_detectable": one.detectable,
        "outcome": one.outcome.value,
        "provenance": DERIVED,
    }
