"""Endpoints: posting messages, tagged messages and operations on remote memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from efaprof.libfabric.cdef import ffi
from efaprof.libfabric.errors import FabricError
from efaprof.libfabric.handle import Handle, check_open, new_handle
from efaprof.libfabric.inflight import Pending
from efaprof.libfabric.words import Cap

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

    from efaprof.libfabric.info import Info
    from efaprof.libfabric.objects import AddressVector, Domain, RemoteMemory
    from efaprof.libfabric.queue import CompletionQueue

ANY_PEER = (1 << 64) - 1  # FI_ADDR_UNSPEC
_ADDRESS_BYTES = 512


class Endpoint(Handle):
    """A connectionless endpoint (RDM or DGRAM), enabled.

    Every operation but the injects completes on the queue with the `context` that it was given, any object; its buffer
    is kept alive until then. TryAgain means that a queue is full: read completions, which also drives the transfer
    where the provider's progress is MANUAL. Memory must be registered where mr_mode says so; descriptors are found.
    """

    noun = "endpoint"

    def __init__(
        self, domain: Domain, info: Info, av: AddressVector, cq: CompletionQueue, rx_cq: CompletionQueue
    ) -> None:
        """Open, bind and enable an endpoint of `domain`."""
        check_open(domain, av, cq, rx_cq)
        library, raw = domain.library, new_handle()
        library.check("fi_endpoint", library.shim.efaprof_fi_endpoint(domain.raw, info.raw, raw))
        super().__init__(library, raw[0], (domain, av, cq) if cq is rx_cq else (domain, av, cq, rx_cq))
        self.info, self._domain, self._shim = info, domain, library.shim
        both = cq is rx_cq
        try:
            self._call("ep_bind to the address vector", "ep_bind", av.raw, 0)
            self._call("ep_bind to the queue", "ep_bind", cq.raw, Cap.SEND | (Cap.RECV if both else Cap.NONE))
            if not both:
                self._call("ep_bind to the receive queue", "ep_bind", rx_cq.raw, Cap.RECV)
            self._call("enable", "enable")
        except FabricError:
            self.close()
            raise

    @property
    def address(self) -> bytes:
        """Its address, to be told to peers."""
        room, size = ffi().new(f"char[{_ADDRESS_BYTES}]"), ffi().new("size_t *", _ADDRESS_BYTES)
        self._call("getname", "getname", room, size)
        return bytes(ffi().buffer(room, size[0]))

    def close(self) -> None:
        """Close it; what it had in flight will not complete."""
        super().close()
        self._domain.in_flight.forget(self)

    def cancel(self, context: object) -> None:
        """Cancel the operation that was posted with this very object; it then completes in error ECANCELED."""
        raw = self._domain.in_flight.find(context, self)
        if raw is None:
            raise FabricError("no operation with this context is in flight")
        self._call("cancel", "cancel", raw)

    def send(self, buffer: ReadableBuffer, *, to: int, data: int | None = None, context: object = None) -> None:
        """Post a message to the peer `to`, with immediate `data` when given."""
        if data is None:
            self._post("send", buffer, context, to)
        else:
            self._post("senddata", buffer, context, data, to)

    def recv(self, buffer: WriteableBuffer, *, source: int = ANY_PEER, context: object = None) -> None:
        """Post memory for a message, from `source` alone when given (needs DIRECTED_RECV)."""
        self._post("recv", buffer, context, source, writes=True)

    def inject(self, buffer: ReadableBuffer, *, to: int) -> None:
        """Send a message of at most `info.tx.inject_size` bytes; nothing completes, the buffer is free at once."""
        self._inject("inject", buffer, to)

    def tagged_send(
        self, buffer: ReadableBuffer, *, to: int, tag: int, data: int | None = None, context: object = None
    ) -> None:
        """Post a tagged message, with immediate `data` when given."""
        if data is None:
            self._post("tsend", buffer, context, to, tag)
        else:
            self._post("tsenddata", buffer, context, data, to, tag)

    def tagged_recv(
        self, buffer: WriteableBuffer, *, tag: int, ignore: int = 0, source: int = ANY_PEER, context: object = None
    ) -> None:
        """Post memory for a message with this tag; bits set in `ignore` may differ."""
        self._post("trecv", buffer, context, source, tag, ignore, writes=True)

    def tagged_inject(self, buffer: ReadableBuffer, *, to: int, tag: int) -> None:
        """Send a tagged message of at most `info.tx.inject_size` bytes; nothing completes."""
        self._inject("tinject", buffer, to, tag)

    def write(self, buffer: ReadableBuffer, *, to: int, remote: RemoteMemory, context: object = None) -> None:
        """Post a write of the buffer to the start of `remote`."""
        _check_room(buffer, remote)
        self._post("write", buffer, context, to, remote.address, remote.key)

    def writedata(
        self, buffer: ReadableBuffer, *, to: int, remote: RemoteMemory, data: int, context: object = None
    ) -> None:
        """Post a write with immediate `data`, which completes at the peer (REMOTE_WRITE, REMOTE_CQ_DATA)."""
        _check_room(buffer, remote)
        self._post("writedata", buffer, context, data, to, remote.address, remote.key)

    def inject_write(self, buffer: ReadableBuffer, *, to: int, remote: RemoteMemory, data: int | None = None) -> None:
        """Write at most `info.tx.inject_size` bytes, with immediate `data` when given; nothing completes here."""
        _check_room(buffer, remote)
        if data is None:
            self._inject("inject_write", buffer, to, remote.address, remote.key)
        else:
            self._inject("inject_writedata", buffer, data, to, remote.address, remote.key)

    def read(self, buffer: WriteableBuffer, *, source: int, remote: RemoteMemory, context: object = None) -> None:
        """Post a read of the start of `remote` at the peer `source` into the buffer."""
        _check_room(buffer, remote)
        self._post("read", buffer, context, source, remote.address, remote.key, writes=True)

    def _post(self, name: str, buffer: ReadableBuffer, context: object, *arguments: int, writes: bool = False) -> None:
        """Call one of the shim's operations: all take (ep, memory, bytes, descriptor, …, context)."""
        raw, memory = self.raw, ffi().from_buffer(buffer, require_writable=writes)
        desc = self._domain.descriptor(int(ffi().cast("uintptr_t", memory)), len(memory))
        slot = self._domain.in_flight.add(Pending(context, memory, self))
        call = getattr(self._shim, f"efaprof_fi_{name}")
        result = call(raw, memory, len(memory), desc, *arguments, slot)
        if result < 0:
            self._domain.in_flight.take(slot)
            self.library.check(f"fi_{name}", result)

    def _inject(self, name: str, buffer: ReadableBuffer, *arguments: int) -> None:
        memory = ffi().from_buffer(buffer)
        self._call(name, name, memory, len(memory), *arguments)

    def _call(self, what: str, name: str, *arguments: Any) -> int:
        return self.library.check(f"fi_{what}", getattr(self._shim, f"efaprof_fi_{name}")(self.raw, *arguments))


def _check_room(buffer: ReadableBuffer, remote: RemoteMemory) -> None:
    length = memoryview(buffer).nbytes
    if length > remote.length:
        raise ValueError(f"{length} bytes do not fit the remote memory of {remote.length}")
