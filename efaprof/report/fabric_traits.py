"""What of a provider's properties matters for dispatch, as reported here or as documented elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from efaprof.libfabric import AtomicKind, Cap, Datatype, MrMode, Op, Order, Protocol
from efaprof.libfabric.words import AtomicOp
from efaprof.report import units
from efaprof.trace.layers import Provenance

if TYPE_CHECKING:
    from efaprof.libfabric.survey import Atomics, Offer


class Property(StrEnum):
    """The rows of the property table."""

    ORDERING = "ordering"
    ATOMICS = "atomics"
    IMMEDIATE = "write with immediate"
    COMPLETION = "completion"
    GPU = "GPU-initiated posting"
    MEMORY = "memory registration"
    GATHER = "scatter-gather"
    MULTIPATH = "multipath"


class Paths(StrEnum):
    """How the traffic of one endpoint to one peer crosses the network."""

    SPRAYED = "sprayed"
    SINGLE = "single"
    NONE = "none"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Traits:
    """What a dispatch path has to know."""

    keeps_writes: bool  # a later write lands after an earlier one
    keeps_sends: bool  # a later message is received after an earlier write landed
    adds: bool | None  # fetches and adds 64-bit counters; None: not known
    immediate_bytes: int
    immediate_takes_receive: bool
    confirms_delivery: bool
    posts_from_gpu: bool | None  # None: not known
    registers_by_endpoint: bool
    needs_local_registration: bool
    pieces: int  # local pieces of one write
    paths: Paths


@dataclass(frozen=True, slots=True)
class Value:
    """A cell: what is said, how it is known, and from where."""

    text: str
    provenance: Provenance
    source: str


_PATHS = {
    Protocol.EFA: Paths.SPRAYED,
    Protocol.RDMA_CM_IB_RC: Paths.SINGLE,
    Protocol.RDMA_CM_IB_XRC: Paths.SINGLE,
    Protocol.IWARP: Paths.SINGLE,
    Protocol.SOCK_TCP: Paths.SINGLE,
    Protocol.RXM: Paths.SINGLE,
    Protocol.RXM_TCP: Paths.SINGLE,
    Protocol.XNET: Paths.SINGLE,
    Protocol.UDP: Paths.SINGLE,
    Protocol.RXD: Paths.SINGLE,
    Protocol.SHM: Paths.NONE,
    Protocol.SM2: Paths.NONE,
}
_PATH_TEXT = {
    Paths.SPRAYED: "packets sprayed over many paths",
    Paths.SINGLE: "one path a connection",
    Paths.NONE: "none: stays on this host",
    Paths.UNKNOWN: "not reported",
}
UNLIMITED = 1 << 62  # bytes: SIZE_MAX, less what some providers set aside
_ONE_PIECE_A_WRITE = frozenset({"efa-direct"})  # iov_limit is its sends'; a write of two pieces is refused when posted


def traits_of(offer: Offer) -> Traits:
    """The traits of a provider, of what it reported."""
    info = offer.info
    order, mode = info.tx.msg_order, info.domain.mr_mode
    has_writes = Cap.RMA in info.caps
    return Traits(
        keeps_writes=has_writes and bool(order & (Order.WAW | Order.RMA_WAW)) and info.ep.max_order_waw_size > 0,
        keeps_sends=has_writes and bool(order & Order.SAW),
        adds=_adds(offer),
        immediate_bytes=info.domain.cq_data_size if has_writes else 0,
        immediate_takes_receive=bool(offer.immediate_takes_receive),
        confirms_delivery=Op.DELIVERY_COMPLETE in offer.levels,
        posts_from_gpu=offer.has_gda_ops,
        registers_by_endpoint=MrMode.ENDPOINT in mode,
        needs_local_registration=MrMode.LOCAL in mode,
        pieces=1 if offer.name in _ONE_PIECE_A_WRITE else info.tx.iov_limit,
        paths=_PATHS.get(info.ep.protocol, Paths.UNKNOWN),
    )


def _adds(offer: Offer) -> bool | None:
    if offer.atomics is None:
        return None
    fetch = next(one for one in offer.atomics if one.kind == AtomicKind.FETCH)
    return AtomicOp.SUM in fetch.operations and Datatype.UINT64 in fetch.datatypes


def values_of(offer: Offer) -> dict[Property, Value]:
    """The cells of a provider's column."""
    paths = _PATHS.get(offer.info.ep.protocol, Paths.UNKNOWN)
    return {
        Property.ORDERING: _measured(_ordering(offer), "tx_attr.msg_order, ep_attr.max_order_waw_size"),
        Property.ATOMICS: _atomics(offer),
        Property.IMMEDIATE: _measured(_immediate(offer), "domain_attr.cq_data_size, fi_getinfo without FI_RX_CQ_DATA"),
        Property.COMPLETION: _measured(_completion(offer), "fi_getinfo with each level asked, tx_attr.comp_order"),
        Property.GPU: _gpu(offer),
        Property.MEMORY: _measured(_memory(offer), "domain_attr.mr_mode, mr_key_size; a domain is one NIC"),
        Property.GATHER: _measured(_gather(offer), "tx_attr.iov_limit, rma_iov_limit"),
        Property.MULTIPATH: Value(
            _PATH_TEXT[paths],
            Provenance.ASSUMED,
            f"libfabric does not report it: known of protocol {offer.info.ep.protocol.name}",
        ),
    }


