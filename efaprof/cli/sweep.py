"""`efaprof sweep dispatch`: the dispatch path over a grid, and what its runs say together."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from efaprof.cli.optional_value import command_with
from efaprof.cli.talk import Quiet, talk
from efaprof.cli.targets import Targets
from efaprof.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the command."""
    commands = typer.Typer(help="Run and record a grid, and compare its runs.", no_args_is_help=True)
    commands.command("dispatch", cls=command_with("--json", "--markdown"))(dispatch)
    app.add_typer(commands, name="sweep")


def dispatch(
    vary: Annotated[
        list[str], typer.Option("--vary", metavar="NAME=V,V,…", help="Values of an option; repeatable: their product.")
    ],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- OPTION…]", help="Options of efaprof bench dispatch that all runs have."),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each combination, in turns, each with its own seed.")] = 1,
    profile: Annotated[Path | None, typer.Option(metavar="FILE", help="Ceilings, from efaprof calibrate.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FOLDER", help="Place of the runs [default: efaprof-sweep-…]."),
    ] = None,
    as_json: Annotated[
        str | None, typer.Option("--json", metavar="[FILE]", help="JSON (efaprof.attribution/1), to stdout or FILE.")
    ] = None,
    as_markdown: Annotated[
        str | None, typer.Option("--markdown", metavar="[FILE]", help="Markdown, to stdout or FILE.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Record the dispatch path for every combination of the varied options, keep each run, and compare them.

    They are compared as efaprof attribute RUN… --lever does: elasticities, LogGP, the first run's verdict with them.
    """
    from efaprof.ingest.profile import read_profile
    from efaprof.report.attribution_report import report_on
    from efaprof.report.lever_report import lever_report
    from efaprof.report.progress import counting_bar
    from efaprof.report.sweep_report import sweep_document, sweep_heading, sweep_sections
    from efaprof.session.sweep import grid, parse_vary, run_cells
    from efaprof.trace.reader import open_tables
    from efaprof.trace.rundir import open_run

    targets = Targets(as_json, as_markdown)
    levers = parse_vary(vary)
    ceilings = read_profile(profile) if profile is not None else None
    folder = output or Path(f"efaprof-sweep-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    if folder.exists():
        raise UsageError(f"{folder} is there already", hint="give another -o FOLDER")
    folder.mkdir(parents=True)
    cells = grid(levers, repeat=repeat, folder=folder)
    reports = []
    with counting_bar("recording", len(cells)) as advance:
        for cell in run_cells(cells, options or []):
            run = open_run(cell.path)
            reports.append(report_on([(run, open_tables(run))], profile=ceilings))
            advance()
    compared = lever_report(reports, list(levers))
    targets.write(sweep_document(reports, compared), sweep_heading(folder, reports), sweep_sections(reports, compared))
    talk(f"efaprof: runs in {folder}")
