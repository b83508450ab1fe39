"""What the dispatch path does with kernels on this machine's GPU: the ring, the cost of stamps, runs end to end.

One markdown table; ratios are of runs that took turns on this machine. `bench/gpu_check.sh` builds and calls this.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "gpu"))

from gpu_runs import POSTED, POSTED_STAMPS, STAMPS, Ended, command, library_folder, missing, run, stamped

TURNS = 3  # of stamps and switches: medians over them
SHAPES = [(tokens, hidden) for hidden in (2048, 7168) for tokens in (1, 4, 8, 128)]
INJECTIONS = ("kernel", "ring", "proxy", "libfabric", "nic", "rx")
MODEL = ("--topk", "8", "--experts", "64", "--compute-us", "50")
EFA, DEVICE = "efa-direct", "latency=5us"  # runs on the emulated device
PROXIES = (1, 2, 4)
PATHS = {"proxy": (), "gdaki": POSTED}


def row(what: str, value: str, against: str = "", note: str = "") -> None:
    """One line of the table, at once: a run that is cut short has said what it knew."""
    print(f"| {what} | {value} | {against} | {note} |", flush=True)


def card() -> str:
    """Name and driver of the first GPU."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    return f"{len(lines)} × {lines[0]}"


def bound(value: float, limit: float, *, is_least: bool, unit: str, scale: float) -> str:
    """Whether a figure keeps to what was promised."""
    is_kept = value >= limit if is_least else value <= limit
    return f"{'≥' if is_least else '≤'} {limit / scale:g} {unit}: {'kept' if is_kept else 'NOT KEPT'}"


def ring() -> None:
    """The ring alone."""
    binary = str(library_folder() / "efaprof-dispatch")
    ended = run([binary, "ring", "--device", "cuda", "--commands", "20000000", "--trips", "100000", "--json"])
    if ended.code != 0:
        row("ring", "FAILED", "", ended.last_words)
        return
    found = ended.summary
    trip, rate = found["round_trip_ns"], found["commands_per_s"]
    row(
        "ring: round trip p50",
        f"{trip['p50'] / 1e3:.2f} µs",
        bound(trip["p50"], 3000, is_least=False, unit="µs", scale=1e3),
        f"p99 {trip['p99'] / 1e3:.2f}, p99.9 {trip['p999'] / 1e3:.2f}; published: UCCL 3.82 µs mean, NCCL GIN "
        "(kernel-posted, with the wire) 16.7 µs, MSCCL++ none found",
    )
    near = found["nearest_core"]
    nearest = near["round_trip_ns"]["p50"]
    row(
        f"ring: round trip p50, taken on the nearest core ({near['core']})",
        f"{nearest / 1e3:.2f} µs",
        bound(nearest, 3000, is_least=False, unit="µs", scale=1e3),
    )
    bare = found["relaxed_round_trip_ns"]["p50"]
    row("ring: a bare word there and back, p50", f"{bare / 1e3:.2f} µs", f"× {trip['p50'] / bare:.2f} with a command")
    limits = {
        "thread": ("one thread, a release each", 1.3e6),
        "warp_batch": ("one warp, four commands a lane and release", 40e6),
        "drain": ("drained by one core", 50e6),
    }
    for name, (label, limit) in limits.items():
        row(
            f"ring: {label}",
            f"{rate[name] / 1e6:.2f} M/s",
            bound(rate[name], limit, is_least=True, unit="M/s", scale=1e6),
            "published: UCCL sends 0.74-1.9 M messages/s a GPU over EFA" if name == "thread" else "",
        )
    for name, label, base in (
        ("warp_uncached_tail", "its copy of the tail off", "warp"),
        ("warp_host_head", "its head in host memory", "warp"),
        ("warp", "one warp, a command a lane and release", "warp_batch"),
        ("drain_eager_tail", "the tail written every time", "drain"),
    ):
        row(f"ring: {label}", f"{rate[name] / 1e6:.2f} M/s", f"× {rate[name] / rate[base]:.2f} of {base}")
    row("ring: commands verified", f"{found['commands']:,}", f"{found['wrong']} wrong")


