"""`efaprof info`: what a run directory holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from efaprof.cli.run_argument import RUN_HELP, chosen_run
from efaprof.cli.talk import Quiet


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("info")(info)


def info(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help=RUN_HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (schema efaprof.info/1).")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 3 when anything recorded is missing.")] = False,
    quiet: Quiet = False,
) -> None:
    """Say what RUN holds: probes, rings, records, what was lost, the clock's error."""
    from efaprof.report import info_json, info_sections, sections
    from efaprof.report.info_report import info_on
    from efaprof.report.progress import working
    from efaprof.trace.reader import open_tables

    chosen = chosen_run(run)
    with working(f"reading {chosen.path.name}"):
        report = info_on(chosen, open_tables(chosen, is_strict=strict) if chosen.raw_files else None)
    if as_json:
        typer.echo(json.dumps(info_json.info_document(report), indent=1, ensure_ascii=False))
        return
    heading = info_sections.info_heading(report)
    typer.echo(sections.as_terminal(heading, info_sections.info_sections(report)), nl=False)
