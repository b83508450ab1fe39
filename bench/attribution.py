"""Critical path, overlapped and recoverable time of dispatch steps: operations per CPU second, and memory.

A steady synthetic run is written once and analysed again and again until --operations went through, chunk by chunk as
`efaprof attribute` does. CPU seconds of the process are counted, of all its threads, so that other work on the machine
does not matter much; "on 2 cores" is twice the rate, which holds when chunks are spread over two processes. The ratio
is to the exclusive sweep of the same operations in the same process. Where pandas is installed, the same split is made
with it too, as one would write it there, and has to come out equal. Last, `efaprof attribute` reads whole runs of
1 M and 10 M operations as a process of its own, from raw files to report, in steps of 128 operations over two ranks
(`make demo` has 434) and in small ones of 32, which cost most: time by the clock, CPU seconds of the program and of the
kernel, and peak memory; a smaller run before them keeps what Python compiles and says what starting takes. That needs
2.5 GB in the temporary directory; `--end-to-end` without numbers leaves it out.
Run it with `python bench/attribution.py`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl

from efaprof.analyzers.exclusive import PRIORITY
from efaprof.analyzers.graph import build
from efaprof.analyzers.layers import NIC_OPEN_UNTIL, OPERATION_SPANS, LayerSplitter
from efaprof.analyzers.replay import STANDARD, saved_ns
from efaprof.analyzers.walk import walk, walk_job
from efaprof.session import host
from efaprof.trace import dispatch
from efaprof.trace.layers import Layer
from efaprof.trace.steady import Steady, write_steady
from efaprof.trace.survey import survey

if TYPE_CHECKING:
    from collections.abc import Callable

    from efaprof.trace.survey import Survey
    from efaprof.trace.widerow import DispatchChunk

COMMANDS = 64
# A process counts the memory of the one that it was forked from; so a small one starts what is measured.
LAUNCH = """
import json, resource, subprocess, sys, time
begin = time.perf_counter()
subprocess.run(sys.argv[1:], check=True)
took, used = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"seconds": took, "user": used.ru_utime, "kernel": used.ru_stime, "peak": used.ru_maxrss}))
"""
RANKS = 2
STEP_COMMANDS = (64, 16)  # of a rank in the whole runs
SMALL = 3_200
WRITTEN = 1_000_000  # operations of the run on disk
MIB = 1 << 10  # of ru_maxrss
NO_STEP = -1  # after the last one
Result = TypeVar("Result")
Spent = defaultdict[str, float]  # CPU seconds by part


def analyse(chunk: DispatchChunk, spent: Spent) -> int:
    """Add the CPU seconds of each part; returns the number of windows walked."""
    graph = timed(spent, "event graph", lambda: build(chunk))
    walked = timed(spent, "walk and union (C, U)", lambda: walk(graph))
    timed(spent, "walk of the job", lambda: walk_job(graph))
    timed(spent, "order for replays", graph.events.order)
    timed(spent, f"{len(STANDARD)} replays (Δ)", lambda: saved_ns(graph, STANDARD))
    timed(spent, "exclusive sweep", lambda: LayerSplitter().split(chunk))
    return len(walked.windows)


def timed(spent: Spent, name: str, work: Callable[[], Result]) -> Result:
    """The result; CPU seconds are added to `spent`."""
    begin = time.process_time()
    found = work()
    spent[name] += time.process_time() - begin
    return found


def compare_with_pandas(surveyed: Survey, spent: Spent, done: int) -> str:
    """Split the run once with pandas; its CPU seconds are scaled to `done` operations. What to say of it."""
    if importlib.util.find_spec("pandas") is None:
        return "pandas: not compared, it is not installed (pip install pandas)"
    pandas = importlib.import_module("pandas")
    once: Spent = defaultdict(float)
    splitter, count = LayerSplitter(), 0
    for chunk in dispatch.chunks(surveyed):
        spans = pandas_spans(pandas, chunk)
        ends = chunk.steps.group_by("rank").agg(begin_ns=pl.max("end_ns"), step=pl.lit(NO_STEP))
        cuts = pl.concat([one.select("rank", "step", "begin_ns").cast(pl.Int64) for one in (chunk.steps, ends)])
        marks = pandas.DataFrame({name: cuts[name].to_numpy() for name in cuts.columns})
        found = timed(once, "pandas", lambda: split_with_pandas(pandas, spans, marks))  # noqa: B023
        ours = splitter.split(chunk).sort("rank", "step")
        for layer in (one for one in PRIORITY if f"{one}_ns" in ours.columns):
            if not (found[layer.value].to_numpy() == ours[f"{layer}_ns"].to_numpy()).all():
                raise SystemExit(f"pandas and efaprof differ in {layer}")
        count += len(chunk.operations)
    spent["the same split in pandas"] = once["pandas"] * done / count
    times = spent["the same split in pandas"] / spent["exclusive sweep"]
    return f"pandas {pandas.__version__}: {times:.1f} × our time for the same exclusive split, equal to the nanosecond"


def pandas_spans(pandas: Any, chunk: DispatchChunk) -> Any:
    """The spans (rank, layer, begin_ns, end_ns) of a chunk as a table of pandas; not counted."""
    rows = [
        chunk.operations.select(pl.col("peer" if layer is Layer.RX else "rank").alias("rank"), begin=begin, end=end)
        .with_columns(layer=pl.lit(PRIORITY.index(layer)))
        .drop_nulls()
        for layer, (begin, end) in [
            *OPERATION_SPANS.items(),
            (Layer.PROXY, (pl.col("done_ns"), pl.col("told_ns"))),
            (Layer.NIC, (pl.col("return_ns"), NIC_OPEN_UNTIL)),
        ]
    ]
    for layer, frame in ((Layer.COMPUTE, chunk.computes), (Layer.POLL, chunk.waits)):
        own = frame.select("rank", begin="begin_ns", end="end_ns", layer=pl.lit(PRIORITY.index(layer)))
        rows.append(own.drop_nulls())
    whole = pl.concat([one.cast(pl.Int64) for one in rows], how="diagonal")
    return pandas.DataFrame({name: whole[name].to_numpy() for name in whole.columns})


def split_with_pandas(pandas: Any, spans: Any, marks: Any) -> Any:
    """Nanoseconds per (rank, step) and layer: sort the ends of spans, count what is open, the first layer wins."""
    spans = spans[spans["end"] > spans["begin"]]
    opening = spans[["rank", "layer"]].assign(time=spans["begin"], change=1)
    closing = spans[["rank", "layer"]].assign(time=spans["end"], change=-1)
    cuts = marks[["rank", "step"]].assign(time=marks["begin_ns"], layer=-1, change=0)
    events = pandas.concat([opening, closing, cuts]).sort_values(["rank", "time"], ignore_index=True)
    owner = pandas.Series(-1, index=events.index)
    for layer in range(len(PRIORITY) - 1, -1, -1):
        change = events["change"].where(events["layer"] == layer, 0)
        owner = owner.mask(change.groupby(events["rank"]).cumsum() > 0, layer)
    by_rank = events.groupby("rank")
    lasting = by_rank["time"].shift(-1) - events["time"]
    rows = pandas.DataFrame(
        {"rank": events["rank"], "step": by_rank["step"].ffill(), "layer": owner, "ns": lasting}
    ).dropna()
    rows = rows[rows["step"] != NO_STEP]
    sums = rows.groupby(["rank", "step", "layer"])["ns"].sum().unstack(fill_value=0)
    return sums.rename(columns=dict(enumerate(one.value for one in PRIORITY))).reindex(
        columns=[one.value for one in PRIORITY], fill_value=0
    )


@dataclass(frozen=True, slots=True)
class Process:
    """What one `efaprof attribute` took."""

    operations: int
    seconds: float
    user_seconds: float
    kernel_seconds: float
    peak_mib: float

    @property
    def cpu_seconds(self) -> float:
        """Of the program and of the kernel."""
        return self.user_seconds + self.kernel_seconds


def attributed(operations: int, commands: int) -> Process:
    """`efaprof attribute` on a fresh run of that many operations, `commands` a step and rank, a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        steady = Steady(steps=operations // (RANKS * commands), commands=commands)
        run = write_steady(Path(folder) / "run", steady).path
        argv = [sys.executable, "-c", LAUNCH, sys.executable, "-m", "efaprof", "attribute", str(run), "--quiet"]
        # As where a user types it: what Python compiled is there the next time.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        told = json.loads(subprocess.run(argv, check=True, capture_output=True, env=environment).stdout)
        return Process(steady.operations, told["seconds"], told["user"], told["kernel"], told["peak"] / MIB)


def print_processes(processes: list[Process], commands: int) -> None:
    """The rows of whole runs, and how time and memory grow from the first to the last of them."""
    print(f"\nefaprof attribute RUN, {RANKS * commands} operations a step")
    print(f"{'':28}{'M ops/s':>9}{'seconds':>9}{'user s':>9}{'kernel s':>10}", end="")
    print(f"{'µs CPU/op':>11}{'peak MiB':>10}")
    for one in processes:
        name = f"{one.operations:,} operations"
        rate, each = one.operations / one.seconds / 1e6, one.cpu_seconds / one.operations * 1e6
        print(f"{name:28}{rate:9.2f}{one.seconds:9.2f}{one.user_seconds:9.2f}{one.kernel_seconds:10.2f}", end="")
        print(f"{each:11.2f}{one.peak_mib:10.0f}")
    if len(processes) > 1:
        first, last = processes[0], processes[-1]
        ratios = [last.operations / first.operations, last.seconds / first.seconds, last.peak_mib / first.peak_mib]
        print("{:.0f} × the operations: {:.2f} × the time, {:.2f} × the memory".format(*ratios))
        more = (last.cpu_seconds - first.cpu_seconds) / (last.operations - first.operations) * 1e6
        print(f"an operation more takes {more:.2f} µs of CPU")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=10_000_000)
    parser.add_argument("--end-to-end", type=int, nargs="*", default=[1_000_000, 10_000_000])
    asked = parser.parse_args()
    spent: Spent = defaultdict(float)
    done = 0
    with tempfile.TemporaryDirectory() as folder:
        steady = Steady(steps=WRITTEN // (RANKS * COMMANDS), commands=COMMANDS)
        files = write_steady(Path(folder) / "run", steady).raw_files
        surveyed = timed(spent, "survey", lambda: survey(files))
        while done < asked.operations:
            chunks = dispatch.chunks(surveyed)
            while (chunk := timed(spent, "reading records", lambda: next(chunks, None))) is not None:  # noqa: B023
                analyse(chunk, spent)
                done += chunk.count
        spent["survey"] *= done / steady.operations  # made once
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB
        said = compare_with_pandas(surveyed, spent, done)
    machine = host.describe()
    both = spent["event graph"] + spent["walk and union (C, U)"]
    each = spent[f"{len(STANDARD)} replays (Δ)"] / len(STANDARD)
    print(f"{machine.cpu_model}, {machine.cpus} cores, Python {platform.python_version()}: {done:,} operations")
    print(f"{'':28}{'µs CPU/op':>11}{'M ops/s a core':>16}{'× exclusive':>13}")
    rows = {**spent, "C and U": both, "each replay": each}
    for name, seconds in rows.items():
        rate = done / seconds / 1e6
        print(f"{name:28}{seconds / done * 1e6:11.3f}{rate:16.2f}{spent['exclusive sweep'] / seconds:13.2f}")
    print(f"C and U on 2 cores: {2 * done / both / 1e6:.2f} M ops/s; peak memory {peak:.0f} MiB")
    print(said)
    if asked.end_to_end:
        small = attributed(SMALL, STEP_COMMANDS[0])
        small = attributed(SMALL, STEP_COMMANDS[0])  # the first one also compiled
        print(f"efaprof attribute of {small.operations:,} operations: {small.seconds:.2f} s", end="")
        print(f" ({small.cpu_seconds:.2f} s CPU, {small.peak_mib:.0f} MiB)")
        for commands in STEP_COMMANDS:
            print_processes([attributed(operations, commands) for operations in asked.end_to_end], commands)


if __name__ == "__main__":
    main()
