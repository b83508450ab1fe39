"""What a provider offers: `struct fi_info` and its attributes as values.

Sizes are bytes. `None` stands for what the library's version does not have; libfabric's own "unlimited" is SIZE_MAX.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from efaprof.libfabric.cdef import APPENDED_TO_DOMAIN, ffi
from efaprof.libfabric.words import (
    AddrFormat,
    AvType,
    Cap,
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
)

SIZE_MAX = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class TxAttr:
    """Transmit side of an endpoint."""

    caps: Cap
    mode: Mode
    op_flags: Op
    msg_order: Order
    comp_order: Order
    inject_size: int
    size: int
    iov_limit: int
    rma_iov_limit: int
    tclass: int


@dataclass(frozen=True, slots=True)
class RxAttr:
    """Receive side of an endpoint."""

    caps: Cap
    mode: Mode
    op_flags: Op
    msg_order: Order
    comp_order: Order
    total_buffered_recv: int
    size: int
    iov_limit: int


@dataclass(frozen=True, slots=True)
class EpAttr:
    """An endpoint."""

    type: EpType
    protocol: Protocol
    protocol_version: int
    max_msg_size: int
    msg_prefix_size: int
    max_order_raw_size: int
    max_order_war_size: int
    max_order_waw_size: int
    mem_tag_format: int
    tx_ctx_cnt: int
    rx_ctx_cnt: int
    auth_key_size: int


@dataclass(frozen=True, slots=True)
class DomainAttr:
    """A domain: what a NIC is to libfabric."""

    name: str
    threading: Threading
    control_progress: Progress
    data_progress: Progress
    resource_mgmt: ResourceMgmt
    av_type: AvType
    mr_mode: MrMode
    mr_key_size: int
    cq_data_size: int
    cq_cnt: int
    ep_cnt: int
    tx_ctx_cnt: int
    rx_ctx_cnt: int
    max_ep_tx_ctx: int
    max_ep_rx_ctx: int
    max_ep_stx_ctx: int
    max_ep_srx_ctx: int
    cntr_cnt: int
    mr_iov_limit: int
    caps: Cap
    mode: Mode
    auth_key_size: int
    max_err_data: int
    mr_cnt: int
    tclass: int
    max_ep_auth_key: int | None  # since 1.20
    max_group_id: int | None  # since 2.0
    max_cntr_value: int | None  # since 2.5
    max_err_cntr_value: int | None  # since 2.5


@dataclass(frozen=True, slots=True)
class FabricAttr:
    """The network that a provider reaches."""

    name: str
    prov_name: str
    prov_version: int
    api_version: int


@dataclass(frozen=True, slots=True)
class NicAttr:
    """The device behind a domain, where the provider names one; texts are "" where it does not."""

    name: str
    device_id: str
    device_version: str
    vendor_id: str
    driver: str
    firmware: str
    address: str
    mtu: int
    speed_bits_s: int
    state: LinkState
    network_type: str


@dataclass(frozen=True, slots=True)
class Info:
    """One way to communicate that a provider offers; opens fabrics, domains and endpoints."""

    caps: Cap
    mode: Mode
    addr_format: AddrFormat
    src_addr: bytes
    dest_addr: bytes
    tx: TxAttr
    rx: RxAttr
    ep: EpAttr
    domain: DomainAttr
    fabric: FabricAttr
    nic: NicAttr | None
    raw: Any = field(default=None, repr=False, compare=False)  # struct fi_info *, a copy that this object owns

    @property
    def name(self) -> str:
        """The provider as people say it: `efa-direct` is a fabric of the provider `efa`."""
        return offered_name(self.fabric.prov_name, self.fabric.name)


def offered_name(provider: str, fabric: str) -> str:
    """The provider as people say it, of its own name and its fabric's."""
    return fabric if provider == "efa" and fabric == "efa-direct" else provider


