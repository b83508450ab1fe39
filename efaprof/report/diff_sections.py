"""The comparison as tables and notes, for the terminal and for markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from efaprof.analyzers.diff import has_measure
from efaprof.analyzers.limits import STEP, GateStatus
from efaprof.analyzers.run_changes import MOST_RUNS
from efaprof.report import units
from efaprof.report.diff_report import signed
from efaprof.report.gates_json import gates_table
from efaprof.report.sections import LEGEND, Notes, Section, Table
from efaprof.report.units import DERIVED, MEASURED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from efaprof.analyzers.diff import MeasureChange
    from efaprof.report.diff_report import DiffReport

_NS_PER_US = 1e3


def diff_heading(report: DiffReport) -> str:
    """First line of the comparison: what came out."""
    step = report.diff.measures[0]
    interval = "" if step.lo is None or step.hi is None else f" [{signed(step.lo)}, {signed(step.hi)}]"
    runs = f"{len(report.diff.first)} A, {len(report.diff.second)} B runs"
    return f"efaprof diff · {runs} · {report.outcome.value} · step {signed(step.change)}{interval}"


def diff_sections(report: DiffReport) -> list[Section]:
    """What the comparison says, in order; of the gates only those that did not pass."""
    shown = [gate for gate in report.gates if gate.status in (GateStatus.FAILED, GateStatus.INCONCLUSIVE)]
    gates = [gates_table(shown)] if shown else []
    found: list[Section] = [_changes(report), Notes("power", tuple(_power(report))), *gates, _runs(report)]
    return [*found, *_warnings(report, "warnings"), Notes("marks", (LEGEND,))]


def baseline_sections(report: DiffReport) -> list[Section]:
    """The same as a part of the report on the runs B, which has gates and marks of its own."""
    _, _, outcome = diff_heading(report).split(" · ", 2)
    found: list[Section] = [_changes(report), Notes("baseline", (outcome, *_power(report))), _runs(report)]
    return [*found, *_warnings(report, "comparison")]


def _runs(report: DiffReport) -> Notes:
    names = [", ".join(run.name for run in side) for side in (report.diff.first, report.diff.second)]
    return Notes("runs", (f"A: {names[0]}", f"B: {names[1]}"))


def _warnings(report: DiffReport, title: str) -> list[Section]:
    return [Notes(title, report.warnings)] if report.warnings else []


def _changes(report: DiffReport) -> Table:
    columns = (
        "per token", f"A {MEASURED}", f"B {MEASURED}", f"change {DERIVED}", "95 %", "margin",
        f"could have shown {DERIVED}", "outcome",
    )  # fmt: skip
    sides = report.diff.first, report.diff.second
    rows = tuple(_row(one, [has_measure(side, one.name) for side in sides]) for one in report.diff.measures)
    return Table("per token", columns, rows, frozenset({"per token", "outcome"}))


def _row(one: MeasureChange, is_there: Sequence[bool]) -> tuple[str, ...]:
    """A layer that a side's path does not have is absent there, not zero."""
    times, is_compared = (one.first_us, one.second_us), all(is_there)
    return (
        one.name,
        *(units.duration(us * _NS_PER_US) if there else units.NONE for us, there in zip(times, is_there, strict=True)),
        signed(one.change) if is_compared else units.NONE,
        units.NONE if one.lo is None or one.hi is None or not is_compared else f"{signed(one.lo)} … {signed(one.hi)}",
        f"±{units.percent(one.margin)}",
        units.NONE if one.detectable is None else signed(one.detectable),
        one.outcome.value if is_compared else "absent",
    )


def _power(report: DiffReport) -> list[str]:
    """What this many runs could have shown, and how many would show more."""
    diff = report.diff
    step = next(one for one in diff.measures if one.name == STEP)
    if diff.noise is None or step.detectable is None:
        return ["unknown: too few runs on a side"]
    lines = [
        f"runs of one side differ by {units.percent(diff.noise)} {DERIVED}",
        f"the smallest change of the step that so many runs show 9 times in 10: {signed(step.detectable)} {DERIVED}",
    ]
    if diff.recommended is not None and diff.recommended <= MOST_RUNS:
        lines.append(f"to show {signed(diff.effect)}: {diff.recommended} runs a side {DERIVED}")
    return lines
