"""One of the two processes of a calibration: `python -m efaprof.session.calibration_rank PLAN RANK DESCRIPTOR`.

Rank 0 writes and prints a JSON line per loop; rank 1 lends its memory and drives progress. They talk over a socket.
"""

from __future__ import annotations

import contextlib
import json
import platform
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from efaprof.analyzers.profile import LoopRow
from efaprof.errors import EfaprofError
from efaprof.session.calibration import Loop, Plan

if TYPE_CHECKING:
    from efaprof.libfabric import (
        AddressVector,
        CompletionQueue,
        Domain,
        Endpoint,
        Fabric,
        Info,
        MemoryRegion,
        RemoteMemory,
    )
    from efaprof.libfabric.loop import LoopResult

TIMEOUT_S = 60.0
_HELLO_BYTES = 8192


def main(plan: Plan, rank: int, descriptor: int) -> None:
    """One of the two processes."""
    from efaprof import libfabric as fi

    library = fi.open(plan.libfabric or None, provider=plan.provider)
    caps = fi.Cap.MSG | fi.Cap.RMA
    mode = fi.READY_MODE | fi.Mode.RX_CQ_DATA
    info = library.getinfo(provider=plan.provider, caps=caps, ep_type=fi.EpType.RDM, mode=mode)[0]
    wire = socket.socket(fileno=descriptor)
    wire.settimeout(TIMEOUT_S)
    with library.fabric(info) as fabric, contextlib.ExitStack() as opened:
        own = [_issuer(plan, fabric, opened) for _ in range(max(plan.threads) if rank == 0 else 1)]
        _exchange(wire, own)
        if rank == 0:
            _write(plan, info, own)
            wire.sendall(b"e")
        else:
            _serve(wire, own[0].cq)


@dataclass(slots=True)
class _Issuer:
    """What one thread writes with."""

    domain: Domain
    cq: CompletionQueue
    av: AddressVector
    endpoint: Endpoint
    region: MemoryRegion
    room: bytearray
    peer: int = 0
    remote: RemoteMemory | None = None

    def loop(self, size: int, window: int, duration_ns: int) -> LoopResult:
        """Write for so long."""
        from efaprof.libfabric.loop import write_loop

        assert self.remote is not None
        return write_loop(
            self.domain, self.endpoint, self.cq, memoryview(self.room)[:size], to=self.peer, remote=self.remote,
            window=window, duration_ns=duration_ns,
        )  # fmt: skip


def _issuer(plan: Plan, fabric: Fabric, opened: contextlib.ExitStack) -> _Issuer:
    domain = opened.enter_context(fabric.domain())
    cq = opened.enter_context(domain.cq(size=max(plan.windows)))
    av = opened.enter_context(domain.av(count=max(plan.threads) + 1))
    endpoint = opened.enter_context(domain.endpoint(av=av, cq=cq))
    room = bytearray(max(plan.sizes))
    return _Issuer(domain, cq, av, endpoint, opened.enter_context(domain.register(room)), room)


def _exchange(wire: socket.socket, own: list[_Issuer]) -> None:
    """Tell the other who and where we are; all of ours learn the first of theirs, the first of ours all of theirs."""
    from efaprof.libfabric import RemoteMemory

    memory = own[0].region.remote
    hello = {
        "addresses": [one.endpoint.address.hex() for one in own],
        "memory": [memory.address, memory.key, memory.length],
    }
    wire.sendall(json.dumps(hello).encode().ljust(_HELLO_BYTES))
    heard = b""
    while len(heard) < _HELLO_BYTES:
        more = wire.recv(_HELLO_BYTES - len(heard))
        if not more:
            raise EfaprofError("the other process ended before it said where it is")
        heard += more
    other = json.loads(heard)
    theirs = [bytes.fromhex(address) for address in other["addresses"]]
    for one in own:
        one.peer = one.av.insert(theirs[0])
        one.remote = RemoteMemory(*other["memory"])
    for address in theirs[1:]:
        own[0].av.insert(address)


def _write(plan: Plan, info: Info, own: list[_Issuer]) -> None:
    fingerprint = {
        "provider": plan.provider,
        "prov_name": str(info.fabric.prov_name),
        "libfabric": ".".join(map(str, own[0].endpoint.library.version)),
        "host": platform.node(),
    }
    # The first writes set connections up: they are nobody's rate.
    for one in own:
        one.loop(min(plan.sizes), 1, 20_000_000)
    with ThreadPoolExecutor(len(own)) as pool:
        for loop in plan.loops:
            window = min(loop.window, info.tx.size)
            begin = threading.Barrier(loop.threads)

            def run(
                one: _Issuer, loop: Loop = loop, begin: threading.Barrier = begin, window: int = window
            ) -> LoopResult:
                begin.wait()
                return one.loop(loop.size_bytes, window, plan.duration_ms * 1_000_000)

            row = _together(loop, window, list(pool.map(run, own[: loop.threads])))
            print(json.dumps({"row": asdict(row), "fingerprint": fingerprint}), flush=True)  # noqa: T201


def _together(loop: Loop, window: int, found: list[LoopResult]) -> LoopRow:
    """What all threads did in the longest of their times; idle is a thread's mean."""
    return LoopRow(
        size_bytes=loop.size_bytes,
        window=window,
        completed=sum(one.completed for one in found),
        elapsed_ns=max(one.elapsed_ns for one in found),
        idle_ns=sum(one.idle_ns for one in found) // len(found),
        threads=loop.threads,
    )


def _serve(wire: socket.socket, cq: CompletionQueue) -> None:
    """Drive progress until the writer is done."""
    wire.settimeout(0)
    while True:
        cq.read()
        with contextlib.suppress(BlockingIOError):
            wire.recv(1)
            return


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    try:
        main(
            Plan(**{**given, **{name: tuple(given[name]) for name in ("sizes", "windows", "threads")}}),
            int(sys.argv[2]), int(sys.argv[3]),
        )  # fmt: skip
    except EfaprofError as error:
        sys.exit(error.message)
