"""Fabrics, domains, address vectors and registered memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from efaprof.libfabric.cdef import ffi
from efaprof.libfabric.errors import FabricError
from efaprof.libfabric.handle import Handle, check_open, new_handle
from efaprof.libfabric.inflight import InFlight
from efaprof.libfabric.words import AtomicKind, AtomicOp, AvType, Cap, CqFormat, Datatype, MrMode, WaitObj

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from efaprof.libfabric.endpoint import Endpoint
    from efaprof.libfabric.info import Info
    from efaprof.libfabric.library import Libfabric
    from efaprof.libfabric.queue import CompletionQueue

_ADDRESS_BYTES = 512
ANY_ACCESS = Cap.SEND | Cap.RECV | Cap.READ | Cap.WRITE | Cap.REMOTE_READ | Cap.REMOTE_WRITE


class Fabric(Handle):
    """The network that a provider reaches."""

    noun = "fabric"

    def __init__(self, library: Libfabric, info: Info) -> None:
        """Open the fabric of `info`."""
        _ = library.shim  # without it, what is opened could not be closed
        raw = ffi().new("struct fid_fabric **")
        library.check("fi_fabric", library.lib.fi_fabric(info.raw.fabric_attr, raw, ffi().NULL))
        super().__init__(library, ffi().cast("void *", raw[0]))
        self.info = info

    def domain(self, info: Info | None = None) -> Domain:
        """Open a domain: the one of the fabric's info, or of another info of the same fabric."""
        return Domain(self, info or self.info)


class Domain(Handle):
    """A NIC, or what stands for one: memory is registered with it, endpoints belong to it."""

    noun = "domain"

    def __init__(self, fabric: Fabric, info: Info) -> None:
        """Open the domain of `info`."""
        library, raw = fabric.library, new_handle()
        library.check("fi_domain", library.shim.efaprof_fi_domain(fabric.raw, info.raw, raw))
        super().__init__(library, raw[0], (fabric,))
        self.info = info
        self.in_flight = InFlight()
        self.regions: list[MemoryRegion] = []
        self._next_key = 1

    def av(self, av_type: AvType = AvType.UNSPEC, *, count: int = 0) -> AddressVector:
        """Open an address vector, for about `count` peers."""
        return AddressVector(self, av_type, count)

    def cq(self, *, size: int = 0, cq_format: CqFormat | None = None, wait: WaitObj = WaitObj.NONE) -> CompletionQueue:
        """Open a completion queue for `size` entries (0: the provider's default); `wait` is needed for sread.

        Without a format, the longest that the domain's info allows: TAGGED where it has tagged messages, else DATA.
        """
        from efaprof.libfabric.queue import CompletionQueue

        longest = CqFormat.TAGGED if Cap.TAGGED in self.info.caps else CqFormat.DATA
        return CompletionQueue(self, size, longest if cq_format is None else cq_format, wait)

    def endpoint(
        self, *, av: AddressVector, cq: CompletionQueue, rx_cq: CompletionQueue | None = None, info: Info | None = None
    ) -> Endpoint:
        """Open an endpoint bound to `av` and to `cq` (both ways, or transmits alone when `rx_cq` is given), enabled."""
        from efaprof.libfabric.endpoint import Endpoint

        return Endpoint(self, info or self.info, av, cq, rx_cq or cq)

    def register(
        self, buffer: WriteableBuffer, access: Cap = ANY_ACCESS, *, endpoint: Endpoint | None = None
    ) -> MemoryRegion:
        """Register writable memory for operations of this domain, and for peers that know its `remote`.

        The buffer must outlive the region. `endpoint` is needed where the provider's mr_mode has ENDPOINT.
        """
        key = self._next_key
        self._next_key += 1
        return MemoryRegion(self, buffer, access, key, endpoint)

    def descriptor(self, address: int, length: int) -> Any:
        """What the provider wants to know about local memory; NULL where nothing was registered there."""
        for region in self.regions:
            if region.address <= address and address + length <= region.address + region.length:
                return region.descriptor
        if MrMode.LOCAL in self.info.domain.mr_mode:
            raise FabricError(
                "the provider wants local memory registered (mr_mode LOCAL), and this is not",
                hint="register the buffer with the domain first",
            )
        return ffi().NULL

    def query_atomic(self, datatype: Datatype, op: AtomicOp, kind: AtomicKind = AtomicKind.BASE) -> int | None:
        """How many elements one atomic may have, or None when the provider does not have it."""
        count, size = ffi().new("size_t *"), ffi().new("size_t *")
        result = self.library.shim.efaprof_fi_query_atomic(self.raw, datatype, op, kind, count, size)
        return int(count[0]) if result == 0 and count[0] > 0 else None