def read_info(raw: Any, version: tuple[int, int]) -> Info:
    """The values of a `struct fi_info *` of a libfabric of this version."""
    return Info(
        caps=Cap(raw.caps),
        mode=Mode(raw.mode),
        addr_format=AddrFormat(raw.addr_format),
        src_addr=_bytes(raw.src_addr, raw.src_addrlen),
        dest_addr=_bytes(raw.dest_addr, raw.dest_addrlen),
        tx=_read_tx(raw.tx_attr),
        rx=_read_rx(raw.rx_attr),
        ep=_read_ep(raw.ep_attr),
        domain=_read_domain(raw.domain_attr, version),
        fabric=_read_fabric(raw.fabric_attr),
        nic=_read_nic(raw.nic),
        raw=raw,
    )


def _read_tx(raw: Any) -> TxAttr:
    return TxAttr(
        **_ways(raw),
        inject_size=raw.inject_size,
        size=raw.size,
        iov_limit=raw.iov_limit,
        rma_iov_limit=raw.rma_iov_limit,
        tclass=raw.tclass,
    )


def _read_rx(raw: Any) -> RxAttr:
    return RxAttr(
        **_ways(raw), total_buffered_recv=raw.total_buffered_recv, size=raw.size, iov_limit=raw.iov_limit
    )  # fmt: skip


def _ways(raw: Any) -> dict[str, Any]:
    return {
        "caps": Cap(raw.caps),
        "mode": Mode(raw.mode),
        "op_flags": Op(raw.op_flags),
        "msg_order": Order(raw.msg_order),
        "comp_order": Order(raw.comp_order),
    }


_EP_NUMBERS = (
    "protocol_version", "max_msg_size", "msg_prefix_size", "max_order_raw_size", "max_order_war_size",
    "max_order_waw_size", "mem_tag_format", "tx_ctx_cnt", "rx_ctx_cnt", "auth_key_size",
)  # fmt: skip


def _read_ep(raw: Any) -> EpAttr:
    return EpAttr(EpType(raw.type), Protocol(raw.protocol), **{name: getattr(raw, name) for name in _EP_NUMBERS})


_DOMAIN_NUMBERS = (
    "mr_key_size", "cq_data_size", "cq_cnt", "ep_cnt", "tx_ctx_cnt", "rx_ctx_cnt", "max_ep_tx_ctx", "max_ep_rx_ctx",
    "max_ep_stx_ctx", "max_ep_srx_ctx", "cntr_cnt", "mr_iov_limit", "auth_key_size", "max_err_data", "mr_cnt", "tclass",
)  # fmt: skip


def _read_domain(raw: Any, version: tuple[int, int]) -> DomainAttr:
    appended: dict[str, Any] = {
        name: getattr(raw, name) if version >= since else None for name, since in APPENDED_TO_DOMAIN.items()
    }
    return DomainAttr(
        name=_text(raw.name),
        threading=Threading(raw.threading),
        control_progress=Progress(raw.control_progress),
        data_progress=Progress(raw.data_progress),
        resource_mgmt=ResourceMgmt(raw.resource_mgmt),
        av_type=AvType(raw.av_type),
        mr_mode=MrMode(raw.mr_mode & 0xFFFF_FFFF),
        caps=Cap(raw.caps),
        mode=Mode(raw.mode),
        **{name: getattr(raw, name) for name in _DOMAIN_NUMBERS},
        **appended,
    )


def _read_fabric(raw: Any) -> FabricAttr:
    return FabricAttr(_text(raw.name), _text(raw.prov_name), raw.prov_version, raw.api_version)


def _read_nic(raw: Any) -> NicAttr | None:
    if not raw:
        return None
    device, link = raw.device_attr, raw.link_attr
    parts = ("name", "device_id", "device_version", "vendor_id", "driver", "firmware")
    return NicAttr(
        **{name: _text(getattr(device, name)) if device else "" for name in parts},
        address=_text(link.address) if link else "",
        mtu=link.mtu if link else 0,
        speed_bits_s=link.speed if link else 0,
        state=LinkState(link.state if link else 0),
        network_type=_text(link.network_type) if link else "",
    )


def _text(raw: Any) -> str:
    return ffi().string(raw).decode(errors="replace") if raw else ""


def _bytes(raw: Any, length: int) -> bytes:
    return bytes(ffi().buffer(raw, length)) if raw else b""
