"""Raw records to the operations table to the report: operations a second and peak memory over the number of them.

Each size is a synthetic run of 4 threads in 2 processes, read by a fresh process: first its tables are made (raw files
→ parquet), then the report (parquet → JSON document). Memory must stay flat: the ratio in the last column says whether
it does. Run it with `python bench/reader.py` (about 1.5 GB of disk) or `--million 1,2` for other sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from efaprof.trace.synth import TSC_2100, SynthRun
from efaprof.trace.traffic import Traffic, open_endpoint, write_traffic

THREADS, PROCESSES = 4, 2
CLOCK_EVERY_NS = 100_000_000


def write(path: Path, operations: int) -> int:
    """A run of about this many operations; how many it really has."""
    traffic = Traffic(batches=operations // THREADS // 16, lag=2)
    synth = SynthRun(path, clock=TSC_2100)
    for number in range(THREADS):
        ring = synth.ring(pid=100 + number % PROCESSES, tid=200 + number)
        ep, cq = 0x1000 + 0x10 * number, 0x2000 + 0x10 * number
        open_endpoint(ring, ep, cq)
        write_traffic(ring, traffic, ep=ep, cq=cq)
    parent = synth.ring(pid=9, producer="parent")
    for at in range(0, traffic.end_ns + CLOCK_EVERY_NS, CLOCK_EVERY_NS):
        parent.clock_sample(at)
    synth.finish()
    return THREADS * traffic.operations


def measure(path: Path) -> None:
    """In the child: make tables and report, print seconds, CPU seconds and peak memory."""
    import polars  # noqa: F401 - its import is not what is measured

    from efaprof.report.attribution_json import attribution_document
    from efaprof.report.attribution_report import report_on
    from efaprof.trace.reader import open_tables
    from efaprof.trace.rundir import open_run

    moments = [(time.perf_counter(), time.process_time())]
    run = open_run(path)
    tables = open_tables(run)
    moments.append((time.perf_counter(), time.process_time()))
    json.dumps(attribution_document(report_on([(run, tables)])))
    moments.append((time.perf_counter(), time.process_time()))
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"moments": moments, "peak_kib": peak_kib}))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--million", default="1,10", help="millions of operations, separated by commas")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure)
        return
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    cpu = names[0].partition(": ")[2] if names else "unknown CPU"
    print(f"{cpu}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}")
    print(
        f"{'operations':>11}  {'raw MiB':>8}  {'tables s':>8}  {'report s':>8}  {'CPU s':>6}  {'M ops/s':>8}"
        f"  {'M ops/CPU-s':>11}  {'parquet B/op':>12}  {'peak MiB':>8}  against the smallest"
    )
    first: tuple[int, float, float] | None = None
    for size in arguments.million.split(","):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run"
            operations = write(path, int(float(size) * 1e6))
            child = [sys.executable, __file__, "--measure", str(path)]
            done = subprocess.run(child, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout)
            raw_mib = sum(file.stat().st_size for file in (path / "raw").iterdir()) / 2**20
            table_bytes = (path / "ops.parquet").stat().st_size / operations
        (t0, c0), (t1, _), (t2, c2) = found["moments"]
        rate, peak = operations / (t2 - t0) / 1e6, found["peak_kib"] / 1024
        first = first or (operations, rate, peak)
        ratio = f"operations {operations / first[0]:.0f}×, rate {rate / first[1]:.2f}×, memory {peak / first[2]:.2f}×"
        print(
            f"{operations:>11}  {raw_mib:>8.0f}  {t1 - t0:>8.2f}  {t2 - t1:>8.2f}  {c2 - c0:>6.1f}  {rate:>8.2f}"
            f"  {operations / (c2 - c0) / 1e6:>11.2f}  {table_bytes:>12.1f}  {peak:>8.0f}  {ratio}"
        )


if __name__ == "__main__":
    main()