def p50(*options: str, provider: str = "shm") -> float | None:
    """Median time of the dispatch kernel, µs; None when the run failed, which is said."""
    ended = run(command(*options, *MODEL, provider=provider))
    if ended.code != 0:
        row(" ".join(options), "FAILED", "", ended.last_words)
        return None
    found: float = ended.summary["gpu"]["dispatch_us"]["p50"]
    return found


def turns(first: list[str], second: list[str]) -> tuple[float, float, list[float]] | None:
    """Medians of two ways, and their ratios from the least on, run in turns."""
    pairs = [(p50(*first), p50(*second)) for _ in range(TURNS)]
    if any(one is None or other is None for one, other in pairs):
        return None
    known = [(one or 0.0, other or 1.0) for one, other in pairs]
    return median(a for a, _ in known), median(b for _, b in known), sorted(a / b for a, b in known)


def stamps() -> None:
    """What stamps in the kernels cost, at decode shapes: every other step of a run is without them."""
    for tokens, hidden in SHAPES:
        steps = "200" if tokens > 64 else "1600"
        shape = ["--tokens", str(tokens), "--hidden", str(hidden), "--steps", steps, "--stamps-in-turns"]
        found = []
        for _ in range(TURNS):
            ended = run(command(*shape, *MODEL))
            if ended.code != 0:
                row(" ".join(shape), "FAILED", "", ended.last_words)
                return
            told = ended.summary["gpu"]
            found.append((told["dispatch_us"]["p50"], told["without_stamps"]["dispatch_us"]["p50"]))
        on, off, ratio = (median(values) for values in zip(*((a, b, a / b) for a, b in found), strict=True))
        row(
            f"stamps: dispatch p50, T={tokens} hidden={hidden} top-8",
            f"{on:.2f} µs",
            f"× {ratio:.3f} of {off:.2f} µs without",
            bound(ratio, 1.03, is_least=False, unit="", scale=1),
        )


def switches() -> None:
    """What each switch of the proxies is worth, on the provider that rings doorbells where there is one."""
    shape = ["--tokens", "64", "--hidden", "2048"]
    for label, option in (
        ("FI_MORE", ["--more"]),
        ("one command a turn", ["--drain", "1"]),
        ("NUMA pinning", ["--pin"]),
    ):
        found = turns([*shape, *option], shape)
        if found is not None:
            on, off, ratios = found
            against = f"× {median(ratios):.3f} ({ratios[0]:.2f} … {ratios[-1]:.2f}) of {off:.2f} µs without"
            row(f"switch: {label}", f"{on:.2f} µs dispatch p50", against)


def proxies(folder: Path) -> None:
    """Several rings of a rank, each with a proxy, against one, in turns; and that what they record is whole."""
    shape = ["--tokens", "128", "--hidden", "2048", "--channels", "8", "--threads", "2", "--steps", "200", *MODEL]
    for provider in ("tcp", "shm"):
        took: dict[int, list[dict[str, float]]] = {count: [] for count in PROXIES}
        for turn in range(TURNS):
            for count in PROXIES if turn % 2 else reversed(PROXIES):
                ended = run(command(*shape, "--proxies", str(count), provider=provider))
                if ended.code != 0:
                    row(f"proxies: {count} over {provider}", "FAILED", "", ended.last_words)
                    return
                gpu = ended.summary["gpu"]
                took[count].insert(0, {
                    "dispatch": gpu["dispatch_us"]["p50"], "combine": gpu["combine_us"]["p50"],
                    "a step": ended.summary["step_us"],
                })  # fmt: skip
        for count, what in ((count, what) for what in took[1][0] for count in PROXIES):
            ratios = sorted(own[what] / one[what] for own, one in zip(took[count], took[1], strict=True))
            row(
                f"proxies: {count} of a rank over {provider}, {what}, T=128",
                f"{median(own[what] for own in took[count]):.1f} µs",
                f"× {median(ratios):.3f} ({ratios[0]:.2f} … {ratios[-1]:.2f}) of one" if count > 1 else "",
            )
        options = [*shape[: -len(MODEL)], "--proxies", "2"]
        one_run(f"proxies: 2 ranks with 2 each over {provider}", *recorded(folder, options, provider))


