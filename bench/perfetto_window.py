"""Exporting a stretch of a large run: time and memory of `efaprof export --window`, by the size of the run.

    python bench/perfetto_window.py [OPERATIONS]

Runs of the dispatch path in steady state, of OPERATIONS/10 and OPERATIONS (default 5 000 000) operations. The same
number of steps is exported from the middle of each, compressed, in a process of its own; memory must not grow with the
run. The last line exports half a million slices.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from efaprof.session import host
from efaprof.trace.rundir import open_run
from efaprof.trace.steady import Steady, write_steady

COMMANDS = 64
EXPORT = """
import json, resource, sys, time
from pathlib import Path
from efaprof.export.formats import Format
from efaprof.export.request import Request, export_run
from efaprof.trace.reader import open_tables
from efaprof.trace.rundir import open_run
run = open_run(Path(sys.argv[1]))
open_tables(run)  # kept beside the run: made once, whatever is exported
start = time.perf_counter()
made = export_run(Request(run, Format.PERFETTO, Path(sys.argv[2]), force=True, window=sys.argv[3]))
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"seconds": seconds, "peak_mb": peak, "said": made.remarks[0], "bytes": made.paths[0].stat().st_size}))
"""


def exported(run: Path, steady: Steady, steps: int) -> dict[str, float | str]:
    """Figures of exporting some steps from the middle of a run."""
    begin_s = steady.steps // 2 * steady.wall_ns / 1e9
    window = f"{begin_s:.9f}:{begin_s + steps * steady.wall_ns / 1e9:.9f}"
    command = [sys.executable, "-c", EXPORT, str(run), str(run / "part.pftrace.gz"), window]
    found: dict[str, float | str] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operations", type=int, nargs="?", default=5_000_000)
    operations = parser.parse_args().operations
    machine = host.describe()
    print(f"{machine.cpu_model}, {machine.cpus} cores, {os.uname().release}")
    names = ("operations", "raw MB", "written s", "steps", "export s", "peak MB", ".gz MB")
    print(" ".join(f"{name:>{width}}" for name, width in zip(names, (12, 8, 10, 6, 9, 8, 7), strict=True)), " slices")
    with tempfile.TemporaryDirectory() as folder:
        for count, lengths in ((operations // 10, (100,)), (operations, (100, 500))):
            steady = Steady(steps=max(count // (2 * COMMANDS), 1000), commands=COMMANDS, ranks=2)
            start = time.perf_counter()
            run = write_steady(Path(folder) / f"run-{count}", steady)
            written_s = time.perf_counter() - start
            size = sum(path.stat().st_size for path in open_run(run.path).raw_files)
            for steps in lengths:
                found = exported(run.path, steady, steps)
                print(
                    f"{steady.operations:12,} {size / 1e6:8.0f} {written_s:10.1f} {steps:6} {found['seconds']:9.1f}"
                    f" {found['peak_mb']:8.0f} {float(found['bytes']) / 1e6:7.2f}  {found['said']}"
                )


if __name__ == "__main__":
    main()
