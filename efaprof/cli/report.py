"""`efaprof report`: a run as one HTML file to keep, attach or send."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from efaprof.cli.optional_value import write_text
from efaprof.cli.run_argument import RUN_HELP, chosen_run

FILE_NAME = "report.html"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


def report(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help=RUN_HELP)] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="HTML file [default: RUN/report.html].")
    ] = None,
) -> None:
    """Write a run's attribution report as one HTML file: tables, steps by layer, the longest step as a timeline.

    The file holds everything it shows: no script, and nothing is fetched when it is opened.
    """
    from efaprof.report.html_report import html_report

    chosen = chosen_run(run)
    target = output or chosen.path / FILE_NAME
    write_text(html_report(chosen), str(target))
    sys.stdout.write(f"{target}\n")