class AddressVector(Handle):
    """Addresses of peers; operations name a peer by the number that `insert` returns."""

    noun = "address vector"

    def __init__(self, domain: Domain, av_type: AvType, count: int) -> None:
        """Open an address vector of `domain`."""
        library, raw = domain.library, new_handle()
        library.check("fi_av_open", library.shim.efaprof_fi_av_open(domain.raw, av_type, count, raw))
        super().__init__(library, raw[0], (domain,))

    def insert(self, address: bytes) -> int:
        """The number of the peer whose endpoint has this `address`."""
        number = ffi().new("uint64_t *")
        done = self.library.check("fi_av_insert", self._shim.efaprof_fi_av_insert(self.raw, address, number))
        if done != 1:
            raise FabricError(f"fi_av_insert: the provider took no address of {len(address)} bytes")
        return int(number[0])

    def remove(self, peer: int) -> None:
        """Forget a peer."""
        self.library.check("fi_av_remove", self._shim.efaprof_fi_av_remove(self.raw, peer))

    def lookup(self, peer: int) -> bytes:
        """The address of a peer."""
        room, size = ffi().new(f"char[{_ADDRESS_BYTES}]"), ffi().new("size_t *", _ADDRESS_BYTES)
        self.library.check("fi_av_lookup", self._shim.efaprof_fi_av_lookup(self.raw, peer, room, size))
        return bytes(ffi().buffer(room, min(size[0], _ADDRESS_BYTES)))

    def text(self, address: bytes) -> str:
        """An address in the provider's words."""
        room, size = ffi().new(f"char[{_ADDRESS_BYTES}]"), ffi().new("size_t *", _ADDRESS_BYTES)
        text = self._shim.efaprof_fi_av_straddr(self.raw, address, room, size)
        return str(ffi().string(text).decode(errors="replace")) if text else ""

    @property
    def _shim(self) -> Any:
        return self.library.shim


@dataclass(frozen=True, slots=True)
class RemoteMemory:
    """Memory that a peer registered, as it must be told: where an operation starts and the key that opens it."""

    address: int
    key: int
    length: int

    def at(self, offset: int, length: int | None = None) -> RemoteMemory:
        """A part of it."""
        rest = self.length - offset
        if offset < 0 or rest < 0 or (length is not None and not 0 <= length <= rest):
            raise ValueError(f"{offset} + {length} lies outside of {self.length} bytes")
        return RemoteMemory(self.address + offset, self.key, rest if length is None else length)


class MemoryRegion(Handle):
    """Registered memory."""

    noun = "memory region"

    def __init__(
        self, domain: Domain, buffer: WriteableBuffer, access: Cap, key: int, endpoint: Endpoint | None
    ) -> None:
        """Register `buffer` with `domain`."""
        mode = domain.info.domain.mr_mode
        if MrMode.RAW in mode:
            raise FabricError("this provider's keys do not fit 64 bits (mr_mode RAW): this binding cannot pass them on")
        if MrMode.ENDPOINT in mode and endpoint is None:
            raise FabricError("this provider registers with an endpoint (mr_mode ENDPOINT)", hint="give endpoint=")
        if endpoint is not None:
            check_open(endpoint)
        library, raw = domain.library, new_handle()
        self._memory = ffi().from_buffer(buffer, require_writable=True)
        self.length = len(self._memory)
        self.address = int(ffi().cast("uintptr_t", self._memory))
        asked = 0 if MrMode.PROV_KEY in mode else key
        result = library.shim.efaprof_fi_mr_reg(domain.raw, self._memory, self.length, access, asked, raw)
        library.check("fi_mr_reg", result)
        super().__init__(library, raw[0], (domain,) if endpoint is None else (domain, endpoint))
        self._domain, self._is_virtual = domain, MrMode.VIRT_ADDR in mode
        domain.regions.append(self)
        if endpoint is not None and MrMode.ENDPOINT in mode:
            self._bind(endpoint)

    def _bind(self, endpoint: Endpoint) -> None:
        library = self.library
        try:
            library.check("fi_mr_bind", library.shim.efaprof_fi_mr_bind(self.raw, endpoint.raw))
            library.check("fi_mr_enable", library.shim.efaprof_fi_mr_enable(self.raw))
        except FabricError:
            self.close()
            raise

    @property
    def remote(self) -> RemoteMemory:
        """What a peer needs to reach it."""
        key = int(self.library.shim.efaprof_fi_mr_key(self.raw))
        return RemoteMemory(self.address if self._is_virtual else 0, key, self.length)

    @property
    def descriptor(self) -> Any:
        """The local descriptor, a `void *`."""
        return self.library.shim.efaprof_fi_mr_desc(self.raw)

    def close(self) -> None:
        """Deregister."""
        super().close()
        if self in self._domain.regions:
            self._domain.regions.remove(self)
        self._memory = None
