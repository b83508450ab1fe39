"""Run directories whose contents are known, for tests of commands that read one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from efaprof.trace.synth import SynthRun
from efaprof.trace.traffic import Traffic, open_endpoint, write_traffic

if TYPE_CHECKING:
    from pathlib import Path

    from efaprof.trace.rundir import Run


def traffic_run(path: Path, traffic: Traffic | None = None, *, processes: int = 1) -> Run:
    """A run whose processes, pids 100, 101, …, each do this traffic."""
    made = SynthRun(path)
    for number in range(processes):
        ring = made.ring(pid=100 + number, comm=f"rank{number}")
        open_endpoint(ring, 0x1000, 0x2000)
        write_traffic(ring, traffic or Traffic(batches=50))
    return made.finish(program="traffic", command=["traffic", "--of", "a test"])
