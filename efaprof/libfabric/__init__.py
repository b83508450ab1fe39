"""A typed binding to libfabric 1.17 and later, for reading what it offers and for moving data with it.

    from efaprof import libfabric as fi

    library = fi.open(provider="tcp")
    info = library.getinfo(provider="tcp", caps=fi.Cap.MSG | fi.Cap.RMA, ep_type=fi.EpType.RDM)[0]
    with (
        library.fabric(info) as fabric,
        fabric.domain() as domain,
        domain.cq() as cq,
        domain.av() as av,
        domain.endpoint(av=av, cq=cq) as endpoint,
        domain.register(bytearray(4096)) as region,
    ):
        ...

Objects close in the reverse order of their opening, as nested `with` does; closing one that another needs raises
StillInUse. Names are libfabric's, without `FI_`. Errors are FabricError and carry libfabric's code and text, those of
completions the provider's too. Attributes are read from the library's own structs by cffi; objects need the compiled
inlines of libefaprof-fishim.so, which is built where libfabric's headers are (Debian: libfabric-dev).

Not covered: connected endpoints and event queues, multi-receive buffers, counters, vectors of buffers (`*v`, `*msg`),
atomics other than asking for them, memory of GPUs, collectives, keys beyond 64 bits.
"""

from __future__ import annotations

from efaprof.libfabric.endpoint import ANY_PEER, Endpoint
from efaprof.libfabric.errors import (
    Closed,
    CompletionError,
    FabricError,
    NoLibfabric,
    NothingOffered,
    StillInUse,
    TryAgain,
)
from efaprof.libfabric.info import SIZE_MAX, DomainAttr, EpAttr, FabricAttr, Info, NicAttr, RxAttr, TxAttr
from efaprof.libfabric.library import READY_MODE, READY_MR_MODE, Libfabric, open_libfabric
from efaprof.libfabric.objects import ANY_ACCESS, AddressVector, Domain, Fabric, MemoryRegion, RemoteMemory
from efaprof.libfabric.queue import Completion, CompletionQueue
from efaprof.libfabric.words import (
    AddrFormat,
    AtomicKind,
    AtomicOp,
    AvType,
    Cap,
    CqFormat,
    Datatype,
    EpType,
    LinkState,
    Mode,
    MrMode,
    Op,
    Order,
    Progress,
    Protocol,
    ResourceMgmt,
    Threading,
    WaitObj,
)

open = open_libfabric  # noqa: A001 the name that a caller reads: libfabric.open

__all__ = [
    "ANY_ACCESS",
    "ANY_PEER",
    "READY_MODE",
    "READY_MR_MODE",
    "SIZE_MAX",
    "AddrFormat",
    "AddressVector",
    "AtomicKind",
    "AtomicOp",
    "AvType",
    "Cap",
    "Closed",
    "Completion",
    "CompletionError",
    "CompletionQueue",
    "CqFormat",
    "Datatype",
    "Domain",
    "DomainAttr",
    "Endpoint",
    "EpAttr",
    "EpType",
    "Fabric",
    "FabricAttr",
    "FabricError",
    "Info",
    "Libfabric",
    "LinkState",
    "MemoryRegion",
    "Mode",
    "MrMode",
    "NicAttr",
    "NoLibfabric",
    "NothingOffered",
    "Op",
    "Order",
    "Progress",
    "Protocol",
    "RemoteMemory",
    "ResourceMgmt",
    "RxAttr",
    "StillInUse",
    "Threading",
    "TryAgain",
    "TxAttr",
    "WaitObj",
    "open",
    "open_libfabric",
]
