"""An MPI program with the steps of a server: prefill and decode, each annotated, with an exchange among all ranks.

annotated_exchange.py HOW STEPS [abort]: HOW is annotated, unsaid (steps without kinds), nvtx or stopping (nothing is
recorded of steps 10 to 19); with abort, rank 0 ends in the middle of the last step but two.
"""

from __future__ import annotations

import contextlib
import os
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


def main() -> None:
    """Steps as a server has them, with its own work between them."""
    how, steps, is_aborted = sys.argv[1], int(sys.argv[2]), "abort" in sys.argv[3:]
    world = MPI.COMM_WORLD
    for number in range(steps):
        is_prefill = number % PREFILL_EVERY == 0
        if how == "stopping" and number in (10, 20):
            (efaprof.stop if number == 10 else efaprof.start)()
        with step(how, is_prefill=is_prefill):
            for _ in range(LAYERS * (PREFILL_EXCHANGES if is_prefill else 1)):
                compute()
                exchange(world, SMALL)
            if is_aborted and world.rank == 0 and number == steps - 3:
                os.abort()
        time.sleep(PAUSE_S)
    if world.rank == 0:
        print(f"{steps} steps of {world.size} ranks", flush=True)


main()
