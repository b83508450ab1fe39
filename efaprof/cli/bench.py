"""`efaprof bench`: the instrumented dispatch path, and the ring alone, on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from efaprof import env
from efaprof.cli.bench_ring import ring
from efaprof.cli.limits import limits
from efaprof.cli.quantities import parse_seconds
from efaprof.cli.talk import Quiet
from efaprof.errors import EfaprofError, RecordError, UsageError
from efaprof.instrument.device import Tuning, dtype_for
from efaprof.instrument.dispatch import (
    DENSE_PROVIDERS,
    DEVICE_PROVIDERS,
    MOST_PROXIES,
    POSTED_PROVIDER,
    Completion,
    DispatchOptions,
    Injection,
    Lateness,
    Posting,
    QueueSource,
    SignalMode,
)
from efaprof.report.progress import is_hushed
from efaprof.session.options import RecordOptions
from efaprof.session.signals import SignalGate
from efaprof.trace.layers import DispatchPath, Layer
from efaprof.trace.rundir import new_name

_DEFAULTS = DispatchOptions()
_POSTING, _TUNING = _DEFAULTS.posting, _DEFAULTS.tuning
_REFUSED = 2  # exit code of efaprof-dispatch that the options do not fit: nothing ran


def register(app: typer.Typer) -> None:
    """Add `bench` and its commands to the command line."""
    bench = typer.Typer(
        help="Run the instrumented dispatch path, its ring alone, or what EFA refuses, on this machine.",
        no_args_is_help=True,
    )
    bench.command("dispatch")(dispatch)
    bench.command("ring")(ring)
    bench.command("limits")(limits)
    app.add_typer(bench, name="bench")


def dispatch(
    provider: Annotated[
        str | None, typer.Option(help="Provider: tcp, shm, efa, efa-direct, …; dense: gloo, nccl.")
    ] = None,
    path: Annotated[DispatchPath, typer.Option(help="How operations reach the NIC.")] = _DEFAULTS.path,
    device: Annotated[
        str, typer.Option(metavar="cpu|cuda", help="Where kernels run: a CPU thread (emulated) or a GPU.")
    ] = _DEFAULTS.device,
    ranks: Annotated[int, typer.Option(min=2, help="Ranks, each a process of this host.")] = _DEFAULTS.ranks,
    layers: Annotated[int, typer.Option(min=1, help="Layers with experts.")] = _DEFAULTS.layers,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens per rank and step.")] = _DEFAULTS.tokens,
    hidden: Annotated[int, typer.Option(min=1, help="Elements of a token.")] = _DEFAULTS.hidden,
    topk: Annotated[int, typer.Option(min=1, help="Experts of a token.")] = _DEFAULTS.topk,
    experts: Annotated[int, typer.Option(min=1, help="Experts over all ranks.")] = _DEFAULTS.experts,
    channels: Annotated[int, typer.Option(min=1, help="Channels, each closed by a signal.")] = _DEFAULTS.channels,
    compute_us: Annotated[int, typer.Option(min=0, help="Time for the rest of a layer.")] = _DEFAULTS.compute_us,
    signal: Annotated[SignalMode, typer.Option(help="What orders a signal behind its data.")] = _DEFAULTS.signal,
    dtype: Annotated[str | None, typer.Option(help="cpu: f32. cuda: bf16, fp8 (a scale per 128).")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Decode steps that count.")] = _DEFAULTS.steps,
    warmup: Annotated[int, typer.Option(min=0, help="Steps before them.")] = _DEFAULTS.warmup,
    seed: Annotated[int, typer.Option(min=0, help="Of routing and values.")] = _DEFAULTS.seed,
    proxies: Annotated[
        int, typer.Option(min=1, max=MOST_PROXIES, help="Of a rank, each with a ring; a channel keeps to one.")
    ] = _DEFAULTS.proxies,
    threads: Annotated[
        str, typer.Option(metavar="auto|2|3", help="Of a rank with one proxy; auto: by cores.")
    ] = "auto",
    ring_size: Annotated[int, typer.Option("--ring", min=2, help="Commands in a ring.")] = _DEFAULTS.ring,
    window: Annotated[int, typer.Option(min=1, help="Operations in flight.")] = _DEFAULTS.window,
    queues: Annotated[QueueSource, typer.Option(help="gdaki: where its queues come from.")] = _POSTING.queues,
    completion: Annotated[Completion, typer.Option(help="gdaki: how ends are learnt.")] = _POSTING.completion,
    batch: Annotated[int, typer.Option(min=1, max=64, help="gdaki: entries a doorbell announces.")] = _POSTING.batch,
    send_queue: Annotated[int | None, typer.Option(min=1, help="gdaki: entries of the send queue.")] = None,
    drain: Annotated[int, typer.Option(min=1, help="Commands posted before completions' turn.")] = _TUNING.drain,
    shared_doorbells: Annotated[bool, typer.Option("--more", help="Posts share doorbells (FI_MORE).")] = False,
    pin: Annotated[bool, typer.Option("--pin", help="cuda: threads stay on the GPU's NUMA node.")] = False,
    no_stamps: Annotated[bool, typer.Option("--no-stamps", help="cuda: no stamps in the kernels.")] = False,
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
    quiet: Quiet = False,
) -> None:
    """Decode steps of a Mixture-of-Experts model over libfabric, verified and recorded into a run directory.

    Each rank is a process; its kernel is emulated by a CPU thread, or runs on a GPU (--device cuda); its ring, proxy
    and remote writes are real. With --path gdaki that thread posts work queue entries to the device itself:
    docs/gdaki.md. --path dense is the control arm: all-gather and reduce-scatter of torch.distributed.
    """
    options = DispatchOptions(
        path=path, device=device, dtype=dtype_for(device, dtype), provider=provider or _provider(path),
        ranks=ranks, layers=layers, tokens=tokens, hidden=hidden, topk=topk, experts=experts, channels=channels,
        compute_us=compute_us, signal=signal, steps=steps, warmup=warmup, seed=seed, proxies=proxies,
        threads=_threads(threads), ring=ring_size, window=window,
        inject=tuple(_injection(text) for text in inject or ()),
        late=tuple(_lateness(text) for text in late or ()),
        tuning=Tuning(drain=drain, more=shared_doorbells, pin=pin, stamps=not no_stamps),
        posting=Posting(queues=queues, completion=completion, batch=batch, send_queue=send_queue),
    )  # fmt: skip
    target = output or Path(new_name("dispatch"))
    if emulate is not None:
        flags = {"--force": force, "--no-record": no_record, "--json": as_json, "--quiet": quiet}
        more = ["-o", str(target), *(["--libfabric", str(libfabric)] if libfabric else [])]
        _emulate(options, emulate, [*more, *(flag for flag, is_set in flags.items() if is_set)])
    argv = (*options.command(), *(["--json"] if as_json else []))
    chosen = libfabric.absolute() if libfabric else offering_of(options.provider)
    if no_record:
        run_bare(argv, chosen)
    _record(options, argv, chosen, output=target, force=force)


def _provider(path: DispatchPath) -> str:
    own = {DispatchPath.GDAKI: POSTED_PROVIDER, DispatchPath.DENSE: DENSE_PROVIDERS[0]}
    return own.get(path, _DEFAULTS.provider)


def offering_of(provider: str) -> Path | None:
    """A libfabric with the provider; every one has those that need no device, and asking takes half a second."""
    if provider not in DEVICE_PROVIDERS:
        return None
    from efaprof.libfabric.find import offering

    found = offering(provider)
    return Path(found.path) if found else None


def run_bare(argv: tuple[str, ...], libfabric: Path | None) -> NoReturn:
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
    from efaprof.session.softefa import DEFAULT_DEVICES, SoftEfa
    from efaprof.session.softefa_spec import parse_emulation

    emulation = parse_emulation(knobs)
    device = SoftEfa(emulation, devices=max(options.ranks, DEFAULT_DEVICES))
    status = device.run([sys.executable, "-m", "efaprof", "bench", "dispatch", *options.arguments(), *more], os.environ)
    for line in report(device.summary, emulation, quiet=is_hushed()):
        typer.echo(f"efaprof: {line}", err=True)
    sys.exit(status)


def _record(
    options: DispatchOptions, argv: tuple[str, ...], libfabric: Path | None, *, output: Path, force: bool
) -> NoReturn:
    from efaprof.cli.record import report

    recorded = RecordOptions(
        argv=argv, output=output, force=force, libfabric=libfabric,
        refusal_code=_REFUSED, emulated=options.emulated(), fingerprint=options.fingerprint(),
        live=sys.stderr.isatty() and not is_hushed(),
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
    for line in report(recording, quiet=is_hushed()) if recording.is_kept else ():
        typer.echo(f"efaprof: {line}", err=True)
    recording.ending.leave()
