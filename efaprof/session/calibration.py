"""Loops of remote writes between two processes of this host, by one or several threads: the raw rows of a profile.

Each process is a `calibration_rank`; rank 0 says what each loop did.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from efaprof import env
from efaprof.analyzers.profile import LoopRow
from efaprof.errors import EfaprofError

if TYPE_CHECKING:
    from collections.abc import Iterator

THREADS = (1, 2, 4)  # each with an endpoint, a completion queue and memory of its own
SIZES = (64, 1024, 4096, 65_536, 1 << 20)
WINDOWS = (1, 4, 16, 64, 256)
LEAST_TOGETHER = 16  # in flight of each of several threads: fewer are limited by the latency
MANY_THREADS_BYTES = 4096  # largest payload that several threads write: more is limited by the line
MOST_IN_FLIGHT_BYTES = 16 << 20  # three times what 400 Gb/s carry in 100 µs; a slow fabric must drain it too
_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure; `libfabric` is a path, or empty for the one that offers the provider."""

    provider: str
    libfabric: str = ""
    sizes: tuple[int, ...] = SIZES
    windows: tuple[int, ...] = WINDOWS
    duration_ms: int = 100
    threads: tuple[int, ...] = THREADS

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loops to run, in order; several threads only where one may not reach the fabric's rate."""
        alone = [
            Loop(size, window, 1)
            for size in self.sizes
            for window in self.windows
            if window == 1 or size * window <= MOST_IN_FLIGHT_BYTES
        ]
        small = [size for size in self.sizes if size <= MANY_THREADS_BYTES] or [min(self.sizes)]
        together = [
            Loop(size, window, threads)
            for threads in self.threads
            for size in small
            for window in self.windows
            if threads > 1 and window >= LEAST_TOGETHER
        ]
        return (*alone, *together)


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop: writes of one size, `window` in flight of each thread."""

    size_bytes: int
    window: int
    threads: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One finished loop, and what was measured on."""

    row: LoopRow
    fingerprint: dict[str, str]


def measure(plan: Plan) -> Iterator[Measured]:
    """Each loop as it ends; EfaprofError with the program's own words when one of the two fails."""
    ends = socket.socketpair()
    ranks = []
    # Peers of one host would use shared memory instead of the NIC.
    environment = {"FI_EFA_ENABLE_SHM_TRANSFER": "0", **os.environ}
    for rank, end in enumerate(ends):
        argv = [sys.executable, "-m", "efaprof.session.calibration_rank", json.dumps(asdict(plan)), str(rank)]
        ranks.append(
            subprocess.Popen(
                [*argv, str(end.fileno())], pass_fds=(end.fileno(),), env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
    for end in ends:
        end.close()
    writer = ranks[0]
    try:
        assert writer.stdout is not None
        for line in writer.stdout:
            found = json.loads(line)
            yield Measured(LoopRow(**found["row"]), found["fingerprint"])
        _check(ranks)
    finally:
        for one in ranks:
            if one.poll() is None:
                one.kill()
            one.communicate()


def _check(ranks: list[subprocess.Popen[str]]) -> None:
    """Both must have ended well; the first that did not is quoted."""
    for one in ranks:
        try:
            _, said = one.communicate(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            raise EfaprofError("the peer of the calibration does not end", hint="efaprof doctor") from None
        if one.returncode != 0:
            last = said.strip().splitlines()[-1] if said.strip() else f"it ended with {one.returncode}"
            raise EfaprofError(f"the calibration failed: {last}", hint="efaprof fabric shows what the provider offers")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def emulated() -> tuple[str, ...]:
    """What of this fabric is emulated, as the emulated device says it of itself."""
    return tuple(filter(None, os.environ.get(env.EMULATED, "").split(";")))
