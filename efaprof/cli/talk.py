"""What is said beside the data, on stderr: bars and remarks, neither of them once --quiet was given."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from efaprof.report.progress import hush, is_hushed


def _hush(is_given: bool) -> bool:
    if is_given:
        hush()
    return is_given


# The option of every command; those that print a report leave that out too.
Quiet = Annotated[
    bool,
    typer.Option("-q", "--quiet", callback=_hush, is_eager=True, help="No bars, no remarks: data and errors only."),
]
QuietReport = Annotated[
    bool,
    typer.Option("-q", "--quiet", callback=_hush, is_eager=True, help="Say only what failed, and what was asked for."),
]


def talk(line: str) -> None:
    """A remark; not an error, which is said in any case."""
    if not is_hushed():
        sys.stderr.write(f"{line}\n")
