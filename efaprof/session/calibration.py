"""Loops of remote writes between two processes of this host: the raw rows of a profile.

Run as a program it is one of the two: `python -m efaprof.session.calibration PLAN RANK DESCRIPTOR`. Rank 0 writes and
prints a JSON line per loop; rank 1 lends its memory and drives progress. They talk over a socket.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
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

    from efaprof.libfabric import AddressVector, CompletionQueue, Domain, Endpoint, Info, MemoryRegion, RemoteMemory

SIZES = (64, 1024, 4096, 65_536, 1 << 20)
WINDOWS = (1, 4, 16, 64, 256)
MOST_IN_FLIGHT_BYTES = 16 << 20  # three times what 400 Gb/s carry in 100 µs; a slow fabric must drain it too
TIMEOUT_S = 60.0
_GRACE_S = 5.0
_HELLO_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure; `libfabric` is a path, or empty for the one that offers the provider."""

    provider: str
    libfabric: str = ""
    sizes: tuple[int, ...] = SIZES
    windows: tuple[int, ...] = WINDOWS
    duration_ms: int = 100

    @property
    def loops(self) -> tuple[tuple[int, int], ...]:
        """(size, window) of the loops to run, in order."""
        return tuple(
            (size, window)
            for size in self.sizes
            for window in self.windows
            if window == 1 or size * window <= MOST_IN_FLIGHT_BYTES
        )


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
        argv = [sys.executable, "-m", "efaprof.session.calibration", json.dumps(asdict(plan)), str(rank)]
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


def main(plan: Plan, rank: int, descriptor: int) -> None:
    """One of the two processes."""
    from efaprof import libfabric as fi

    library = fi.open(plan.libfabric or None, provider=plan.provider)
    caps = fi.Cap.MSG | fi.Cap.RMA
    mode = fi.READY_MODE | fi.Mode.RX_CQ_DATA
    info = library.getinfo(provider=plan.provider, caps=caps, ep_type=fi.EpType.RDM, mode=mode)[0]
    room = bytearray(max(plan.sizes))
    wire = socket.socket(fileno=descriptor)
    wire.settimeout(TIMEOUT_S)
    with (
        library.fabric(info) as fabric,
        fabric.domain() as domain,
        domain.cq(size=max(plan.windows)) as cq,
        domain.av(count=2) as av,
        domain.endpoint(av=av, cq=cq) as endpoint,
        domain.register(room) as region,
    ):
        remote = _exchange(wire, endpoint, region, av)
        if rank == 0:
            _write(plan, info, domain, endpoint, cq, room, remote)
            wire.sendall(b"e")
        else:
            _serve(wire, cq)


def _exchange(
    wire: socket.socket, endpoint: Endpoint, region: MemoryRegion, av: AddressVector
) -> tuple[int, RemoteMemory]:
    """Tell the other who and where we are; its number and memory."""
    from efaprof.libfabric import RemoteMemory

    own = region.remote
    hello = {"address": endpoint.address.hex(), "memory": [own.address, own.key, own.length]}
    wire.sendall(json.dumps(hello).encode().ljust(_HELLO_BYTES))
    heard = b""
    while len(heard) < _HELLO_BYTES:
        more = wire.recv(_HELLO_BYTES - len(heard))
        if not more:
            raise EfaprofError("the other process ended before it said where it is")
        heard += more
    other = json.loads(heard)
    return av.insert(bytes.fromhex(other["address"])), RemoteMemory(*other["memory"])


def _write(
    plan: Plan, info: Info, domain: Domain, endpoint: Endpoint, cq: CompletionQueue, room: bytearray,
    other: tuple[int, RemoteMemory],
) -> None:  # fmt: skip
    from efaprof.libfabric.loop import write_loop

    peer, remote = other
    fingerprint = {
        "provider": plan.provider,
        "prov_name": str(info.fabric.prov_name),
        "libfabric": ".".join(map(str, endpoint.library.version)),
        "host": platform.node(),
    }
    # The first writes set connections up: they are nobody's rate.
    write_loop(domain, endpoint, cq, memoryview(room)[: min(plan.sizes)], to=peer, remote=remote, window=1,
               duration_ns=20_000_000)  # fmt: skip
    for size, asked in plan.loops:
        window = min(asked, info.tx.size)
        found = write_loop(
            domain, endpoint, cq, memoryview(room)[:size], to=peer, remote=remote,
            window=window, duration_ns=plan.duration_ms * 1_000_000,
        )  # fmt: skip
        row = LoopRow(size, window, found.completed, found.elapsed_ns, found.idle_ns)
        print(json.dumps({"row": asdict(row), "fingerprint": fingerprint}), flush=True)  # noqa: T201


def _serve(wire: socket.socket, cq: CompletionQueue) -> None:
    """Drive progress until the writer is done."""
    wire.settimeout(0)
    while True:
        cq.read()
        with contextlib.suppress(BlockingIOError):
            wire.recv(1)
            return


def emulated() -> tuple[str, ...]:
    """What of this fabric is emulated, as the emulated device says it of itself."""
    return tuple(filter(None, os.environ.get(env.EMULATED, "").split(";")))


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    try:
        main(
            Plan(**{**given, "sizes": tuple(given["sizes"]), "windows": tuple(given["windows"])}),
            int(sys.argv[2]), int(sys.argv[3]),
        )  # fmt: skip
    except EfaprofError as error:
        sys.exit(error.message)
