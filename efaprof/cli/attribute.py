"""`efaprof attribute`: where the time of a run's operations goes, layer by layer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efaprof.analyzers.by import Grouping
from efaprof.cli.gating import CiFiles, Gating
from efaprof.cli.optional_value import command_with
from efaprof.cli.run_argument import RUN_HELP, chosen_run
from efaprof.cli.targets import Targets
from efaprof.errors import TraceError, UsageError

if TYPE_CHECKING:
    from efaprof.analyzers.profile import Profile
    from efaprof.analyzers.replay import Change
    from efaprof.report.attribution_report import AttributionReport
    from efaprof.trace.rundir import Run

FILE_NAME = "attribution.json"  # kept in the run directory


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("attribute", cls=command_with("--json", "--markdown"))(attribute)


def attribute(
    runs: Annotated[list[Path] | None, typer.Argument(metavar="RUN", help=RUN_HELP)] = None,
    by: Annotated[Grouping, typer.Option(help="Also group operations or the critical path by this.")] = Grouping.KIND,
    what_if: Annotated[
        list[str] | None,
        typer.Option("--what-if", metavar="CHANGE", help="Replay LAYER=0, LAYER=x0.5, fence=0, proxies=2; repeatable."),
    ] = None,
    lever: Annotated[
        list[str] | None,
        typer.Option(
            "--lever", metavar="NAME", help="RUNs differ in this (channels, hidden, …): elasticities; repeatable."
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option("--profile", metavar="FILE", help="Ceilings of the fabric, from efaprof calibrate."),
    ] = None,
    evidence: Annotated[
        Path | None,
        typer.Option("--evidence", metavar="FILE", help="A verdict from A/B pairs and shares, without RUNs."),
    ] = None,
    as_json: Annotated[
        str | None, typer.Option("--json", metavar="[FILE]", help="JSON (efaprof.attribution/1), to stdout or FILE.")
    ] = None,
    as_markdown: Annotated[
        str | None, typer.Option("--markdown", metavar="[FILE]", help="Markdown, to stdout or FILE.")
    ] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[!]LABEL[/WHERE[/KIND]]", help="Gate: the path's verdict is this, or is not; repeatable."
        ),
    ] = None,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(metavar="LAYER=TIME", help="Gate: a layer, step, host, issue or receive per token; repeatable."),
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Gates as JUnit test cases.")] = None,
    bench: Annotated[Path | None, typer.Option(metavar="FILE", help="Times for github-action-benchmark.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 3 when anything recorded is missing, 4 when a gate is inconclusive.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Say only what failed, and what was asked for.")] = False,
) -> None:
    """Show where the time of a run's operations goes, layer by layer.

    Several RUNs are taken together, or compared with --lever. The tables made on the way stay in RUN and are used
    again; so does the report, as attribution.json. With a gate, exit 4 when it fails; where the data are too poor to
    tell, it passes unless --strict.
    """
    from efaprof.analyzers.replay import parse_change
    from efaprof.ingest.profile import read_profile
    from efaprof.report.attribution_json import attribution_document
    from efaprof.report.attribution_report import report_on
    from efaprof.report.attribution_sections import attribution_heading, attribution_sections
    from efaprof.trace.reader import open_tables

    changes = [parse_change(text) for text in what_if or ()]
    targets = Targets(as_json, as_markdown, is_quiet=quiet)
    gating = Gating(tuple(expect or ()), tuple(fail_above or ()), CiFiles(junit, bench))
    if evidence is not None:
        _judge(evidence, runs, targets)
        return
    ceilings = read_profile(profile) if profile is not None else None
    chosen = [chosen_run(path) for path in runs] if runs else [chosen_run(None)]
    if lever:
        if gating.is_asked:
            raise UsageError("gates are on one run, not on a comparison", hint="leave out --lever, or see efaprof diff")
        _compare(chosen, lever, targets, by=by, what_if=changes, profile=ceilings, is_strict=strict)
        return
    report = report_on(
        [(run, open_tables(run, is_strict=strict)) for run in chosen],
        by=by.operations,
        path_by=by.path,
        what_if=changes,
        profile=ceilings,
    )
    if strict:
        _check_explained(report)
    document = attribution_document(report)
    gates = gating.judge(document)
    _keep(chosen, document)
    heading, sections = attribution_heading(report), gating.with_gates(attribution_sections(report), gates)
    targets.write(document, heading, sections)
    gating.finish(document, gates, heading, sections, is_strict=strict)


def _compare(
    chosen: list[Run],
    levers: list[str],
    targets: Targets,
    *,
    by: Grouping,
    what_if: list[Change],
    profile: Profile | None,
    is_strict: bool,
) -> None:
    """Report on the first run with what all of them say together."""
    from efaprof.report.attribution_json import attribution_document
    from efaprof.report.attribution_report import report_on
    from efaprof.report.attribution_sections import attribution_heading, attribution_sections
    from efaprof.report.lever_report import lever_keys, lever_report, lever_sections
    from efaprof.trace.reader import open_tables

    if len(chosen) < 2:
        raise UsageError("--lever compares several runs", hint="efaprof attribute RUN RUN … --lever channels")
    reports = [
        report_on(
            [(run, open_tables(run, is_strict=is_strict))],
            by=by.operations,
            path_by=by.path,
            what_if=what_if,
            profile=profile,
        )
        for run in chosen
    ]
    if is_strict:
        for report in reports:
            _check_explained(report)
    found = lever_report(reports, levers)
    targets.write(
        attribution_document(found.first) | lever_keys(found),
        attribution_heading(found.first),
        [*attribution_sections(found.first), *lever_sections(found)],
    )


def _judge(evidence: Path, runs: list[Path] | None, targets: Targets) -> None:
    """Report on each operation that a file of evidence is about."""
    from efaprof.ingest.evidence import read_evidence
    from efaprof.report.judgement_report import HEADING, judge_all, judgement_document, judgement_sections

    if runs:
        raise UsageError("--evidence is read without RUNs", hint=f"efaprof attribute --evidence {evidence}")
    found = judge_all(read_evidence(evidence))
    targets.write(judgement_document(str(evidence), found), f"{HEADING} · {evidence}", judgement_sections(found))


def _check_explained(report: AttributionReport) -> None:
    lost = report.recorded.unexplained
    if lost:
        kinds = ", ".join(f"{count} {kind}" for kind, count in lost.items())
        raise TraceError(f"operations are unexplained: {kinds}", hint="leave out --strict to see the rest")


def _keep(runs: list[Run], document: dict[str, Any]) -> None:
    """Leave the report of a single run in its directory, where other commands find it."""
    if len(runs) != 1:
        return
    try:
        (runs[0].path / FILE_NAME).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"{FILE_NAME} is not kept in {runs[0].path}: {error.strerror}\n")
