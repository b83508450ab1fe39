"""`efaprof bench limits`: what posters that were written for other fabrics do, and EFA does not, shown failing."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from efaprof.cli.talk import Quiet
from efaprof.instrument.dispatch import POSTED_PROVIDER, QueueSource, binary
from efaprof.report.progress import is_hushed


def limits(
    queues: Annotated[QueueSource, typer.Option(help="Where the queue pairs come from.")] = QueueSource.AUTO,
    emulate: Annotated[
        str | None, typer.Option(metavar="KNOBS", help="Run on an emulated EFA device: see efaprof softefa --help.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Post what a kernel cannot have on EFA, and see each fail by name; exit 1 when one did not.

    An atomic fetch-add as signal, a receiver that expects order (needs a wire that reorders), a write of two local
    pieces.
    """
    words = ["--queues", queues.value, *(["--json"] if as_json else [])]
    again = [*words, *(["--quiet"] if quiet else [])]
    if emulate is not None:
        _emulate(again, emulate)
    from efaprof.cli.bench import offering_of, run_bare

    run_bare((str(binary()), "limits", *words), offering_of(POSTED_PROVIDER))


def _emulate(words: list[str], knobs: str) -> NoReturn:
    """Run this command again below the process of an emulated device."""
    from efaprof.cli.softefa import report
    from efaprof.session.softefa import SoftEfa
    from efaprof.session.softefa_spec import parse_emulation

    emulation = parse_emulation(knobs)
    device = SoftEfa(emulation, devices=1)
    status = device.run([sys.executable, "-m", "efaprof", "bench", "limits", *words], os.environ)
    for line in report(device.summary, emulation, quiet=is_hushed()):
        typer.echo(f"efaprof: {line}", err=True)
    sys.exit(status)
