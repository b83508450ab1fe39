"""An MPI program with the steps of a server: prefill and decode, each annotated, with an exchange among all ranks.

annotated_exchange.py HOW STEPS [THEN]: HOW is annotated, unsaid (steps without kinds) or nvtx; THEN is run in the middle
of the last step but two, on rank 0.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

import efaprof

LAYERS, TOKENS, BATCH = 4, 6, 3
PREFILL_EVERY = 10
SMALL = 2048
PREFILL_EXCHANGES = 12  # times those of a decode step
PAUSE_S = 0.0005


def step(how: str, *, is_prefill: bool) -> contextlib.AbstractContextManager[object]:
    """What says that a step runs."""
    if how == "nvtx":
        import nvtx

        return nvtx.annotate("prefill batch" if is_prefill else "decode batch", domain="server")
    if how == "unsaid":
        return efaprof.step()
    kind = "prefill" if is_prefill else "decode"
    return efaprof.step(kind=kind, tokens=512 if is_prefill else TOKENS, batch=BATCH)


@efaprof.span("compute", layer="compute")
def compute(seconds: float = 0.0004) -> None:
    """Arithmetic of a layer."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def exchange(world: MPI.Intracomm, size: int) -> None:
    """Every rank's part to every other one."""
    sent = np.full(size * world.size, world.rank, np.uint8)
    found = np.empty_like(sent)
    world.Alltoall(sent, found)
    assert all(found[size * peer] == peer for peer in range(world.size))


def end(then: str) -> None:
    """Ends the program in the middle of a step."""
    if then == "raise":
        raise RuntimeError("in the middle of a step")
    if then in ("SIGKILL", "SIGTERM", "SIGINT"):
        os.kill(os.getpid(), getattr(signal, then))
        time.sleep(60)
    if then == "abort":
        os.abort()


def main() -> None:
    """Steps as a server has them, with its own work between them."""
    how, steps, then = sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""
    world = MPI.COMM_WORLD
    for number in range(steps):
        is_prefill = number % PREFILL_EVERY == 0
        with step(how, is_prefill=is_prefill):
            for _ in range(LAYERS * (PREFILL_EXCHANGES if is_prefill else 1)):
                compute()
                exchange(world, SMALL)
            if then and world.rank == 0 and number == steps - 3:
                end(then)
        time.sleep(PAUSE_S)
    if world.rank == 0:
        print(f"{steps} steps of {world.size} ranks", flush=True)


main()
