"""The command ring between two threads: rate and round trip, beside a bare cache line of the same run."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import Any

from efaprof.instrument.dispatch import binary
from efaprof.session import host

RUNS = 5


def measure() -> dict[str, Any]:
    """One run of the native benchmark; it verifies every command."""
    out = subprocess.run([binary(), "ring", "--json"], check=True, capture_output=True, text=True).stdout
    return json.loads(out)


def main() -> None:
    """Print the table: medians over the runs, ratios taken within each run."""
    machine = host.describe()
    runs = [measure() for _ in range(RUNS)]
    rows = {
        "command pushed and taken": [1e9 / run["commands_per_s"] for run in runs],
        "round trip through the ring, p50": [run["round_trip_ns"]["p50"] for run in runs],
        "round trip through the ring, p99": [run["round_trip_ns"]["p99"] for run in runs],
        "bare cache line and back, p50": [run["cache_line_ns"]["p50"] for run in runs],
        "bare cache line and back, p99": [run["cache_line_ns"]["p99"] for run in runs],
    }
    bare = rows["bare cache line and back, p50"]
    print(f"{machine.cpu_model}, {machine.cpus} cores; medians of {RUNS} runs")
    print(f"{'':36}{'ns':>10}{'× bare line p50':>18}")
    for name, values in rows.items():
        ratio = statistics.median(value / floor for value, floor in zip(values, bare, strict=True))
        print(f"{name:36}{statistics.median(values):10.1f}{ratio:18.3f}")
    rate = statistics.median(run["commands_per_s"] for run in runs)
    print(f"{rate / 1e6:.1f} M commands/s, {runs[0]['commands']:,} a run, every one verified")


if __name__ == "__main__":
    sys.exit(main())
