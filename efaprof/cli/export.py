"""`efaprof export`: a run as a timeline or as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from efaprof.cli.run_argument import RUN_HELP, chosen_run
from efaprof.cli.talk import Quiet, talk
from efaprof.export.formats import Format


def register(app: typer.Typer) -> None:
    """Add `export` to the command line."""
    app.command()(export)


def export(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help=RUN_HELP)] = None,
    form: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.PERFETTO,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="File, or folder for tables [default: in RUN]."),
    ] = None,
    force: Annotated[bool, typer.Option("-f", "--force", help="Write anew what is there.")] = False,
    window: Annotated[
        str | None, typer.Option(metavar="A:B", help="Only what touches seconds A to B from the start.")
    ] = None,
    max_events: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Only the first N slices of a timeline.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write RUN as a Perfetto trace, Chrome JSON, parquet or CSV, and print the path.

    Without -o a trace above 50 MB is compressed (.gz); viewers read it as it is. View one with: efaprof open.
    """
    from efaprof.export.request import Request, export_run
    from efaprof.report.progress import working

    request = Request(chosen_run(run), form, output, force, window, max_events)
    with working(f"writing {request.run.path.name}"):
        outcome = export_run(request)
    for remark in outcome.remarks:
        talk(remark)
    for path in outcome.paths:
        typer.echo(path)
