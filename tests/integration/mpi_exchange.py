"""An MPI program whose output is the same each time: a ping-pong and an all-to-all, every byte of both verified."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

SIZES = (1, 1000, 65536, 1 << 20)
ROUNDS = 5


def pattern(seed: int, size: int) -> np.ndarray:
    """Bytes that belong to one message alone."""
    return ((np.arange(size, dtype=np.uint64) * 2654435761 + seed) >> 7).astype(np.uint8)


def ping_pong(world: MPI.Intracomm, size: int) -> int:
    """Wrong bytes that this rank received."""
    wrong, peer = 0, 1 - world.rank
    found = np.empty(size, np.uint8)
    for number in range(ROUNDS):
        if world.rank == 0:
            world.Send(pattern(number, size), peer, tag=number)
        world.Recv(found, peer, tag=number)
        wrong += int((found != pattern(number + 100 * peer, size)).sum())
        if world.rank == 1:
            world.Send(pattern(number + 100, size), peer, tag=number)
    return wrong


def all_to_all(world: MPI.Intracomm, size: int) -> int:
    """Wrong bytes that this rank received."""
    sent = np.concatenate([pattern(10 * world.rank + to, size) for to in range(world.size)])
    found = np.empty_like(sent)
    world.Alltoall(sent, found)
    wanted = np.concatenate([pattern(10 * sender + world.rank, size) for sender in range(world.size)])
    return int((found != wanted).sum())


def main() -> None:
    """One line an exchange, from rank 0."""
    world = MPI.COMM_WORLD
    for name, exchange in (("ping-pong", ping_pong), ("all-to-all", all_to_all)):
        for size in SIZES:
            wrong = world.allreduce(exchange(world, size))
            if world.rank == 0:
                print(f"{name} {size} bytes, {wrong} wrong", flush=True)


main()
