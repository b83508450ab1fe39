"""Lanes that post by themselves over devices that do wrong: how each run ends, by which line, and how soon.

    python bench/gdaki_faults.py [--device cpu|cuda] [--cases 4] [--only inside|emulated]

First a device inside the program (tests/native/gda_fuzz.cpp), which can do what the emulated one never does; then the
emulated device, with its own faults and with entries that the poster spoils. A run must end with every token verified
or with one line that names what went wrong, and within the bound: its lanes wait for at most a second.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "gpu"))

from gpu_runs import REPO, command, library_folder, missing, on_device

from efaprof.session import host

INSIDE = {
    "healthy": ["none"], "reorders": ["reorder"], "delays": ["delay"], "drops operations": ["drop"],
    "loses completions": ["lose"], "ends with errors": ["error"], "corrupts payload": ["flip"],
    "names another queue pair": ["qpn"], "names no request": ["request"], "tells twice": ["twice"],
    "delivers twice": ["repeat"], "changes immediates": ["immediate"], "writes garbage": ["garbage"],
    "is given spoiled entries": ["reorder", "entries"], "counts; healthy": ["reorder", "counter"],
    "counts; drops operations": ["drop", "counter"], "counts; ends with errors": ["error", "counter"],
}  # fmt: skip
EMULATED = {
    "healthy": ("latency=5us", []), "reorders": ("latency=5us,reorder=0.5", []),
    "delays": ("latency=5us,jitter=200us", []), "drops packets": ("loss=0.02,rto=50us", []),
    "ends with errors": ("loss=0.2,retries=0,rto=1us", []), "corrupts payload": ("corrupt=0.2,corrupt_after=60", []),
    "is given spoiled entries": ("latency=5us,reorder=0.3", ["--fuzz", "10"]),
    "counts; ends with errors": (
        "counters=on,loss=0.2,retries=0,rto=1us", ["--signal", "fence", "--completion", "counter"],
    ),
}  # fmt: skip
HARMLESS = {"healthy", "reorders", "delays", "drops packets", "counts; healthy"}
BOUND_S = 10  # a second's patience, and what a run takes to start and end
RUN_LIMIT_S = 240


@dataclass(slots=True)
class Row:
    """How the runs over one device ended."""

    verified: int = 0
    named: int = 0
    wrong: int = 0
    longest_s: float = 0.0
    line: str = ""
    failures: list[str] = field(default_factory=list)

    def add(self, outcome: str, seconds: float, line: str) -> None:
        """One run."""
        setattr(self, outcome, getattr(self, outcome) + 1)
        self.longest_s = max(self.longest_s, seconds)
        if outcome == "named":
            self.line = self.line or line
        if outcome == "wrong":
            self.failures.append(line)


def inside(words: list[str], device: str, cases: int) -> Row:
    """Runs over the device inside the program."""
    build = Path(os.environ.get("EFAPROF_BUILD_DIR", REPO / "build" / "dev"))
    fault, *more = words
    argv = [str(build / "bin" / "gda_fuzz"), fault, "1", str(cases), *more, *(["cuda"] if device == "cuda" else [])]
    path = f"{library_folder()}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    row = Row()
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=RUN_LIMIT_S,
            env=os.environ | {"LD_LIBRARY_PATH": path},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        row.add("wrong", RUN_LIMIT_S, f"not over after {RUN_LIMIT_S} s")
        return row
    lines = done.stdout.splitlines()
    for line in lines:
        _, _, outcome, milliseconds, message = line.split(" ", 4)
        # A call of CUDA's that failed is not what the device did.
        row.add("wrong" if message.startswith("GPU: ") else outcome, float(milliseconds) / 1e3, message)
    if done.returncode != 0 or len(lines) != cases:
        row.add("wrong", 0.0, f"exit code {done.returncode} after {len(lines)} of {cases} runs: {done.stderr.strip()}")
    return row


def emulated(knobs: str, more: list[str], device: str, cases: int) -> Row:
    """Runs over the emulated device."""
    row = Row()
    for seed in range(1, cases + 1):
        words = command("--path", "gdaki", "--queues", "verbs", *more, "--steps", "60", "--seed", str(seed),
                        provider="efa-direct", timeout_s=1)  # fmt: skip
        if device == "cpu":
            words += ["--device", "cpu", "--dtype", "f32"]
        begin = time.monotonic()
        ended = on_device(words, f"{knobs},seed={seed}")
        seconds = time.monotonic() - begin
        said = [line for line in ended.err.splitlines() if line.startswith("efaprof-dispatch: ")]
        if ended.code == 0:
            tokens = 2 * 8 * 2 * 65
            is_whole = json.loads(ended.out)["verified_tokens"] == tokens
            row.add("verified" if is_whole else "wrong", seconds, f"not {tokens} tokens verified")
        else:
            is_named = ended.code == 1 and len(said) == 1
            row.add("named" if is_named else "wrong", seconds, said[0] if said else ended.err.strip())
    return row


def show(kind: str, name: str, row: Row) -> bool:
    """One line of the table; whether it is as it must be."""
    is_kept = row.longest_s <= BOUND_S
    is_good = row.wrong == 0 and is_kept and (name not in HARMLESS or row.named == 0)
    line = row.line.removeprefix("efaprof-dispatch: ") or "–"
    print(
        f"| {kind}: {name} | {row.verified} | {row.named} | {row.wrong} | {row.longest_s:.2f} | "
        f"{'kept' if is_kept else 'NOT KEPT'} | {'; '.join(row.failures) or line} |",
        flush=True,
    )
    return is_good


def main() -> int:
    """The table; the exit code says whether every row is as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--cases", type=int, default=4)
    parser.add_argument("--only", choices=["inside", "emulated"])
    asked = parser.parse_args()
    reason = missing() if asked.device == "cuda" else None
    if reason is not None:
        print(f"nothing to measure: {reason}", file=sys.stderr)
        return 1
    machine = host.describe()
    print(f"kernels on {asked.device}, {machine.cpu_model}, {machine.cpus} cores; {asked.cases} runs a row\n")
    print(f"| the device | verified | named | wrong | longest, s | within {BOUND_S} s | the first line that was said |")
    print("|---|---|---|---|---|---|---|")
    good = []
    for name, words in INSIDE.items() if asked.only != "emulated" else ():
        good.append(show("inside", name, inside(words, asked.device, asked.cases)))
    for name, (knobs, more) in EMULATED.items() if asked.only != "inside" else ():
        good.append(show("emulated", name, emulated(knobs, more, asked.device, min(asked.cases, 2))))
    print(f"\n{good.count(True)} of {len(good)} rows as they must be")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
