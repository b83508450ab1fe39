"""What `record --cuda` costs a CUDA-graph decode loop, what it sees, and who has CUPTI when torch.profiler wants it."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl

from efaprof.session import host
from efaprof.trace.reader import Tables, open_tables
from efaprof.trace.rundir import open_run

REPO = Path(__file__).resolve().parents[1]
TOKENS = 2000
PAIRS = {"graph": 3, "node": 1}  # ABBA: each pair is bare, recorded, recorded, bare
LOOP = [sys.executable, str(REPO / "examples/cuda_decode.py"), "--tokens", str(TOKENS)]


def run(folder: Path | None, cuda: str = "off", *options: str) -> dict[str, float]:
    """What the loop printed, recorded into `folder` or bare."""
    recorder = [sys.executable, "-m", "efaprof", "record", "-q", "-f", "-o", str(folder), "--cuda", cuda, "--"]
    done = subprocess.run(
        [*(recorder if folder else []), *LOOP, *options], check=True, capture_output=True, text=True, cwd=REPO
    )
    return json.loads(done.stdout.splitlines()[-1])


def ratios(folder: Path, cuda: str) -> list[float]:
    """Recorded over bare steps per second, one for each half of an ABBA pair."""
    found = []
    for _ in range(PAIRS[cuda]):
        speeds = [run(where, cuda)["steps_per_s"] for where in (None, folder, folder, None)]
        found += [speeds[1] / speeds[0], speeds[2] / speeds[3]]
    return found


def count(tables: Tables, kind: str) -> int:
    """Stretches of device time of one kind."""
    return tables.device_work.filter(pl.col("kind") == kind).select(pl.len()).collect().item()


def lateness(tables: Tables) -> str:
    """How device time stands to the calls that launched it: what begins before its call shows the clocks' error."""
    calls = tables.spans.filter(pl.col("correlation") > 0).select(
        "process", pl.col("correlation").cast(pl.UInt32), call_ns="begin_ns"
    )
    after_us = (
        tables.device_work.join(calls, on=["process", "correlation"])
        .select(after_us=(pl.col("begin_ns") - pl.col("call_ns")) / 1000)
        .collect()["after_us"]
    )
    if not len(after_us):
        return "no device time with a call of its own"
    early = int((after_us < 0).sum())
    after = f"lowest {after_us.min():.1f}, median {after_us.median():.1f} µs after it"
    return f"{early} of {len(after_us)} began before their call; {after}"


def cost(folder: Path, cuda: str) -> None:
    """A row of the table: speed, and what the last recorded run holds."""
    found = ratios(folder, cuda)
    low, *_, high = statistics.quantiles(found, n=20)
    tables = open_tables(open_run(folder))
    speed = f"{statistics.median(found):.3f} [{low:.3f}, {high:.3f}]"
    print(f"{cuda:<10}{speed:>28}{count(tables, 'graph'):>9}{count(tables, 'kernel'):>9}  {lateness(tables)}")


def conflict(folder: Path) -> None:
    """Two lines: what torch.profiler sees with and without us, and what our timeline says about it."""
    bare, recorded = run(None, "off", "--profile"), run(folder, "graph", "--profile")
    tables = open_tables(open_run(folder))
    notes = "; ".join(note.text for note in tables.facts.notes if "CUPTI" in note.text)
    seen = f"{bare['profiler_cuda_events']} bare, {recorded['profiler_cuda_events']} recorded"
    print(f"torch.profiler in the program sees {seen} CUDA events; ours holds {count(tables, 'graph')} graphs: {notes}")


def main() -> None:
    """Print the table; ratios are of this run."""
    machine = host.describe()
    print(f"{machine.cpu_model}, {machine.cpus} cores; {TOKENS} graph replays a run, ABBA")
    print(f"{'--cuda':<10}{'speed, recorded / bare':>28}{'graphs':>9}{'kernels':>9}  device time against its calls")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "run")
        for cuda in PAIRS:
            cost(folder, cuda)
        conflict(folder)


if __name__ == "__main__":
    main()
