"""`efaprof calibrate`: the ceilings of a fabric, measured by our own loops of remote writes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from efaprof import env
from efaprof.cli.optional_value import command_with
from efaprof.cli.talk import Quiet, talk
from efaprof.cli.targets import Targets
from efaprof.errors import UsageError

MOST_THREADS = 32


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("calibrate", cls=command_with("--json", "--markdown"))(calibrate)


def calibrate(
    provider: Annotated[str, typer.Option(metavar="NAME", help="tcp, shm, efa or efa-direct.")],
    emulate: Annotated[
        str | None, typer.Option(metavar="KNOBS", help="Run on an emulated EFA device: see efaprof softefa --help.")
    ] = None,
    libfabric: Annotated[
        Path | None,
        typer.Option(metavar="PATH", envvar=env.LIBFABRIC, help="libfabric to use [default: one with the provider]."),
    ] = None,
    duration_ms: Annotated[int, typer.Option("--duration-ms", min=1, max=60_000, help="Time of each loop.")] = 100,
    threads: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="Numbers of issuing threads [default: 1,2,4, as cores allow].")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Profile [default: efaprof-profile-NAME.json]."),
    ] = None,
    as_json: Annotated[
        str | None, typer.Option("--json", metavar="[FILE]", help="JSON (efaprof.profile/1), to stdout or FILE.")
    ] = None,
    as_markdown: Annotated[
        str | None, typer.Option("--markdown", metavar="[FILE]", help="Markdown, to stdout or FILE.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Measure what this fabric takes: operations and bytes per second by size and number in flight, and latency.

    Two processes of this host write to each other's memory. The profile is for efaprof attribute --profile FILE.
    """
    targets = Targets(as_json, as_markdown)
    target = output or Path(f"efaprof-profile-{provider}.json")
    if emulate is not None:
        _emulate(emulate)
    from efaprof.analyzers.profile import profile_of
    from efaprof.ingest.profile import profile_document, write_profile
    from efaprof.report.profile_sections import profile_heading, profile_sections
    from efaprof.report.progress import counting_bar
    from efaprof.session.calibration import Plan, emulated, measure

    plan = Plan(
        provider=provider, libfabric=str(libfabric or ""), duration_ms=duration_ms, threads=_thread_counts(threads)
    )
    rows, fingerprint = [], {}
    with counting_bar("calibrating", len(plan.loops)) as advance:
        for one in measure(plan):
            rows.append(one.row)
            fingerprint = one.fingerprint
            advance()
    profile = profile_of(rows, fingerprint, emulated())
    write_profile(target, profile)
    targets.write(profile_document(profile), profile_heading(profile), profile_sections(profile))
    talk(f"efaprof: profile in {target}")


def _thread_counts(text: str | None) -> tuple[int, ...]:
    """Numbers of threads in ascending order, one among them: latency is a single thread's."""
    from efaprof.session.calibration import THREADS, cores

    if text is None:
        # The peer needs a core too; with two, a second thread shows at least whether it helps.
        return tuple(count for count in THREADS if count <= max(cores() - 1, 2))
    words = text.split(",")
    if not all(word.isdecimal() and 1 <= int(word) <= MOST_THREADS for word in words):
        raise UsageError(f"--threads {text} is no list of numbers up to {MOST_THREADS}", hint="--threads 1,2,4")
    return tuple(sorted({1, *map(int, words)}))


def _emulate(knobs: str) -> None:
    """Run this very command again below the process of an emulated device."""
    from efaprof.cli.softefa import report
    from efaprof.report.progress import is_hushed
    from efaprof.session.softefa import SoftEfa
    from efaprof.session.softefa_spec import parse_emulation

    emulation = parse_emulation(knobs)
    device = SoftEfa(emulation)
    again = [word for at, word in enumerate(sys.argv[1:], 1) if not _is_emulate(at)]
    status = device.run([sys.executable, "-m", "efaprof", *again], os.environ)
    for line in report(device.summary, emulation, quiet=is_hushed()):
        sys.stderr.write(f"efaprof: {line}\n")
    sys.exit(status)


def _is_emulate(at: int) -> bool:
    """Whether this word of the command line is --emulate or its value."""
    word = sys.argv[at]
    return word == "--emulate" or word.startswith("--emulate=") or sys.argv[at - 1] == "--emulate"
