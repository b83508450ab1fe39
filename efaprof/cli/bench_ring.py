"""`efaprof bench ring`: the ring by itself, between two threads or between a GPU's kernel and a thread."""

from __future__ import annotations

import json
import subprocess
from typing import Annotated, Any

import typer

from efaprof.cli.talk import Quiet
from efaprof.errors import EfaprofError, UsageError
from efaprof.instrument.device import DEVICES
from efaprof.instrument.dispatch import binary

# What others say of theirs: (system, figure, where it stands). None of it was measured here.
_TRIPS = (
    ("UCCL", "3.82 µs mean", "its gpu_to_cpu_bench.cu"),
    ("NCCL GIN", "16.7 µs, kernel-posted over InfiniBand, the wire included", "summaries of arXiv 2511.15076"),
    ("MSCCL++", "none found", ""),
)
_RATES = (
    ("UCCL", "0.74-1.9 M messages/s a GPU over EFA", "its efa_alltoall_results.md"),
    ("NCCL GIN", "none found", ""),
    ("MSCCL++", "none found", ""),
)


def ring(
    device: Annotated[str, typer.Option(metavar="|".join(DEVICES), help="Who pushes: a CPU thread, or a GPU.")] = "cpu",
    commands: Annotated[int, typer.Option(min=100, help="Commands to push.")] = 2_000_000,
    trips: Annotated[int, typer.Option(min=100, help="Round trips to time.")] = 100_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Commands per second and round trip of the ring between two threads, every command verified.

    With --device cuda a GPU's kernel pushes and a thread takes, as the dispatch path does.
    """
    if device not in DEVICES:
        raise UsageError(f"--device {device} is no device", hint=f"use one of {', '.join(DEVICES)}")
    argv = [str(binary()), "ring", "--device", device, "--commands", str(commands), "--trips", str(trips), "--json"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise EfaprofError("the ring benchmark failed", hint="its own line above says why")
    if as_json:
        typer.echo(done.stdout, nl=False)
        return
    result = json.loads(done.stdout)
    for line in gpu_table(result) if device == "cuda" else cpu_table(result):
        typer.echo(line)


def cpu_table(result: dict[str, Any]) -> list[str]:
    """What the ring did beside what a bare cache line does between the same two threads."""
    trip, bare = result["round_trip_ns"], result["cache_line_ns"]
    per_command_ns = 1e9 / result["commands_per_s"]
    lines = [
        _machine(),
        f"{'':34}{'ns':>10}  × bare cache line (p50 of a trip)",
        f"{'one command, pushed and taken':34}{per_command_ns:10.1f}  {per_command_ns / bare['p50']:.3f}",
    ]
    for name, value in (("p50", trip["p50"]), ("p99", trip["p99"]), ("mean", trip["mean"])):
        lines.append(f"{'round trip through the ring, ' + name:34}{value:10.1f}  {value / bare['p50']:.2f}")
    for name, value in (("p50", bare["p50"]), ("p99", bare["p99"]), ("mean", bare["mean"])):
        lines.append(f"{'bare cache line and back, ' + name:34}{value:10.1f}  {value / bare['p50']:.2f}")
    lines.append(f"{result['commands_per_s'] / 1e6:.2f} M commands/s, {result['commands']:,} pushed and verified")
    return lines


def gpu_table(result: dict[str, Any]) -> list[str]:
    """What the ring did from a GPU, by who pushes and how, beside what others say of theirs."""
    trip, bare, rate = result["round_trip_ns"], result["relaxed_round_trip_ns"], result["commands_per_s"]
    lines = [
        f"{result['gpu']}, driver {_version(result['driver'])} · {_machine()}",
        f"{'round trip':40}{'µs':>8}  × bare word",
        f"{'a bare word there and back, p50':40}{bare['p50'] / 1e3:8.2f}  1.00",
    ]
    for name in ("p50", "p99", "p999"):
        label = f"a command and its answer, {name}"
        lines.append(f"{label:40}{trip[name] / 1e3:8.2f}  {trip[name] / bare['p50']:.2f}")
    near = result["nearest_core"]
    label = f"… taken on core {near['core']}, the nearest, p50"
    lines.append(
        f"{label:40}{near['round_trip_ns']['p50'] / 1e3:8.2f}  {near['round_trip_ns']['p50'] / bare['p50']:.2f}"
    )
    lines.append(f"{'commands a second':40}{'M/s':>8}  × one thread")
    labels = {
        "thread": "one thread, a release each",
        "warp": "one warp, a command a lane",
        "warp_uncached_tail": "  its copy of the tail off",
        "warp_host_head": "  its head in host memory",
        "warp_batch": "one warp, four commands a lane",
        "drain": "four such warps: what one core drains",
        "drain_eager_tail": "  the tail written back every time",
    }
    for name, label in labels.items():
        lines.append(f"{label:40}{rate[name] / 1e6:8.2f}  {rate[name] / rate['thread']:.1f}")
    lines.append(
        f"{result['commands']:,} commands verified, {result['wrong']} wrong; clock step {result['timer_step_ns']} ns"
    )
    for title, figures in (("round trip", _TRIPS), ("rate", _RATES)):
        said = "; ".join(f"{who} {what}" + (f" [{where}]" if where else "") for who, what, where in figures)
        lines.append(f"published, not measured here: {title}: {said}")
    return lines


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _machine() -> str:
    from efaprof.session import host

    machine = host.describe()
    return f"{machine.cpu_model}, {machine.cpus} cores"
