"""`efaprof attribute`: where the time of a run's operations goes, layer by layer."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efaprof.analyzers.by import Grouping
from efaprof.cli.attribute_compare import Asked, alone, by_lever, with_baseline, with_evidence
from efaprof.cli.gating import CiFiles, Gating
from efaprof.cli.one_thread import import_numpy
from efaprof.cli.optional_value import command_with
from efaprof.cli.run_argument import RUN_HELP, chosen_run
from efaprof.cli.talk import QuietReport
from efaprof.cli.targets import Targets
from efaprof.errors import UsageError

if TYPE_CHECKING:
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
        typer.Option("--evidence", metavar="FILE", help="A/B pairs and shares: beside RUN, or without RUNs a verdict."),
    ] = None,
    baseline: Annotated[
        list[Path] | None,
        typer.Option("--baseline", metavar="RUN", help="Also say what changed since that run; repeatable."),
    ] = None,
    fail_regression: Annotated[
        str | None,
        typer.Option(metavar="PERCENT", help="Gate: the step is not shown to be longer than the baseline by more."),
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Compare although this differs; repeatable.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg|png", help="Draw the runs under the message roofline, and layers.")
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="NVTX ranges with such a name are steps [default: as record --step was]."),
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
    quiet: QuietReport = False,
) -> None:
    """Show where the time of a run's operations goes, layer by layer.

    Several RUNs are taken together; with --lever or --baseline each is one run of a comparison. The tables made on the
    way stay in RUN and are used again; so does the report, as attribution.json. With a gate, exit 4 when it fails;
    where the data are too poor to tell, it passes unless --strict.
    """
    import_numpy()
    from efaprof.analyzers.replay import parse_change
    from efaprof.ingest.profile import read_profile
    from efaprof.report.attribution_json import attribution_document
    from efaprof.report.attribution_sections import attribution_heading, attribution_sections

    gc.freeze()  # what is imported stays: it need not be looked through again, last of all when the process ends
    changes = [parse_change(text) for text in what_if or ()]
    targets = Targets(as_json, as_markdown, is_quiet=quiet)
    is_compared = bool(baseline) and (fail_regression is not None or strict)
    gating = Gating(expect or (), fail_above or (), CiFiles(junit, bench), is_compared=is_compared)
    if evidence is not None and not runs:
        _judge(evidence, targets)
        return
    asked = Asked(by, changes, read_profile(profile) if profile is not None else None, strict, step)
    chosen = [chosen_run(path) for path in runs] if runs else [chosen_run(None)]
    if lever and (gating.is_asked or baseline):
        raise UsageError("gates are on one run, not on a comparison", hint="leave out --lever, or see efaprof diff")
    if lever:
        found = by_lever(chosen, lever, asked)
    elif baseline:
        found = with_baseline(chosen, baseline, asked, fail_regression=fail_regression, allowed=allow or ())
    elif fail_regression is not None:
        raise UsageError("--fail-regression needs a --baseline", hint="efaprof attribute RUN --baseline RUN")
    else:
        found = alone(chosen, asked)
    if evidence is not None:
        found = with_evidence(found, evidence)
    report = found.reports[0]
    if plot is not None:
        from efaprof.report.attribution_plot import write_attribution_plot

        write_attribution_plot(found.reports, plot, asked.profile)
    document = attribution_document(report) | found.keys
    gates = gating.judge(document, found.gates)
    if len(chosen) == 1:
        _keep(chosen[0], document)
    *body, last = attribution_sections(report)
    heading, sections = attribution_heading(report), [*gating.with_gates([*body, *found.sections, last], gates)]
    targets.write(document, heading, sections)
    gating.finish(document, gates, heading, sections, is_strict=strict)


def _judge(evidence: Path, targets: Targets) -> None:
    """Report on each operation that a file of evidence is about."""
    from efaprof.ingest.evidence import read_evidence
    from efaprof.report.judgement_report import HEADING, judge_all, judgement_document, judgement_sections

    found = judge_all(read_evidence(evidence))
    targets.write(judgement_document(str(evidence), found), f"{HEADING} · {evidence}", judgement_sections(found))


def _keep(run: Run, document: dict[str, Any]) -> None:
    """Leave the report of a single run in its directory, where other commands find it."""
    try:
        (run.path / FILE_NAME).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"{FILE_NAME} is not kept in {run.path}: {error.strerror}\n")
