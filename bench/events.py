"""Cost of one event in the recorded thread, and of the drain: one table, ratios to a bare rdtsc of the same run."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

LABELS = {
    "rdtsc": "bare time stamp (rdtsc)",
    "clock_gettime": "clock_gettime(CLOCK_MONOTONIC)",
    "event_32": "32-byte event, no stamp",
    "event_64": "64-byte event, no stamp",
    "event_32_call": "32-byte event, no stamp, through the C functions",
    "event_32_one_stamp": "32-byte event, one stamp",
    "event_64_one_stamp": "64-byte event, one stamp",
    "event_32_two_stamps": "32-byte event, two stamps",
    "name_seen": "id of a name seen before",
    "dropped": "dropped event (ring full, no stamp)",
}
RINGS = {"256 KiB": 256 << 10, "4 MiB": 4 << 20}


def cpu_model() -> str:
    """Name of the processor, as the kernel has it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def measure(program: Path, ring_bytes: int) -> list[dict[str, float | str]]:
    """One run of bench_events with rings of this size, in shared memory where there is some."""
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shm) as rings, tempfile.TemporaryDirectory() as raw:
        env = {**os.environ, "EFAPROF_RING_DIR": f"{rings}/rings", "EFAPROF_BUFFER": str(ring_bytes)}
        Path(f"{rings}/rings").mkdir(mode=0o700)
        out = subprocess.run([program, raw], env=env, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in out.splitlines()]


def main() -> None:
    """Print the table."""
    repo = Path(__file__).resolve().parent.parent
    program = Path(os.environ.get("EFAPROF_BUILD_DIR", repo / "build" / "dev")) / "bin" / "bench_events"
    if not program.is_file():
        sys.exit(f"{program} does not exist\nhint: make native")
    runs = {name: measure(program, size) for name, size in RINGS.items()}
    clock = {1: "TSC", 2: "CLOCK_MONOTONIC"}[int(runs["4 MiB"][0]["clock"])]
    print(f"cost of one event · {cpu_model()} · {os.cpu_count()} cores · clock {clock}")
    print("ns: the smallest (middle) of 3000 batches of 1000; × is to the bare stamp of the same run\n")
    print(f"{'':50}" + "".join(f"{'ring ' + name:>28}" for name in runs))
    for event, label in LABELS.items():
        cells = []
        for run in runs.values():
            rows = {row["event"]: row for row in run if "event" in row}
            low, middle = float(rows[event]["min_ns"]), float(rows[event]["median_ns"])
            cells.append(f"{low:9.1f} ({middle:5.1f}) ns ×{low / float(rows['rdtsc']['min_ns']):5.2f}")
        print(f"{label:50}" + "".join(f"{cell:>28}" for cell in cells))
    for key, label, unit in (
        ("drain_mb_s_median", "drain, ring to page cache", "MB/s"),
        ("idle_poll_us_median", "drain, a poll that finds little", "µs"),
    ):
        cells = [f"{float(row[key]):9.1f} {unit}" for run in runs.values() for row in run if key in row]
        print(f"{label:50}" + "".join(f"{cell:>28}" for cell in cells))


if __name__ == "__main__":
    main()
