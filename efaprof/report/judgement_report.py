"""Verdicts from evidence alone, one per operation: as sections of text and as efaprof.judgement/1."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from efaprof.analyzers.interventions import effects, judge, settle
from efaprof.report import units
from efaprof.report.sections import Notes, Section, Table
from efaprof.report.units import DERIVED, MEASURED
from efaprof.trace.layers import Provenance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from efaprof.analyzers.interventions import Effect, Evidence, Judgement
    from efaprof.report.attribution_report import AttributionReport

SCHEMA = "efaprof.judgement/1"
WHOLE_STEP = "step"  # the operation that evidence on a run's whole step names
HEADING = "efaprof attribute · evidence"


def judge_all(evidence: Evidence) -> tuple[Judgement, ...]:
    """A verdict on every operation that the evidence is about."""
    return tuple(
        judge(op, interventions=evidence.interventions, waits=evidence.waits, readings=evidence.readings)
        for op in evidence.operations
    )


def settled(report: AttributionReport, evidence: Evidence) -> tuple[AttributionReport, tuple[Judgement, ...]]:
    """The report with interventions beside it: on each operation the higher grade wins.

    What they say of the operation `step` is said of the whole step, and becomes the report's own verdict.
    """
    path, grade = report.verdict.path, report.verdict.grade
    found = tuple(settle(op, path, grade, effects(evidence.interventions, op)) for op in evidence.operations)
    own = next((one for one in found if one.op == WHOLE_STEP), None)
    if own is None or own.grade == grade:
        return report, found
    verdict = replace(report.verdict, path=own.path, grade=own.grade, next_experiment=own.next_experiment)
    steps = report.decode
    if steps is not None:
        steps = replace(steps, decode=replace(steps.decode, verdict=verdict))
    return replace(report, verdict=verdict, decode=steps), found


def judgement_keys(found: Sequence[Judgement]) -> dict[str, Any]:
    """What evidence adds to the document of a run."""
    return {"evidence": _operations(found)} if found else {}


def judgement_sections(found: Sequence[Judgement]) -> list[Section]:
    """The verdicts as a table, then what each experiment showed and what speaks against it."""
    columns = ("operation", f"path {DERIVED}", "grade", f"pairs {MEASURED}", "contradictions")
    rows = tuple(
        (
            one.op,
            one.path,
            one.grade or units.NONE,
            units.whole(sum(effect.pairs for effect in one.effects)),
            units.whole(len(one.contradictions)),
        )
        for one in found
    )
    lines = [f"{one.op}: {words}" for one in found for words in _words(one)]
    table = Table("operation", columns, rows, frozenset({"operation", columns[1], "grade"}))
    return [table, Notes("because", tuple(lines))] if lines else [table]


def _words(one: Judgement) -> list[str]:
    said = {True: "supported", False: "refuted", None: "open"}
    lines = [f"{effect.lever}: {effect.label} {said[effect.supports]}, {effect.reason}" for effect in one.effects]
    lines += [f"contradiction: {words}" for words in one.contradictions]
    return [*lines, f"next: {one.next_experiment}"] if one.next_experiment else lines


def judgement_document(source: str, found: Sequence[Judgement]) -> dict[str, Any]:
    """The verdicts as JSON; numbers are not rounded."""
    return {
        "schema": SCHEMA,
        "source": source,
        "operations": _operations(found),
    }


def _operations(found: Sequence[Judgement]) -> list[dict[str, Any]]:
    return [
        {
            "op": one.op,
            "path": one.path,
            "grade": one.grade,
            "effects": [_effect(effect) for effect in one.effects],
            "contradictions": list(one.contradictions),
            "next_experiment": one.next_experiment,
        }
        for one in found
    ]


def _effect(effect: Effect) -> dict[str, Any]:
    return {
        "lever": effect.lever,
        "label": effect.label,
        "config_hash": effect.config_hash,
        "pairs": effect.pairs,
        "saved_us": {"value": effect.saved_us.value, "lo": effect.saved_us.lo, "hi": effect.saved_us.hi},
        "before_us": effect.before_us,
        "removed": effect.removed,
        "supports": effect.supports,
        "reason": effect.reason,
        "provenance": Provenance.DERIVED.value,
    }
