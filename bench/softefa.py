"""What the emulated EFA device can do on this machine, and how well it keeps the wire's times.

Two ranks, the poster of the tests (real work queue entries, posted by hand). Rates are of the device's own log; the
last column of each table is the ratio to the knob or to the first row, which is what carries over to other machines.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from efaprof.session.softefa import SoftEfa
from efaprof.session.softefa_spec import parse_emulation
from efaprof.session.softefa_truth import TruthLog, read_truth

BUILD = Path(os.environ.get("EFAPROF_BUILD_DIR", Path(__file__).resolve().parent.parent / "build" / "dev"))
POSTER = BUILD / "bin" / "softefa_poster"
TURNS = 3


def run(emulate: str, *options: str) -> TruthLog:
    """The log of one run of the poster."""
    with tempfile.TemporaryDirectory() as folder:
        truth = Path(folder) / "truth.bin"
        with SoftEfa(parse_emulation(emulate), truth=truth) as device:
            told = device.environment(os.environ)
            subprocess.run([POSTER, *options], env=told, check=True, stdout=subprocess.DEVNULL)
        return read_truth(truth)


def ops_per_s(log: TruthLog) -> float:
    """Operations per second between the first and the last tenth: starting and stopping do not count."""
    done = np.sort(log.records["delivered_ns"])
    part = done[len(done) // 10 : -len(done) // 10]
    return float((len(part) - 1) / (part[-1] - part[0]) * 1e9)


def capacity() -> None:
    """How many operations per second the device moves when the wire costs nothing."""
    print(f"{'payload':>8} {'memory':>8} {'operation':>10} {'per s':>12} {'of 8 B':>7}")
    for memory in ("-M", ""):
        first = 0.0
        for size in (8, 512, 4096, 65536):
            count = "20000" if size <= 4096 else "4000"
            options = ["-o", "write", "-s", str(size), "-n", count, "-w", "256", "-q", "4", "-d", "8", memory]
            best = max(ops_per_s(run("", *filter(None, options))) for _ in range(TURNS))
            first = first or best
            kind = "shared" if memory else "private"
            print(f"{size:>8} {kind:>8} {'write':>10} {best:>12,.0f} {best / first:>7.2f}")


def accuracy() -> None:
    """What the log says against what the knob says."""
    print(f"{'knob':>24} {'asked':>12} {'logged':>12} {'ratio':>7}")
    for ops in (10e3, 50e3, 200e3):
        log = run(f"ops={ops:.0f}", "-M", "-n", str(int(ops / 2)), "-w", "1000")
        logged = ops_per_s(log)
        print(f"{'ops/s':>24} {ops:>12,.0f} {logged:>12,.0f} {logged / ops:>7.3f}")
    for gbps in (1, 10, 40):
        log = run(f"rate={gbps}Gbps", "-M", "-n", str(gbps * 1000), "-s", "65536", "-w", "256")
        logged = ops_per_s(log) * 65536 * 8 / 1e9
        print(f"{'rate, Gb/s, 64 KiB':>24} {gbps:>12,.0f} {logged:>12,.2f} {logged / gbps:>7.3f}")
    for us in (20, 100, 1000):
        log = run(f"latency={us}us", "-M", "-n", "2000", "-w", "1")
        took = (log.records["delivered_ns"] - log.records["doorbell_ns"]) / 1e3
        for name, logged in (("median", np.median(took)), ("99 %", np.quantile(took, 0.99))):
            print(f"{'latency, us, ' + name:>24} {us:>12,.0f} {logged:>12,.1f} {logged / us:>7.3f}")


def main() -> int:
    """Print both tables."""
    if not POSTER.is_file():
        print(f"{POSTER} is not there: make native (needs libibverbs-dev)", file=sys.stderr)
        return 1
    cpus = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    machine, cores = cpus[0] if cpus else platform.machine(), len(os.sched_getaffinity(0))
    print(f"emulated EFA device on {machine}, {cores} cores, Linux {platform.release()}")
    capacity()
    accuracy()
    return 0


if __name__ == "__main__":
    sys.exit(main())
