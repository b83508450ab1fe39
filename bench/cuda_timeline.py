"""What `record --cuda` costs a CUDA-graph decode loop, what it sees, and who has CUPTI when torch.profiler wants it.

python bench/cuda_timeline.py [--cuda graph,node:200] [--pairs 3] [--tokens 2000] [--no-profile]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl

from efaprof.analyzers.batches import t_quantile
from efaprof.report.gpu_times import gpu_times, times_lines
from efaprof.session import host
from efaprof.trace.reader import Tables, open_tables
from efaprof.trace.rundir import open_run

REPO = Path(__file__).resolve().parents[1]


def run(folder: Path | None, tokens: int, cuda: str = "off", *options: str) -> dict[str, float]:
    """What the loop printed, recorded into `folder` or bare."""
    loop = [sys.executable, str(REPO / "examples/cuda_decode.py"), "--tokens", str(tokens), *options]
    recorder = [sys.executable, "-m", "efaprof", "record", "-q", "-f", "-o", str(folder), "--cuda", cuda, "--"]
    done = subprocess.run([*(recorder if folder else []), *loop], capture_output=True, text=True, cwd=REPO, check=False)
    if done.returncode != 0:
        sys.exit(f"--cuda {cuda}: exit code {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def ratios(folder: Path, cuda: str, asked: argparse.Namespace) -> list[float]:
    """Recorded over bare steps per second, one for each half of an A B B A; logarithms."""
    found = []
    for _ in range(asked.pairs):
        speeds = [run(where, asked.tokens, cuda)["steps_per_s"] for where in (None, folder, folder, None)]
        found += [math.log(speeds[1] / speeds[0]), math.log(speeds[2] / speeds[3])]
    return found


def interval(logs: list[float]) -> str:
    """Their mean as a ratio, with its 95 % interval."""
    mean = statistics.fmean(logs)
    half = t_quantile(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return "{:.3f} [{:.3f}, {:.3f}]".format(*(math.exp(value) for value in (mean, mean - half, mean + half)))


def count(tables: Tables, kind: str) -> int:
    """Stretches of device time of one kind."""
    return tables.device_work.filter(pl.col("kind") == kind).select(pl.len()).collect().item()


def cost(folder: Path, cuda: str, asked: argparse.Namespace) -> None:
    """A row of the table: speed, and what the last recorded run holds."""
    speed = interval(ratios(folder, cuda, asked))
    tables = open_tables(open_run(folder))
    seen = f"{count(tables, 'graph'):>9}{count(tables, 'kernel'):>9}"
    print(f"{cuda:<10}{speed:>28}{seen}  {'; '.join(times_lines(gpu_times(tables)))}", flush=True)


def conflict(folder: Path, tokens: int) -> None:
    """Two lines: what torch.profiler sees with and without us, and what our timeline says about it."""
    bare, recorded = run(None, tokens, "off", "--profile"), run(folder, tokens, "graph", "--profile")
    tables = open_tables(open_run(folder))
    notes = "; ".join(note.text for note in tables.facts.notes if "CUPTI" in note.text)
    seen = f"{bare['profiler_cuda_events']} bare, {recorded['profiler_cuda_events']} recorded"
    print(f"torch.profiler in the program sees {seen} CUDA events; ours holds {count(tables, 'graph')} graphs: {notes}")


def main() -> None:
    """Print the table; ratios are of this run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuda", default="graph,node:200", metavar="DETAIL,…", help="rows: graph, node or node:N")
    parser.add_argument("--pairs", type=int, default=3, help="A B B A of each row")
    parser.add_argument("--tokens", type=int, default=2000, help="graph replays of a run")
    parser.add_argument("--no-profile", dest="profile", action="store_false", help="leave torch.profiler out")
    parser.add_argument("-o", "--output", type=Path, metavar="RUN", help="keep the last recorded run there")
    asked = parser.parse_args()
    machine = host.describe()
    print(f"{machine.cpu_model}, {machine.cpus} cores; {asked.tokens} graph replays a run, A B B A {asked.pairs} times")
    print(f"{'--cuda':<10}{'speed, recorded / bare':>28}{'graphs':>9}{'kernels':>9}  times of the GPU against calls")
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.output or Path(scratch, "run")
        for cuda in asked.cuda.split(","):
            cost(folder, cuda, asked)
        if asked.profile:
            conflict(Path(scratch, "profiled"), asked.tokens)


if __name__ == "__main__":
    main()
