"""What a recording says about itself at its end: everything that was lost, and why there may be nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from efaprof.session.plan import NOT_ASKED_FOR
from efaprof.session.probes import ProbeName
from efaprof.session.size import format_size
from efaprof.trace.header import SLOT_BYTES
from efaprof.trace.manifest import ProbeState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from efaprof.native import DrainStats
    from efaprof.session.plan import Plan
    from efaprof.session.tally import Leftover, Tally
    from efaprof.trace.manifest import Probe

_RESERVE_BYTES = 64 << 10  # a manifest fits


class Reserve:
    """Disk space kept for the closing manifest, so that a disk that the trace filled does not lose it."""

    def __init__(self, run: Path) -> None:
        """Take the space; OSError when there is none."""
        self._path = run / ".reserve"
        descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _RESERVE_BYTES)
        finally:
            os.close(descriptor)

    def release(self) -> None:
        """Give it back, right before it is needed."""
        self._path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known when the rings have been copied for the last time."""

    stats: DrainStats
    captured: Tally
    left: Sequence[Leftover]
    has_disk_failed: bool  # the last attempt to copy could not write
    ring_dir: Path  # where rings stay that could not be copied
    run: Path
    is_early: bool  # --duration ended it, and the program is meant to run on

    @property
    def alive(self) -> set[int]:
        """Recorded processes that still run."""
        return {ring.pid for ring in self.left if ring.is_alive}

    @property
    def unwritten(self) -> int:
        """Bytes of records that stay in rings, for the next efaprof command to save."""
        return sum(ring.waiting for ring in self.left) if self.has_disk_failed else 0


def warnings(outcome: Outcome, plan: Plan) -> Iterator[str]:
    """One line for each kind of loss, worst first; none when nothing was lost."""
    stats = outcome.stats
    if outcome.unwritten:
        yield (
            f"{format_size(outcome.unwritten)} of records could not be written: {os.strerror(stats.last_errno)};"
            f" they stay in {outcome.ring_dir} until there is room and efaprof info {outcome.run} saves them"
        )
    elif stats.write_errors:
        yield (
            f"writing failed for a while ({os.strerror(stats.last_errno)});"
            " records that found no room meanwhile are counted as dropped"
        )
    if stats.dropped:
        yield f"{stats.dropped:,} records were dropped; rings were full: try a larger --buffer"
    if stats.discarded:
        yield f"the oldest {format_size(stats.discarded * SLOT_BYTES)} were given up to stay under --max-size"
    if outcome.alive and not outcome.is_early:
        many = len(outcome.alive)
        yield (
            f"{many} recorded process{'es' if many > 1 else ''} still ran when the command had ended"
            f" (pid {', '.join(map(str, sorted(outcome.alive)[:5]))}): what came after is not recorded"
        )
    if stats.bad_rings:
        yield f"{stats.bad_rings} files among the rings were not rings and were left out"
    python = next(probe for probe in plan.probes if probe.name == ProbeName.PYTHON)
    if python.state == ProbeState.OFF and python.reason != NOT_ASKED_FOR:
        yield f"Python was not sampled: {python.reason}; type: {python.hint}"
    libfabric = next(probe for probe in plan.probes if probe.name == ProbeName.LIBFABRIC)
    if libfabric.state == ProbeState.OFF and libfabric.reason != NOT_ASKED_FOR:
        yield f"no libfabric operation could be recorded: {libfabric.reason}; {libfabric.hint}"
    elif libfabric.state != ProbeState.OFF and not outcome.captured.processes:
        yield f"no libfabric operation was recorded: {_probable_reason(libfabric)}"


def _probable_reason(probe: Probe) -> str:
    if probe.state == ProbeState.DEGRADED:
        return probe.reason
    return (
        "the program called no libfabric function, or the one that did is static or set-user-ID;"
        " one that looks libfabric up itself needs --entry both"
    )