def _measured(text: str, source: str) -> Value:
    return Value(text, Provenance.MEASURED, source)


def _ordering(offer: Offer) -> str:
    order = offer.info.tx.msg_order
    kept = [one.name for one in (Order.WAW, Order.RMA_WAW, Order.SAW, Order.SAS, Order.RAW) if order & one and one.name]
    if not kept:
        return "none"
    if Order.WAW in order and Order.RMA_WAW in order:
        kept.remove("RMA_WAW")
    limit = offer.info.ep.max_order_waw_size
    if {"WAW", "RMA_WAW"} & set(kept) and limit < UNLIMITED:
        kept.append(f"(writes ≤ {units.size(limit)})")
    return " ".join(kept)


def _atomics(offer: Offer) -> Value:
    if offer.atomics is None:
        return Value("not asked: the domain did not open", Provenance.MEASURED, "fi_domain")
    return _measured(_atomics_text(offer.atomics), "fi_query_atomic, every operation and datatype")


def _atomics_text(atomics: tuple[Atomics, ...]) -> str:
    base, fetch, compare = atomics
    if not any(one.pairs for one in atomics):
        return "none"
    counts = f"{len(base.operations)} base, {len(fetch.operations)} fetch, {len(compare.operations)} compare"
    return f"{counts}; ≤ {max(one.largest for one in atomics)} elements"


def _immediate(offer: Offer) -> str:
    if Cap.RMA not in offer.info.caps:
        return "no remote writes"
    if offer.info.domain.cq_data_size == 0:
        return "none"
    takes = "takes a receive" if offer.immediate_takes_receive else "takes no receive"
    return f"{offer.info.domain.cq_data_size} B, {takes}"


def _completion(offer: Offer) -> str:
    levels = [level.name.removesuffix("_COMPLETE").lower() for level in offer.levels if level.name]
    in_order = "in order" if offer.info.tx.comp_order & Order(0x1FF) else "in any order"
    return f"{', '.join(levels) or 'no level'}; {in_order}"


def _gpu(offer: Offer) -> Value:
    if offer.has_gda_ops is None:
        return Value("not asked: the domain did not open", Provenance.MEASURED, "fi_domain")
    memory = "GPU memory" if Cap.HMEM in offer.info.caps else "no GPU memory"
    return _measured(
        f"GDA functions, {memory}" if offer.has_gda_ops else f"no; {memory}",
        'fi_open_ops "efa gda ops", caps FI_HMEM',
    )


def _memory(offer: Offer) -> str:
    domain = offer.info.domain
    modes = [name for name in domain.mr_mode.names if name != "HMEM"]
    scope = "endpoint" if MrMode.ENDPOINT in domain.mr_mode else "domain"
    return f"per {scope}, {domain.mr_key_size} B key" + (f"; {' '.join(modes)}" if modes else "")


def _gather(offer: Offer) -> str:
    tx = offer.info.tx
    remote = f", {tx.rma_iov_limit} remote" if Cap.RMA in offer.info.caps else ""
    if offer.name in _ONE_PIECE_A_WRITE:
        return f"{tx.iov_limit} local ({units.ASSUMED} 1 of a write){remote}"
    return f"{tx.iov_limit} local{remote}"