def dense() -> None:
    """The control arm at the shape of two ranks, and with a proxy: NCCL where every rank has a GPU, else gloo."""
    shape = ["--device", "cuda", "--dtype", "bf16", "--ranks", "2", "--layers", "2", "--tokens", "8",
             "--hidden", "7168",
             "--steps", "100", *MODEL]  # fmt: skip
    arms = {"dense": ["--path", "dense"], "proxy": ["--provider", "shm"]}
    times: dict[str, list[float]] = {arm: [] for arm in arms}
    provider = ""
    for _ in range(TURNS):
        for arm, words in arms.items():
            ended = run([sys.executable, "-m", "efaprof", "bench", "dispatch", *words, *shape, "--json", "--no-record"])
            if ended.code != 0:
                row(f"dense arm: {arm}", "FAILED", "", ended.last_words)
                return
            times[arm].append(ended.summary["step_us"])
            provider = ended.summary["provider"] if arm == "dense" else provider
    ratios = sorted(a / b for a, b in zip(times["dense"], times["proxy"], strict=True))
    row(
        f"dense arm: 2 ranks over {provider}, every token verified",
        f"{median(times['dense']):.0f} µs a step",
        f"× {median(ratios):.3f} ({ratios[0]:.2f} … {ratios[-1]:.2f}) of {median(times['proxy']):.0f} µs with a proxy",
        "between its collectives lie eager torch operators and waits of the host: attribute tells them apart",
    )


def recorded(folder: Path, options: list[str], provider: str) -> tuple[Ended, Path]:
    """A recorded run, on an emulated device where the provider needs one."""
    target = folder / "run"
    shutil.rmtree(target, ignore_errors=True)
    words = ["--device", "cuda", "--provider", provider, *options, *MODEL, "--layers", "2", "--warmup", "5"]
    device = ["--emulate", DEVICE] if provider == EFA else []
    return run([sys.executable, "-m", "efaprof", "bench", "dispatch", *words, *device, "-o", str(target)]), target


def report(target: Path) -> dict[str, Any]:
    """attribute's own words."""
    told = run([sys.executable, "-m", "efaprof", "attribute", str(target), "--json"])
    found: dict[str, Any] = json.loads(told.out) if told.code == 0 else {"failed": told.err.strip()}
    return found


def end_to_end(folder: Path, providers: tuple[str, ...] = ("tcp", "shm")) -> None:
    """2 and 4 ranks over each provider, recorded and attributed."""
    for provider in providers:
        for ranks in ("2", "4"):
            options = ["--ranks", ranks, "--tokens", "8", "--hidden", "7168", "--steps", "200"]
            one_run(f"{ranks} ranks over {provider}", *recorded(folder, options, provider))


def emulated_device(folder: Path) -> None:
    """The same over libfabric's own EFA provider on the emulated device, and delays there."""
    end_to_end(folder, (EFA,))
    injections(folder, EFA, ("proxy", "nic", "rx"))


def posting(folder: Path) -> None:
    """Kernels that post by themselves against the same over ring, proxy and libfabric, in turns."""
    shape = ["--ranks", "2", "--tokens", "8", "--hidden", "7168", "--steps", "200", "--json"]
    runs: dict[str, list[str]] = {path: [] for path in PATHS}
    took: dict[str, list[dict[str, float]]] = {path: [] for path in PATHS}
    for turn in range(TURNS):
        for path, words in PATHS.items():
            ended, target = recorded(folder, [*words, *shape], EFA)
            if ended.code != 0:
                row(f"{path}: 2 ranks over {EFA}", "FAILED", "", ended.last_words)
                return
            runs[path].append(str(target.rename(folder / f"{path}-{turn}")))
            found = ended.summary
            took[path].append({"dispatch p50": found["gpu"]["dispatch_us"]["p50"], "a step": found["step_us"]})
            if turn == 0:
                names = POSTED_STAMPS if path == "gdaki" else STAMPS
                one_run(f"{path}: 2 ranks over {EFA}", ended, Path(runs[path][-1]), names)
    for what in ("dispatch p50", "a step"):
        pairs = [(one[what], other[what]) for one, other in zip(took["gdaki"], took["proxy"], strict=True)]
        gdaki, proxy, ratio = median(a for a, _ in pairs), median(b for _, b in pairs), median(a / b for a, b in pairs)
        row(f"gdaki: {what}", f"{gdaki:.2f} µs", f"× {ratio:.3f} of {proxy:.2f} µs with a proxy")
    told = run([sys.executable, "-m", "efaprof", "diff", *runs["proxy"], "--json", "--", *runs["gdaki"]])
    if told.code not in (0, 1):
        row("gdaki: efaprof diff", "FAILED", "", told.last_words)
        return
    compared(json.loads(told.out))


