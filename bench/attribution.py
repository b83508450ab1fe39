"""Critical path, overlapped and recoverable time of dispatch steps: operations per CPU second, and memory.

A steady synthetic run is written once and analysed again and again until --operations went through, chunk by chunk as
`efaprof attribute` does. CPU seconds of the process are counted, of all its threads, so that other work on the machine
does not matter much; "on 2 cores" is twice the rate, which holds when chunks are spread over two processes. The ratio
is to the exclusive sweep of the same operations in the same process. Run it with `python bench/attribution.py`.
"""

from __future__ import annotations

import argparse
import platform
import resource
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from efaprof.analyzers.graph import StepGraph, build
from efaprof.analyzers.layers import LayerSplitter
from efaprof.analyzers.replay import STANDARD, replayed
from efaprof.analyzers.walk import walk, walk_job
from efaprof.session import host
from efaprof.trace import dispatch
from efaprof.trace.steady import Steady, write_steady
from efaprof.trace.survey import survey

if TYPE_CHECKING:
    from collections.abc import Callable

    from efaprof.trace.widerow import DispatchChunk

COMMANDS = 64
WRITTEN = 1_000_000  # operations of the run on disk
MIB = 1 << 10  # of ru_maxrss
Result = TypeVar("Result")
Spent = defaultdict[str, float]  # CPU seconds by part


def analyse(chunk: DispatchChunk, spent: Spent) -> int:
    """Add the CPU seconds of each part; returns the number of windows walked."""
    graph = timed(spent, "event graph", lambda: build(chunk))
    walked = timed(spent, "walk and union (C, U)", lambda: walk(graph))
    timed(spent, "walk of the job", lambda: walk_job(graph))
    timed(spent, "order for replays", graph.events.order)
    timed(spent, f"{len(STANDARD)} replays (Δ)", lambda: replay_all(graph))
    timed(spent, "exclusive sweep", lambda: LayerSplitter().split(chunk))
    return len(walked.windows)


def replay_all(graph: StepGraph) -> None:
    """Every standard change."""
    for change in STANDARD:
        replayed(graph, change)


def timed(spent: Spent, name: str, work: Callable[[], Result]) -> Result:
    """The result; CPU seconds are added to `spent`."""
    begin = time.process_time()
    found = work()
    spent[name] += time.process_time() - begin
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=10_000_000)
    asked = parser.parse_args()
    spent: Spent = defaultdict(float)
    done = 0
    with tempfile.TemporaryDirectory() as folder:
        steady = Steady(steps=WRITTEN // (2 * COMMANDS), commands=COMMANDS)
        surveyed = survey(write_steady(Path(folder) / "run", steady).raw_files)
        while done < asked.operations:
            chunks = dispatch.chunks(surveyed)
            while (chunk := timed(spent, "reading records", lambda: next(chunks, None))) is not None:  # noqa: B023
                analyse(chunk, spent)
                done += len(chunk.operations)
    machine = host.describe()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB
    both = spent["event graph"] + spent["walk and union (C, U)"]
    each = spent[f"{len(STANDARD)} replays (Δ)"] / len(STANDARD)
    print(f"{machine.cpu_model}, {machine.cpus} cores, Python {platform.python_version()}: {done:,} operations")
    print(f"{'':28}{'µs CPU/op':>11}{'M ops/s a core':>16}{'× exclusive':>13}")
    rows = {**spent, "C and U": both, "each replay": each}
    for name, seconds in rows.items():
        rate = done / seconds / 1e6
        print(f"{name:28}{seconds / done * 1e6:11.3f}{rate:16.2f}{spent['exclusive sweep'] / seconds:13.2f}")
    print(f"C and U on 2 cores: {2 * done / both / 1e6:.2f} M ops/s; peak memory {peak:.0f} MiB")


if __name__ == "__main__":
    main()
