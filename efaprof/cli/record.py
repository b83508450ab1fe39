"""`efaprof record`: run a command and record it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from efaprof import env
from efaprof.cli.optional_value import filled_before_command
from efaprof.errors import EfaprofError, RecordError
from efaprof.session.cuda import AUTO, parse_detail
from efaprof.session.hooking import Entry
from efaprof.session.options import DEFAULT_HZ, DEFAULT_MAX_SIZE, DEFAULT_NIC_INTERVAL_S, RecordOptions
from efaprof.session.probes import ProbeName, parse_probes
from efaprof.session.signals import SignalGate, signal_name
from efaprof.session.size import format_size, parse_size

if TYPE_CHECKING:
    from efaprof.session.record import Recording

_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]  # Typer does not export the class of all usage errors


class _RecordCommand(TyperCommand):
    """A wrong option ends with 125: every other code may be the recorded command's own. `--python` needs no value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        valued = frozenset(name for one in self.params if not getattr(one, "is_flag", False) for name in one.opts)
        parsed: list[str] = super().parse_args(ctx, filled_before_command(args, "--python", f"{DEFAULT_HZ:g}", valued))
        return parsed

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().make_context(*args, **kwargs)
        except _USAGE_ERROR as error:
            error.exit_code = RecordError.exit_code
            raise


def register(app: typer.Typer) -> None:
    """Add `record` to the command line."""
    # Options end at the first word of CMD: what follows belongs to it, whatever it looks like.
    app.command(cls=_RecordCommand, context_settings={"allow_interspersed_args": False})(record)


def record(
    command: Annotated[
        list[str], typer.Argument(metavar="[--] CMD [ARG]...", help="Command to run, and its arguments.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="RUN", help="Run directory [default: efaprof-CMD-TIME-PID]."),
    ] = None,
    force: Annotated[bool, typer.Option("-f", "--force", help="Replace RUN if it is a run directory.")] = False,
    buffer: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes of a thread's ring [default: 4MiB].")
    ] = None,
    max_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Bytes of records on disk; the newest are kept.")
    ] = f"{DEFAULT_MAX_SIZE >> 30}GiB",
    duration: Annotated[
        float | None, typer.Option(metavar="S", min=0.0, help="Stop recording after S seconds; CMD goes on.")
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="NVTX ranges with such a name are steps, beside efaprof.step()."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Stop recording after N steps; CMD goes on.")
    ] = None,
    warmup_steps: Annotated[
        int, typer.Option(metavar="N", min=0, help="Start recording after N steps.", show_default=False)
    ] = 0,
    nic_interval: Annotated[
        float, typer.Option(metavar="MS", min=0.1, help="Milliseconds between samples of the NIC counters.")
    ] = DEFAULT_NIC_INTERVAL_S * 1000,
    libfabric: Annotated[
        Path | None,
        typer.Option(metavar="PATH", envvar=env.LIBFABRIC, help="Make CMD use this libfabric (preloaded)."),
    ] = None,
    entry: Annotated[
        Entry, typer.Option(help="How to get in front of libfabric: preloaded, as its hook, or both where harmless.")
    ] = Entry.AUTO,
    probes: Annotated[
        str, typer.Option(metavar="LIST", help="Probes to use: auto, or some of libfabric,nic,nvtx,cuda,cpu,python.")
    ] = "auto",
    require: Annotated[
        list[str] | None,
        typer.Option(metavar="PROBE", help="Refuse to start (125) when PROBE cannot work; repeatable."),
    ] = None,
    cuda: Annotated[
        str,
        typer.Option(
            metavar="DETAIL",
            help="CUDA graphs as a whole (graph), their kernels too (node; node:N for N launches), off, or auto.",
        ),
    ] = AUTO,
    python: Annotated[
        float | None,
        typer.Option(
            "--python",
            metavar="[=HZ]",
            min=1,
            max=1000,
            help="Sample the Python stacks of CMD's processes by py-spy, HZ times a second [alone: 100].",
        ),
    ] = None,
    python_native: Annotated[
        bool,
        typer.Option("--python-native", help="Sample native frames too: stops CMD for each sample. Implies --python."),
    ] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Show rates, layers and drops so far, when stderr is a terminal.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Say only what went wrong.")] = False,
) -> None:
    """Run CMD unmodified and record it into a run directory.

    The exit code is CMD's own, 128+N when signal N killed it; 125, 126 and 127 are efaprof's: it failed, CMD cannot be
    executed, CMD does not exist. Recording needs to start with the program; a running one cannot be attached to.
    """
    try:
        options = RecordOptions(
            argv=tuple(command),
            output=output,
            force=force,
            buffer_bytes=parse_size(buffer) if buffer is not None else None,
            max_size_bytes=parse_size(max_size),
            duration_s=duration,
            step=step,
            steps=steps,
            warmup_steps=warmup_steps,
            nic_interval_s=nic_interval / 1000,
            libfabric=libfabric.absolute() if libfabric else None,
            entry=entry,
            probes=parse_probes(probes) | ({ProbeName.PYTHON} if python is not None or python_native else set()),
            require=parse_probes(",".join(require or [])),
            cuda=parse_detail(cuda),
            python_hz=python or DEFAULT_HZ,
            python_native=python_native,
            live=live and sys.stderr is not None and sys.stderr.isatty(),
        )
        gate = SignalGate()
        # Only now: it brings libraries that start threads, and these must not be given the signals that we hold.
        from efaprof.session.record import record as record_command

        recording = record_command(options, gate)
    except RecordError:
        raise
    except EfaprofError as error:
        raise RecordError(error.message, hint=error.hint) from error
    for line in report(recording, quiet=quiet):
        _say(line)
    recording.ending.leave()


def report(recording: Recording, *, quiet: bool) -> list[str]:
    """What is said at the end: what went wrong, what was captured, what to type next."""
    lines = [f"warning: {warning}" for warning in recording.warnings]
    if (number := recording.ending.signal) is not None:
        lines.append(f"{Path(recording.program).name} was killed by {signal_name(number)}")
    if quiet:
        return lines
    lines += [f"saved what a killed recorder had left: {run}" for run in recording.salvaged]
    lines += recording.notes
    run = _shown(recording.run)
    if not recording.captured.processes:
        if recording.notes:
            return [*lines, f"no operations recorded · {run}", f"next: efaprof open {shlex.quote(run)}"]
        return [*lines, f"nothing recorded · {run}", "next: efaprof doctor"]
    captured = recording.captured
    lines.append(
        f"{format_size(captured.size)} of records from {_counted(captured.threads, 'thread')} of"
        f" {_counted(captured.processes, 'process', 'processes')}, {captured.dropped:,} dropped · {run}"
    )
    lines.append(f"next: efaprof {_next_command()} {shlex.quote(run)}")
    return lines


def _counted(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _shown(run: Path) -> str:
    """The run's path as it is shortest to type from here."""
    try:
        return str(run.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(run)


def _next_command() -> str:
    from efaprof.cli.app import COMMANDS

    return next((name for name in ("attribute", "info", "dump") if name in COMMANDS), "--help")


def _say(line: str) -> None:
    """Write a line on stderr, which the user may have closed: the exit code matters more."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(f"efaprof: {line}\n")
        sys.stderr.flush()
    except OSError:
        return