def compared(found: dict[str, Any]) -> None:
    """What the comparison of both paths says of savings and the kernel."""
    paths = found["paths"]
    for saving in paths["savings"]:
        value, low, high = (saving["us"][name] for name in ("value", "lo", "hi"))
        spread = "" if low is None or high is None else f"{low:.1f} … {high:.1f}"
        row(f"gdaki: saved of a step, {saving['what']}", f"{value:.1f} µs", saving["provenance"], spread)
    row(
        "gdaki: the kernel, an operation", f"{paths['posted_us']:.3f} µs",
        f"× {paths['posted_us'] / paths['kernel_us']:.2f} of {paths['kernel_us']:.3f} µs to push a command",
    )  # fmt: skip


def one_run(label: str, ended: Ended, target: Path, names: tuple[str, ...] = STAMPS) -> None:
    """What a recorded run shows of itself."""
    if ended.code != 0:
        row(label, "FAILED", "", ended.last_words)
        return
    share, causal = stamped(target, names)
    found = report(target)
    if "failed" in found:
        row(label, "NOT ATTRIBUTED", "", found["failed"])
        return
    verdict, wall = found["verdict"], found["wall_us"]["value"]
    row(
        label,
        f"{wall:.0f} µs a step, {verdict['path']}" + (f"/{verdict['where']}" if verdict["where"] else ""),
        f"{share:.2%} fully stamped, {1 - causal:.3%} out of order",
        f"coverage {found['coverage']:.1%}, |Σ C − W| {found['conservation_error_ns']} ns, clock ±"
        f"{found['clock_error_ns'] / 1e3:.2f} µs",
    )


def injections(folder: Path, provider: str = "shm", layers: tuple[str, ...] = INJECTIONS) -> None:
    """Each layer slowed down: the layer that the report says grew."""
    options = ["--tokens", "8", "--hidden", "2048", "--steps", "120"]
    _, target = recorded(folder, options, provider)
    calm = shares(report(target))
    for layer in layers:
        ended, target = recorded(folder, [*options, "--inject", f"{layer}=200us"], provider)
        if ended.code != 0:
            row(f"inject {layer}=200us over {provider}", "FAILED", "", ended.last_words)
            continue
        found = report(target)
        grown = {name: value - calm.get(name, 0.0) for name, value in shares(found).items()}
        most = max(grown, key=lambda name: grown[name])
        row(
            f"inject {layer}=200us over {provider}",
            f"{most} grew by {grown[most]:.0f} µs",
            "right" if most == layer else "WRONG",
            f"verdict {found['verdict']['path']}/{found['verdict']['where']}",
        )


def shares(found: dict[str, Any]) -> dict[str, float]:
    """µs of a step that each layer has on the critical path."""
    return {one["layer"]: one["us"]["value"] for one in found.get("layers", [])}


def main() -> int:
    """The whole table, or the sections that are asked for."""
    reason = missing()
    if reason is not None:
        print(f"nothing to measure: {reason}", file=sys.stderr)
        return 1
    day = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    print(f"{card()} · {os.cpu_count()} cores · {day}\n\n| what | measured | against | note |\n|---|---|---|---|")
    asked = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for name, section in (
            ("ring", ring),
            ("stamps", stamps),
            ("runs", lambda: end_to_end(Path(folder))),
            ("inject", lambda: injections(Path(folder))),
            ("efa", lambda: emulated_device(Path(folder))),
            ("gdaki", lambda: posting(Path(folder))),
            ("switches", switches),
            ("dense", dense),
            ("proxies", lambda: proxies(Path(folder))),
        ):
            if not asked or name in asked:
                section()
    return 0


if __name__ == "__main__":
    sys.exit(main())
