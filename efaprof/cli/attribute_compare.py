"""What `efaprof attribute` says of several runs beside the first: with --lever, and with --baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from efaprof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from efaprof.analyzers.by import Grouping
    from efaprof.analyzers.limits import Gate
    from efaprof.analyzers.profile import Profile
    from efaprof.analyzers.replay import Change
    from efaprof.report.attribution_report import AttributionReport
    from efaprof.report.sections import Section
    from efaprof.trace.rundir import Run


@dataclass(frozen=True, slots=True)
class Asked:
    """How each run is to be reported on."""

    by: Grouping
    what_if: Sequence[Change]
    profile: Profile | None
    is_strict: bool
    step: str | None = None  # names of NVTX ranges that are steps

    def report(self, runs: Sequence[Run]) -> AttributionReport:
        """These runs together; with `is_strict` nothing may be unexplained."""
        from efaprof.report.attribution_report import check_explained, report_on
        from efaprof.trace.reader import open_tables

        report = report_on(
            [(run, open_tables(run, is_strict=self.is_strict)) for run in runs],
            by=self.by.operations,
            path_by=self.by.path,
            what_if=self.what_if,
            profile=self.profile,
            step=self.step,
        )
        if self.is_strict:
            check_explained(report)
        return report


@dataclass(frozen=True, slots=True)
class Compared:
    """The first run's report, the others', and what they say together."""

    reports: tuple[AttributionReport, ...]
    keys: dict[str, Any]  # to be added to the document of the first
    sections: tuple[Section, ...]
    gates: tuple[Gate, ...] = ()


def alone(runs: Sequence[Run], asked: Asked) -> Compared:
    """These runs together, compared with nothing."""
    from efaprof.report.progress import working

    with working(f"reading {runs[0].path.name}"):
        return Compared((asked.report(runs),), {}, ())


def with_evidence(found: Compared, path: Path) -> Compared:
    """The same with what experiments showed beside the first run."""
    from efaprof.ingest.evidence import read_evidence
    from efaprof.report.judgement_report import judgement_keys, judgement_sections, settled

    first, judgements = settled(found.reports[0], read_evidence(path))
    return Compared(
        (first, *found.reports[1:]),
        found.keys | judgement_keys(judgements),
        (*found.sections, *judgement_sections(judgements)),
        found.gates,
    )


def by_lever(runs: Sequence[Run], levers: Sequence[str], asked: Asked) -> Compared:
    """Elasticities of runs that differ in the levers alone."""
    from efaprof.report.lever_report import lever_keys, lever_report, lever_sections

    if len(runs) < 2:
        raise UsageError("--lever compares several runs", hint="efaprof attribute RUN RUN … --lever channels")
    reports = _reports(runs, asked)
    found = lever_report(reports, levers)
    return Compared((found.first, *reports[1:]), lever_keys(found), tuple(lever_sections(found)))


def with_baseline(
    runs: Sequence[Run], baseline: Sequence[Path], asked: Asked, *, fail_regression: str | None, allowed: Sequence[str]
) -> Compared:
    """Change of each measure from the baseline's runs to these, as efaprof diff judges it; each run counts once."""
    from efaprof.analyzers.diff import Margins
    from efaprof.cli.diff import read_runs
    from efaprof.cli.quantities import parse_percent
    from efaprof.report.diff_json import diff_document
    from efaprof.report.diff_report import diff_report
    from efaprof.report.diff_runs import read_report
    from efaprof.report.diff_sections import baseline_sections
    from efaprof.report.progress import counting_bar

    margins = Margins() if fail_regression is None else Margins(step=parse_percent(fail_regression))
    reports = _reports(runs, asked)
    second = [read_report(run, report) for run, report in zip(runs, reports, strict=True)]
    with counting_bar("reading the baseline", len(baseline)) as advance:
        first = read_runs(baseline, advance, profile=asked.profile)
    found = diff_report(first, second, margins=margins, allowed=frozenset(allowed))
    gates = found.gates if fail_regression is not None or asked.is_strict else ()
    return Compared(tuple(reports), {"baseline": diff_document(found)}, tuple(baseline_sections(found)), gates)


def _reports(runs: Sequence[Run], asked: Asked) -> list[AttributionReport]:
    from efaprof.report.progress import counting_bar

    reports = []
    with counting_bar("reading runs", len(runs)) as advance:
        for run in runs:
            reports.append(asked.report([run]))
            advance()
    return reports
