"""Reading per-request records: time and memory against the size of the file, up to 1 GB.

Each size is read by a fresh `efaprof tax` process; its peak memory is the kernel's (getrusage of the child). A table
with ratios: memory may grow by about 50 bytes a request, not with the file.
Run it with `python bench/ingest.py` (about 1.2 GB of disk, a few minutes) or `--mb 64,256` for other sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path

from efaprof.ingest import synth

CONCURRENCY = 32
NS_PER_MS = 1_000_000


def write(path: Path, size_bytes: int) -> int:
    """Records of a closed loop until the file has its size; the number of records."""
    waves = synth.correlated_waves(52.0, count=8, concurrency=CONCURRENCY, between_ms=0.3, within_ms=0.05, seed=1)
    lines = [synth.aiperf_record(request) for request in waves]
    templates = [(line["metadata"]["request_start_ns"], json.dumps(line)) for line in lines]
    period_ns = 8 * 7000 * NS_PER_MS
    written = count = 0
    with path.open("w", encoding="utf-8") as file:
        for number, (start_ns, text) in enumerate(cycle(templates)):
            if written >= size_bytes:
                break
            moved = start_ns + number // len(templates) * period_ns
            line = text.replace(str(start_ns), str(moved), 1) + "\n"
            file.write(line)
            written += len(line)
            count += 1
    return count


def read(path: Path) -> tuple[float, int]:
    """Seconds and peak resident KiB of one `efaprof tax` over the file."""
    started = time.perf_counter()
    arguments = [sys.executable, "-m", "efaprof", "tax", "--arm", f"deepep={path}", "--json"]
    child = os.posix_spawn(
        sys.executable, arguments, dict(os.environ), file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    )
    _, status, usage = os.wait4(child, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit("efaprof tax failed")
    return time.perf_counter() - started, usage.ru_maxrss


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", default="16,128,1024", help="sizes in MiB, separated by commas")
    sizes = [int(size) for size in parser.parse_args().mb.split(",")]
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    cpu = names[0].partition(": ")[2] if names else "unknown CPU"
    print(f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{'MiB':>6}  {'requests':>9}  {'seconds':>8}  {'MiB/s':>6}  {'peak MiB':>8}  {'against the smallest':>20}")
    first: tuple[int, float] | None = None
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            path = Path(folder) / "profile_export.jsonl"
            requests = write(path, size << 20)
            seconds, peak_kib = read(path)
            first = first or (size, peak_kib)
            rate, peak = size / seconds, peak_kib / 1024
            ratio = f"file {size / first[0]:.0f}×, memory {peak_kib / first[1]:.2f}×"
            print(f"{size:>6}  {requests:>9}  {seconds:>8.1f}  {rate:>6.0f}  {peak:>8.0f}  {ratio:>20}")


if __name__ == "__main__":
    main()
