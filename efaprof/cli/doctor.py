"""`efaprof doctor`: what works on this machine."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from efaprof.cli.quantities import parse_count
from efaprof.cli.talk import Quiet

if TYPE_CHECKING:
    from efaprof.session.checks import Check, State

_COLOURS = {"ok": "32", "degraded": "33", "no": "31"}


def register(app: typer.Typer) -> None:
    """Add `doctor` to the command line."""
    app.command()(doctor)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (schema efaprof.doctor/1).")] = False,
    rate: Annotated[
        str, typer.Option(metavar="OPS", help="Operations a second of one thread, to judge the rings by.")
    ] = "200k",
    quiet: Quiet = False,
) -> None:
    """Say what works on this machine; each "no" comes with the line to type."""
    from efaprof.report.progress import working
    from efaprof.session.doctor import SCHEMA, examine

    with working("examining this machine"):
        checks = examine(rate_ops_s=parse_count(rate))
    if as_json:
        document = {"schema": SCHEMA, "checks": [asdict(check) for check in checks]}
        typer.echo(json.dumps(document, indent=1, ensure_ascii=False))
        return
    typer.echo(render(checks, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ), color=True)


def render(checks: list[Check], *, colour: bool) -> str:
    """A line a check, its hint below."""
    width = max(len(check.check) for check in checks)
    lines: list[str] = []
    for check in checks:
        state = f"{check.state:<8}"
        lines.append(f"{check.check:<{width}}  {_painted(state, check.state) if colour else state}  {check.detail}")
        if check.hint:
            lines.append(f"{'':<{width}}  {'':<8}  → {check.hint}")
    return "\n".join(lines)


def _painted(text: str, state: State) -> str:
    return f"\x1b[{_COLOURS[state]}m{text}\x1b[0m"
