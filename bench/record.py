"""What `efaprof record` costs beside the program: its start and end, its own CPU time, the slowdown of busy cores."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from efaprof.session import host

ROUNDS = 7
IDLE_S = 4.0
EFAPROF = [sys.executable, "-m", "efaprof"]
SPIN = "import time; a = time.perf_counter()\nfor _ in range(10_000_000): pass\nprint(time.perf_counter() - a)"


def under_record(folder: str, *options: str) -> list[str]:
    """Command line that records what follows it."""
    return [*EFAPROF, "record", "-q", "-f", "-o", f"{folder}/run", *options, "--"]


def wall_s(command: list[str]) -> float:
    """Seconds from start to end of a command."""
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def idle_share(folder: str, *options: str) -> tuple[float, float]:
    """CPU time of a recorder over wall time, and its wake-ups a second, while the program sleeps."""
    command = [*under_record(folder, *options), "sleep", str(IDLE_S + 3)]
    recorder = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    manifest = Path(folder, "run", "manifest.json")
    started = time.time()
    while not manifest.exists() or manifest.stat().st_mtime < started:
        time.sleep(0.01)
    time.sleep(1)
    before = usage(recorder.pid)
    time.sleep(IDLE_S)
    after = usage(recorder.pid)
    recorder.wait()
    return (after[0] - before[0]) / (IDLE_S * 1e9), (after[1] - before[1]) / IDLE_S


def usage(pid: int) -> tuple[int, int]:
    """Nanoseconds on a CPU and voluntary switches of the process's main thread."""
    status = Path(f"/proc/{pid}/status").read_text()
    on_cpu_ns = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    return on_cpu_ns, int(status.split("voluntary_ctxt_switches:")[1].split()[0])


def busy_s(prefix: list[str], processes: int) -> float:
    """Wall seconds of a fixed loop in each of `processes` processes at once, by their own clocks; the slowest."""
    lines = " & ".join([f"{sys.executable} -c '{SPIN}'"] * processes) + "; wait"
    done = subprocess.run([*prefix, "sh", "-c", lines], check=True, capture_output=True, text=True)
    return max(map(float, done.stdout.split()))


def main() -> None:
    """Print the tables; ratios are of this run, alternating bare and recorded."""
    machine = host.describe()
    print(f"{machine.cpu_model}, {machine.cpus} cores; medians of {ROUNDS} alternating rounds")
    with tempfile.TemporaryDirectory() as folder:
        bare, recorded = zip(
            *((wall_s(["true"]), wall_s([*under_record(folder), "true"])) for _ in range(ROUNDS)), strict=True
        )
        python = statistics.median(wall_s([sys.executable, "-c", ""]) for _ in range(ROUNDS))
        added_ms = 1000 * (statistics.median(recorded) - statistics.median(bare))
        ratio = statistics.median(recorded) / python
        print(f"{'start and end of record (true)':44}{added_ms:8.0f} ms{ratio:10.1f} × a bare Python start")
        for name, options in (("all probes", ()), ("no NIC counters", ("--probes", "libfabric,cpu"))):
            share, wakes = idle_share(folder, *options)
            print(f"{f'recorder of an idle program, {name}':44}{100 * share:8.2f} % of a core{wakes:8.0f} wake-ups/s")
        for processes in sorted({max(machine.cpus - 1, 1), machine.cpus}):
            pairs = [(busy_s([], processes), busy_s(under_record(folder), processes)) for _ in range(ROUNDS)]
            ratio = statistics.median(mine / theirs for theirs, mine in pairs)
            name = f"loop in {processes} processes on {machine.cpus} cores"
            print(f"{name:44}{100 * (ratio - 1):+8.1f} % wall time, recorded over bare")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    sys.exit(main())
