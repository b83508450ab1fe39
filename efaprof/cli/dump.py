"""`efaprof dump`: raw records as text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from efaprof.cli.run_argument import chosen_run
from efaprof.cli.talk import Quiet


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("dump")(dump)


def dump(
    source: Annotated[
        Path | None,
        typer.Argument(metavar="RUN|FILE", help="Run directory or raw file [default: the newest run here]."),
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only the first N records of a file.")] = None,
    kind: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="Only records of this kind (op, cq, …). Repeat for more.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Print the records of RUN's raw files, or of one FILE, one a line; times are ticks of the file's clock."""
    from efaprof.errors import NothingToAnalyse
    from efaprof.report.dump_text import dump_lines, limited, shapes_named
    from efaprof.trace.rawfile import open_raw

    shapes = shapes_named(kind or ())
    files = [source] if source is not None and source.is_file() else chosen_run(source).raw_files
    if not files:
        raise NothingToAnalyse("the run holds no raw trace files: nothing was recorded", hint="efaprof info RUN")
    for file in files:
        for line in limited(dump_lines(open_raw(file), shapes), limit):
            sys.stdout.write(f"{line}\n")
