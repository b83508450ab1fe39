"""What `efaprof diff` says, as one value for all renderings, gates among it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from efaprof.analyzers import diff
from efaprof.analyzers.diff import Diff, Outcome
from efaprof.analyzers.limits import STEP, Gate, GateStatus, quality_gates
from efaprof.analyzers.run_changes import MIN_RUNS, MOST_RUNS
from efaprof.errors import NothingToAnalyse
from efaprof.report import units

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from efaprof.analyzers.diff import Margins, MeasureChange
    from efaprof.report.diff_runs import ReadRun

_STATUS = {
    Outcome.REGRESSION: GateStatus.FAILED,
    Outcome.INCONCLUSIVE: GateStatus.INCONCLUSIVE,
    Outcome.IMPROVEMENT: GateStatus.PASSED,
    Outcome.UNCHANGED: GateStatus.PASSED,
}


@dataclass(frozen=True, slots=True)
class DiffReport:
    """One comparison with what it rests on."""

    diff: Diff
    outcome: Outcome  # inconclusive where the data are not good enough
    gates: tuple[Gate, ...]
    verdicts: tuple[Mapping[str, int], Mapping[str, int]]  # label → runs
    allowed: Mapping[str, Sequence[Any]]  # differing keys that were allowed
    warnings: tuple[str, ...]

    @property
    def has_verdict_changed(self) -> bool:
        """The most frequent verdict of one side is not that of the other."""
        first, second = (max(one, key=lambda label: one[label]) for one in self.verdicts)
        return first != second


def diff_report(
    first: Sequence[ReadRun], second: Sequence[ReadRun], *, margins: Margins, allowed: frozenset[str]
) -> DiffReport:
    """Compare two groups of runs; NothingToAnalyse names the keys in which they differ and were not allowed to."""
    runs = [one.measures for one in (*first, *second)]
    different = diff.differences(runs, allowed=allowed)
    if different:
        raise _not_comparable(different)
    found = diff.compare([one.measures for one in first], [one.measures for one in second], margins)
    quality = _worst([*first, *second])
    is_sound = all(gate.status is not GateStatus.FAILED for gate in quality)
    report = DiffReport(
        diff=found,
        outcome=found.outcome if is_sound else Outcome.INCONCLUSIVE,
        gates=(*quality, _same(), *(_gate(one, is_sound=is_sound) for one in found.measures)),
        verdicts=(_verdicts(first), _verdicts(second)),
        allowed={key: values for key, values in diff.differences(runs).items() if key in allowed},
        warnings=(),
    )
    warnings = _warnings(report, diff.notes(runs, allowed=allowed))
    return DiffReport(found, report.outcome, report.gates, report.verdicts, report.allowed, tuple(warnings))


def _not_comparable(different: Mapping[str, Sequence[Any]]) -> NothingToAnalyse:
    words = "; ".join(f"{key}: {' / '.join(map(str, values))}" for key, values in different.items())
    return NothingToAnalyse(
        f"the runs are not comparable, they differ in {words}",
        hint=f"where that is what you compare, allow it: --allow {next(iter(different))}",
    )


def _worst(runs: Sequence[ReadRun]) -> list[Gate]:
    """Each gate on the quality of the data, of the run that is worst in it."""
    of_runs = [(one.measures.name, quality_gates(one.document)) for one in runs]
    worst = []
    for at in range(len(of_runs[0][1])):
        name, gate = max(
            ((name, gates[at]) for name, gates in of_runs),
            key=lambda pair: (pair[1].status is GateStatus.FAILED, pair[1].value or 0.0),
        )
        detail = gate.detail if gate.value is None else f"{gate.detail} ({name})"
        worst.append(Gate(gate.name, gate.status, detail, gate.value, gate.limit))
    return worst


def _same() -> Gate:
    return Gate("fingerprint", GateStatus.PASSED, "the runs are comparable")


def _gate(one: MeasureChange, *, is_sound: bool) -> Gate:
    """The gate on a measure; a layer that was not shown to change is not asked to be shown not to."""
    status = _STATUS[one.outcome]
    if one.name != STEP and status is GateStatus.INCONCLUSIVE:
        status = GateStatus.PASSED
    detail = f"{signed(one.change)}, {one.outcome.value}"
    if one.lo is not None and one.hi is not None:
        detail = f"{signed(one.change)} [{signed(one.lo)}, {signed(one.hi)}], {one.outcome.value}"
    if not is_sound and status is GateStatus.FAILED:
        status, detail = GateStatus.INCONCLUSIVE, f"{detail}; the data are not good enough to tell"
    kind = "" if one.name.startswith((STEP, diff.HOST)) else "layer "
    return Gate(f"{kind}{one.name} within {units.percent(one.margin)}", status, detail, one.change, one.margin)


def signed(change: float) -> str:
    """+3.4 %; from twice as much on, how many times as much: ×2.35."""
    return f"×{units.digits(1 + change)}" if change >= 1 else f"{change:+.1%}".replace("%", " %")


def _verdicts(runs: Sequence[ReadRun]) -> dict[str, int]:
    return dict(Counter(one.measures.verdict for one in runs).most_common())


def _warnings(report: DiffReport, noted: Mapping[str, Sequence[Any]]) -> list[str]:
    found, said = report.diff, []
    fewest = min(len(found.first), len(found.second))
    if fewest < MIN_RUNS:
        said.append(f"{fewest} run{'s' if fewest > 1 else ''} on a side: the noise between runs is not known, "
                    f"record at least {MIN_RUNS} each, one side after the other (A B B A A B)")  # fmt: skip
    if found.is_interleaved is False:
        said.append(f"the runs are not interleaved ({found.order}): what the machine did meanwhile counts as change")
    if report.has_verdict_changed:
        first, second = (_counted(one) for one in report.verdicts)
        said.append(f"the verdict changed: {first} → {second}")
    if found.recommended is not None and found.recommended > MOST_RUNS:
        said.append(f"runs differ so much that not even {MOST_RUNS} a side would show {signed(found.effect)}")
    said += [f"{key} differs: {' / '.join(map(str, values))}" for key, values in noted.items()]
    said += [f"{key} differs, as allowed: {' / '.join(map(str, values))}" for key, values in report.allowed.items()]
    return said


def _counted(verdicts: Mapping[str, int]) -> str:
    return ", ".join(f"{label} ({count} of {sum(verdicts.values())})" for label, count in verdicts.items())
