"""What `record --python` costs a busy Python program: its speed under py-spy over that without, in one run.

Speed is taken by the wall clock, which on a busy machine says who got the core, and by the program's own CPU time.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from efaprof.session import host, pyspy

if TYPE_CHECKING:
    from collections.abc import Sequence

SLICE_S = 0.5
ROUNDS = 12
ARMS = (
    ("100 Hz", "--rate", "100", "--nonblocking"),
    ("500 Hz", "--rate", "500", "--nonblocking"),
    ("100 Hz, native frames (stops it)", "--rate", "100", "--native"),
)
# Counts loops with a stack of some depth until a line comes in, then prints how many it did a second.
WORKER = f"""
import sys, time
def work(depth, until):
    if depth: return work(depth - 1, until)
    count = 0
    while time.perf_counter() < until:
        for _ in range(2000): pass
        count += 1
    return count
for _ in sys.stdin:
    start, used = time.perf_counter(), time.process_time()
    count = work(20, start + {SLICE_S})
    print(count / (time.perf_counter() - start), count / (time.process_time() - used), flush=True)
"""


def speed(worker: subprocess.Popen[str]) -> tuple[float, float]:
    """Loops a second over one slice, and a second of CPU time."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("\n")
    worker.stdin.flush()
    wall, own = map(float, worker.stdout.readline().split())
    return wall, own


def sampled(worker: subprocess.Popen[str], options: tuple[str, ...]) -> tuple[tuple[float, float], float]:
    """Speeds under py-spy, and the part of a core that py-spy took meanwhile."""
    command = [str(pyspy.find_program()), "record", "--pid", str(worker.pid), "--idle", "--threads", "--format",
               "chrometrace", "--output", os.devnull, *options]  # fmt: skip
    spy = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.3)  # it reads the interpreter's symbols first
    before = _cpu_s(spy.pid)
    found = speed(worker)
    used = (_cpu_s(spy.pid) - before) / SLICE_S
    spy.send_signal(signal.SIGINT)
    spy.wait()
    return found, used


def _cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def middle(values: Sequence[float]) -> float:
    """Median."""
    return statistics.median(values)


def interval(values: Sequence[float]) -> str:
    """96 % interval of the median of 12 values: the third from both ends (binomial)."""
    ordered = sorted(values)
    return f"[{ordered[2]:.3f}, {ordered[-3]:.3f}]"


def main() -> None:
    """Print the table."""
    machine = host.describe()
    print(f"{machine.cpu_model}, {machine.cpus} cores; median of {ROUNDS} pairs of {SLICE_S:g} s and its 95 % interval")
    print(f"{'py-spy at':<34}{'wall':>7}{'95 %':>17}{'CPU':>8}{'95 %':>17}{'py-spy, of a core':>19}")
    with subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        speed(worker)
        for name, *options in ARMS:
            ratios: list[tuple[float, float]] = []
            shares = []
            for number in range(ROUNDS):  # A B, B A, …: drift of the machine cancels out
                plain = speed(worker) if number % 2 else None
                found, used = sampled(worker, tuple(options))
                plain = plain or speed(worker)
                ratios.append((found[0] / plain[0], found[1] / plain[1]))
                shares.append(used)
            shown = "".join(f"{middle(column):>7.3f} {interval(column):>16}" for column in zip(*ratios, strict=True))
            print(f"{name:<34}{shown}{statistics.median(shares):>18.1%}")
        worker.terminate()


if __name__ == "__main__":
    main()
