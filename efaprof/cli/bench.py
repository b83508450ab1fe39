"""`efaprof bench`: the instrumented dispatch path, and the ring alone, on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from efaprof import env
from efaprof.cli.quantities import parse_seconds
from efaprof.errors import EfaprofError, RecordError, UsageError
from efaprof.instrument.dispatch import (
    DEVICE_PROVIDERS,
    POSTED_PROVIDER,
    Completion,
    DispatchOptions,
    Injection,
    Lateness,
    Posting,
    QueueSource,
    SignalMode,
    binary,
)
from efaprof.session.options import RecordOptions
from efaprof.session.signals import SignalGate
from efaprof.trace.layers import DispatchPath, Layer
from efaprof.trace.rundir import new_name

_DEFAULTS = DispatchOptions()
_POSTING = _DEFAULTS.posting


def register(app: typer.Typer) -> None:
    """Add `bench` and its commands to the command line."""
    bench = typer.Typer(
        help="Run the instrumented dispatch path, or its ring alone, on this machine.", no_args_is_help=True
    )
    bench.command("dispatch")(dispatch)
    bench.command("ring")(ring)
    app.add_typer(bench, name="bench")


def dispatch(
    provider: Annotated[
        str | None, typer.Option(help="Provider: tcp, shm, efa, efa-direct, …  [default: tcp; gdaki: efa-direct]")
    ] = None,
    path: Annotated[DispatchPath, typer.Option(help="How operations reach the NIC.")] = _DEFAULTS.path,
    device: Annotated[str, typer.Option(help="Where the kernel runs: cpu (emulated by a thread).")] = _DEFAULTS.device,
    ranks: Annotated[int, typer.Option(min=2, help="Ranks, each a process of this host.")] = _DEFAULTS.ranks,
    layers: Annotated[int, typer.Option(min=1, help="Layers with experts.")] = _DEFAULTS.layers,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens per rank and step.")] = _DEFAULTS.tokens,
    hidden: Annotated[int, typer.Option(min=1, help="Elements of a token.")] = _DEFAULTS.hidden,
    topk: Annotated[int, typer.Option(min=1, help="Experts of a token.")] = _DEFAULTS.topk,
    experts: Annotated[int, typer.Option(min=1, help="Experts over all ranks.")] = _DEFAULTS.experts,
    channels: Annotated[int, typer.Option(min=1, help="Channels, each closed by a signal.")] = _DEFAULTS.channels,
    compute_us: Annotated[int, typer.Option(min=0, help="Time for the rest of a layer.")] = _DEFAULTS.compute_us,
    signal: Annotated[SignalMode, typer.Option(help="What orders a signal behind its data.")] = _DEFAULTS.signal,
    dtype: Annotated[str, typer.Option(help="Type of a token's elements.")] = _DEFAULTS.dtype,
    steps: Annotated[int, typer.Option(min=1, help="Decode steps that count.")] = _DEFAULTS.steps,
    warmup: Annotated[int, typer.Option(min=0, help="Steps before them.")] = _DEFAULTS.warmup,
    seed: Annotated[int, typer.Option(min=0, help="Of routing and values.")] = _DEFAULTS.seed,
    threads: Annotated[str, typer.Option(metavar="auto|2|3", help="Of a rank; auto: by cores.")] = "auto",
    ring_size: Annotated[int, typer.Option("--ring", min=2, help="Commands in a ring.")] = _DEFAULTS.ring,
    window: Annotated[int, typer.Option(min=1, help="Operations in flight.")] = _DEFAULTS.window,
    queues: Annotated[QueueSource, typer.Option(help="gdaki: where its queues come from.")] = _POSTING.queues,
    completion: Annotated[Completion, typer.Option(help="gdaki: how ends are learnt.")] = _POSTING.completion,
    batch: Annotated[int, typer.Option(min=1, max=64, help="gdaki: entries a doorbell announces.")] = _POSTING.batch,
    send_queue: Annotated[int | None, typer.Option(min=1, help="gdaki: entries of the send queue.")] = None,
    inject: Annotated[
        list[str] | None, typer.Option(metavar="LAYER=TIME", help="Slow every operation down there; repeatable.")
    ] = None,
    late: Annotated[
        list[str] | None, typer.Option(metavar="RANK=TIME", help="Let a rank compute longer per layer; repeatable.")
    ] = None,
    emulate: Annotated[
        str | None, typer.Option(metavar="KNOBS", help="Run on an emulated EFA device: see efaprof softefa --help.")
    ] = None,
    libfabric: Annotated[
        Path | None,
        typer.Option(metavar="PATH", envvar=env.LIBFABRIC, help="libfabric to use [default: one with the provider]."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="RUN", help="Run directory [default: efaprof-dispatch-…].")
    ] = None,
    force: Annotated[bool, typer.Option("-f", "--force", help="Replace RUN if it is a run directory.")] = False,
    no_record: Annotated[bool, typer.Option("--no-record", help="Run, but record nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the run's summary as JSON.")] = False,
) -> None:
    """Decode steps of a Mixture-of-Experts model over libfabric, verified and recorded into a run directory.

    Each rank is a process; its kernel is emulated by a CPU thread, its ring, proxy and remote writes are real. With
    --path gdaki that thread posts work queue entries to the device itself: docs/gdaki.md.
    """
    options = DispatchOptions(
        path=path, device=device, dtype=dtype, provider=provider or _provider(path), ranks=ranks, layers=layers,
        tokens=tokens, hidden=hidden, topk=topk, experts=experts, channels=channels, compute_us=compute_us,
        signal=signal, steps=steps, warmup=warmup, seed=seed, threads=_threads(threads), ring=ring_size, window=window,
        inject=tuple(_injection(text) for text in inject or ()), late=tuple(_lateness(text) for text in late or ()),
        posting=Posting(queues=queues, completion=completion, batch=batch, send_queue=send_queue),
    )  # fmt: skip
    target = output or Path(new_name("dispatch"))
    if emulate is not None:
        flags = {"--force": force, "--no-record": no_record, "--json": as_json}
        more = ["-o", str(target), *(["--libfabric", str(libfabric)] if libfabric else [])]
        _emulate(options, emulate, [*more, *(flag for flag, is_set in flags.items() if is_set)])
    argv = (str(binary()), *options.arguments(), *(["--json"] if as_json else []))
    chosen = libfabric.absolute() if libfabric else _offering(options.provider)
    if no_record:
        _run_bare(argv, chosen)
    _record(options, argv, chosen, output=target, force=force)


def _provider(path: DispatchPath) -> str:
    return POSTED_PROVIDER if path is DispatchPath.GDAKI else _DEFAULTS.provider


def _offering(provider: str) -> Path | None:
    """A libfabric with the provider; every one has those that need no device, and asking takes half a second."""
    if provider not in DEVICE_PROVIDERS:
        return None
    from efaprof.libfabric.find import offering

    found = offering(provider)
    return Path(found.path) if found else None


def _run_bare(argv: tuple[str, ...], libfabric: Path | None) -> NoReturn:
    """Become the program."""
    from efaprof.session.environment import PRELOAD, choosing, inherited, merge_preload

    environment = inherited()
    if libfabric is not None:
        environment |= choosing(libfabric, environment)
        environment[PRELOAD] = merge_preload((str(libfabric),), environment.get(PRELOAD, ""))
    sys.stdout.flush()
    os.execve(argv[0], argv, environment)


def _threads(text: str) -> int | None:
    if text not in {"auto", "2", "3"}:
        raise UsageError(f"--threads {text} is no number of threads", hint="give 2, 3 or auto")
    return None if text == "auto" else int(text)


def _injection(text: str) -> Injection:
    """`proxy=200us` as an injection."""
    name, _, time = text.partition("=")
    try:
        layer = Layer(name)
    except ValueError:
        raise UsageError(f"{text!r} names no layer", hint="write it like --inject proxy=200us") from None
    return Injection(layer, round(parse_seconds(time) * 1e9))


def _lateness(text: str) -> Lateness:
    """`1=200us` as what one rank computes longer."""
    rank, _, time = text.partition("=")
    if not rank.isdecimal():
        raise UsageError(f"{text!r} names no rank", hint="write it like --late 1=200us")
    return Lateness(int(rank), round(parse_seconds(time) * 1e9))


def _emulate(options: DispatchOptions, knobs: str, more: list[str]) -> NoReturn:
    """Run this command again below the process of an emulated device."""
    if options.provider not in DEVICE_PROVIDERS:
        raise UsageError(
            f"--emulate is a device for {' and '.join(DEVICE_PROVIDERS)}, not for provider {options.provider}",
            hint=f"add --provider {DEVICE_PROVIDERS[0]}",
        )
    from efaprof.cli.softefa import report
    from efaprof.session.softefa import SoftEfa
    from efaprof.session.softefa_spec import parse_emulation

    emulation = parse_emulation(knobs)
    device = SoftEfa(emulation)
    status = device.run([sys.executable, "-m", "efaprof", "bench", "dispatch", *options.arguments(), *more], os.environ)
    for line in report(device.summary, emulation, quiet=False):
        typer.echo(f"efaprof: {line}", err=True)
    sys.exit(status)


def _record(
    options: DispatchOptions, argv: tuple[str, ...], libfabric: Path | None, *, output: Path, force: bool
) -> NoReturn:
    from efaprof.cli.record import report

    recorded = RecordOptions(
        argv=argv, output=output, force=force, libfabric=libfabric,
        emulated=options.emulated(), fingerprint=options.fingerprint(),
    )  # fmt: skip
    try:
        gate = SignalGate()
        # Only now: it brings libraries that start threads, and these must not be given the signals that we hold.
        from efaprof.session.record import record

        recording = record(recorded, gate)
    except RecordError:
        raise
    except EfaprofError as error:
        raise RecordError(error.message, hint=error.hint) from error
    for line in report(recording, quiet=False):
        typer.echo(f"efaprof: {line}", err=True)
    recording.ending.leave()


def ring(
    commands: Annotated[int, typer.Option(min=100, help="Commands to push.")] = 2_000_000,
    trips: Annotated[int, typer.Option(min=100, help="Round trips to time.")] = 100_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Commands per second and round trip of the ring between two threads, every command verified."""
    argv = [str(binary()), "ring", "--commands", str(commands), "--trips", str(trips), "--json"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise EfaprofError("the ring benchmark failed", hint="its own line above says why")
    if as_json:
        typer.echo(done.stdout, nl=False)
        return
    for line in _ring_table(json.loads(done.stdout)):
        typer.echo(line)


def _ring_table(result: dict[str, Any]) -> list[str]:
    """What the ring did beside what a bare cache line does between the same two threads."""
    from efaprof.session import host

    machine = host.describe()
    trip, bare = result["round_trip_ns"], result["cache_line_ns"]
    per_command_ns = 1e9 / result["commands_per_s"]
    lines = [
        f"{machine.cpu_model}, {machine.cpus} cores",
        f"{'':34}{'ns':>10}  × bare cache line (p50 of a trip)",
        f"{'one command, pushed and taken':34}{per_command_ns:10.1f}  {per_command_ns / bare['p50']:.3f}",
    ]
    for name, value in (("p50", trip["p50"]), ("p99", trip["p99"]), ("mean", trip["mean"])):
        lines.append(f"{'round trip through the ring, ' + name:34}{value:10.1f}  {value / bare['p50']:.2f}")
    for name, value in (("p50", bare["p50"]), ("p99", bare["p99"]), ("mean", bare["mean"])):
        lines.append(f"{'bare cache line and back, ' + name:34}{value:10.1f}  {value / bare['p50']:.2f}")
    lines.append(f"{result['commands_per_s'] / 1e6:.2f} M commands/s, {result['commands']:,} pushed and verified")
    return lines
