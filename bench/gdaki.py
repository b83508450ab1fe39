"""Posting from the kernel against a proxy on the emulated device: what a step takes, what was predicted, what it saved.

    python bench/gdaki.py [--emulate latency=12us] [--pairs 4] [--steps 120] [--signal fence|imm] [--device cpu|cuda]

Runs of both paths one after the other, the next pair the other way round; each number is a mean over runs with its
95 % interval. A CPU thread stands for the kernel on both paths, or it runs on a GPU, and all ranks share this machine's
cores. --seconds ends with the pair that is running then.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from efaprof.session import host

PROXY, POSTED, UNFENCED = "proxy", "gdaki", "proxy, unfenced"
SHAPES = {
    "cpu": [],
    "cuda": ["--device", "cuda", "--dtype", "bf16", "--layers", "2", "--tokens", "8", "--hidden", "7168", "--topk", "8",
             "--experts", "64", "--compute-us", "50", "--warmup", "5"],
}  # fmt: skip


def arms_of(signal: str) -> dict[str, list[str]]:
    """What each arm adds to the command; a proxy run without fences stands beside fenced ones."""
    arms = {
        PROXY: ["--provider", "efa-direct", "--signal", signal],
        POSTED: ["--path", "gdaki", "--signal", signal, "--queues", "verbs"],
    }
    return arms if signal == "imm" else arms | {UNFENCED: ["--provider", "efa-direct", "--signal", "imm"]}


def efaprof(*words: str) -> str:
    """Stdout of a command that must not fail."""
    done = subprocess.run([sys.executable, "-m", "efaprof", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return done.stdout


def record(folder: Path, arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Runs of every arm, the arms in turn."""
    arms = arms_of(arguments.signal)
    runs: dict[str, list[str]] = {name: [] for name in arms}
    end = time.monotonic() + arguments.seconds
    for pair in range(arguments.pairs):
        names = list(arms) if pair % 2 == 0 else list(reversed(arms))
        for name in names:
            run = str(folder / f"{name.replace(', ', '-')}-{pair}")
            efaprof("bench", "dispatch", *SHAPES[arguments.device], "--emulate", arguments.emulate,
                    "--steps", str(arguments.steps), *arms[name], "-o", run)  # fmt: skip
            runs[name].append(run)
        if time.monotonic() > end:
            break
    return runs


def main() -> None:
    """Record, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emulate", default="latency=12us")
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--signal", choices=["fence", "imm"], default="fence")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = record(Path(folder), arguments)
        unfenced = [word for run in runs.get(UNFENCED, []) for word in ("--unfenced", run)]
        found = json.loads(efaprof("diff", *runs[PROXY], *unfenced, "--json", "--", *runs[POSTED]))
    machine = host.describe()
    print(
        f"{machine.cpu_model}, {machine.cpus} cores; kernels on {arguments.device}; {len(runs[PROXY])} runs of "
        f"{arguments.steps} steps an arm, signals by {arguments.signal}"
    )
    step = found["measures"][0]
    print(f"{'step':44}{'µs':>12}{'× proxy':>10}")
    for name, us in ((PROXY, step["first_us"]), (POSTED, step["second_us"])):
        print(f"{name:44}{us:12.1f}{us / step['first_us']:10.3f}")
    paths = found["paths"]
    print(f"\n{'saved of a step':44}{'µs':>12}{'× step':>10}   95 %")
    for row in paths["savings"]:
        value, lo, hi = (row["us"][name] for name in ("value", "lo", "hi"))
        interval = "" if lo is None or hi is None else f"{lo:.1f} … {hi:.1f}"
        print(f"{row['what'] + ', ' + row['provenance']:44}{value:12.1f}{value / step['first_us']:10.3f}   {interval}")
    print(f"\n{'the kernel, an operation':44}{'µs':>12}{'× push':>10}")
    for name, us in (("pushes a command", paths["kernel_us"]), ("writes an entry, rings", paths["posted_us"])):
        print(f"{name:44}{us:12.3f}{us / paths['kernel_us']:10.2f}")


if __name__ == "__main__":
    main()
