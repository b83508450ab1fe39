"""Remote writes at full speed: what the fabric takes, not what Python can issue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from efaprof.libfabric.cdef import ffi
from efaprof.libfabric.handle import check_open

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from efaprof.libfabric.endpoint import Endpoint
    from efaprof.libfabric.objects import Domain, RemoteMemory
    from efaprof.libfabric.queue import CompletionQueue

_CONTEXT_BYTES = 64
_DRAIN_NS = 20_000_000_000
_KEPT: list[object] = []  # what operations of a failed loop may still write into


@dataclass(frozen=True, slots=True)
class LoopResult:
    """What a loop did in its time."""

    completed: int  # local completions
    again: int  # posts that were refused with EAGAIN
    elapsed_ns: int
    idle_ns: int  # of it: nothing could be posted and nothing completed, so the issuer waited


def write_loop(
    domain: Domain,
    endpoint: Endpoint,
    cq: CompletionQueue,
    buffer: WriteableBuffer,
    *,
    to: int,
    remote: RemoteMemory,
    window: int,
    duration_ns: int,
) -> LoopResult:
    """Write the whole buffer to `remote` for this long, `window` at a time; nothing else may be in flight on `cq`.

    FabricError when a post or a completion fails, or when something never completes.
    """
    check_open(domain, endpoint, cq)
    memory = ffi().from_buffer(buffer)
    if len(memory) > remote.length or window < 1:
        raise ValueError(f"{len(memory)} bytes, {window} at a time, do not fit {remote.length} bytes of remote memory")
    desc = domain.descriptor(int(ffi().cast("uintptr_t", memory)), len(memory))
    contexts, free = ffi().new(f"char[{window * _CONTEXT_BYTES}]"), ffi().new(f"void *[{window}]")
    result = ffi().new("struct efaprof_fi_loop *")
    code = endpoint.library.shim.efaprof_fi_write_loop(
        endpoint.raw, cq.raw, cq.entry_bytes, memory, len(memory), desc, to, remote.address, remote.key, window,
        contexts, free, duration_ns, _DRAIN_NS, result,
    )  # fmt: skip
    if code != 0:
        _KEPT.append((contexts, free, memory))
    endpoint.library.check("fi_write", code)
    return LoopResult(*(int(getattr(result, name)) for name in ("completed", "again", "elapsed_ns", "idle_ns")))
