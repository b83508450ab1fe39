"""`efaprof report`: a run as one HTML file to keep, attach or send."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from efaprof.cli.optional_value import write_text
from efaprof.cli.run_argument import RUN_HELP, chosen_run
from efaprof.cli.talk import Quiet

FILE_NAME = "report.html"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


def report(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help=RUN_HELP)] = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Ceilings of the fabric, from efaprof calibrate.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="HTML file [default: RUN/report.html].")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write a run's attribution report as one HTML file: tables, steps by layer, the longest step, the roofline.

    The file holds everything it shows: no script, and nothing is fetched when it is opened.
    """
    from efaprof.ingest.profile import read_profile
    from efaprof.report.html_report import html_report
    from efaprof.report.progress import working

    chosen = chosen_run(run)
    target = output or chosen.path / FILE_NAME
    with working(f"reading {chosen.path.name}"):
        page = html_report(chosen, read_profile(profile) if profile is not None else None)
    write_text(page, str(target))
    sys.stdout.write(f"{target}\n")
