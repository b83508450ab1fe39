"""What the NICs say they moved while a run was recorded, held against what its operations asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_NAME = re.compile(r"nic\.(?P<device>.+)\.(?P<counter>[^.]+)")
_RATE = "rate_bytes_s"
# Counters of bytes on the wire, and bytes per unit: the kernel counts InfiniBand data in words of four bytes.
_SENT = {"tx_bytes": 1, "port_xmit_data": 4}
_RECEIVED = {"rx_bytes": 1, "port_rcv_data": 4}
LOOPBACK = "lo"
# Headers, acknowledgements and other programs may add this much before counters and operations disagree.
EXTRA_SHARE = 0.10
EXTRA_PER_OPERATION = 256
EXTRA_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Device:
    """Change of one NIC's counters over the run; None where it has no such counter."""

    name: str
    sent_bytes: int | None
    received_bytes: int | None
    line_rate_bytes_s: int | None


@dataclass(frozen=True, slots=True)
class Asked:
    """What the operations asked the NICs to move."""

    sent_bytes: int  # sends, writes, atomics
    fetched_bytes: int  # reads
    operations: int


@dataclass(frozen=True, slots=True)
class Movement:
    """The devices that the run is held against, and whether they moved the right number of bytes."""

    devices: tuple[str, ...]
    sent_bytes: int | None
    received_bytes: int | None
    line_rate_bytes_s: int | None
    agrees: bool | None  # None: nothing to compare


def devices_of(counters: pl.LazyFrame) -> tuple[Device, ...]:
    """NICs with sampled counters. Needs `name`, `time_ns`, `value`, in order of time."""
    ends = (
        counters.filter(pl.col("name").cast(pl.String).str.starts_with("nic."))
        .group_by(pl.col("name").cast(pl.String))
        .agg(first=pl.col("value").first(), last=pl.col("value").last())
        .sort("name")
        .collect()
    )
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for name, first, last in ends.iter_rows():
        if match := _NAME.fullmatch(name):
            found.setdefault(match["device"], {})[match["counter"]] = (first, last)
    return tuple(
        Device(name, _moved(values, _SENT), _moved(values, _RECEIVED), values[_RATE][1] if _RATE in values else None)
        for name, values in found.items()
    )


def _moved(values: Mapping[str, tuple[int, int]], counters: Mapping[str, int]) -> int | None:
    for counter, unit in counters.items():
        if counter in values:
            first, last = values[counter]
            return (last - first) * unit
    return None


def movement(devices: Sequence[Device], domains: Collection[str], asked: Asked) -> Movement | None:
    """The run against its NICs: those that its libfabric domains name, else the loopback, else all of them.

    Two processes of one host may meet on the loopback whatever their domain says, so where the named devices did not
    move the bytes and the loopback did, it is the one. None when no NIC was sampled.
    """
    named = [device for device in devices if any(_is_named(device.name, domain) for domain in domains)]
    loopback = [device for device in devices if device.name == LOOPBACK]
    choices = [chosen for chosen in (named, loopback) if chosen] or [[d for d in devices if d.name != LOOPBACK]]
    held = [_held_against(chosen, asked) for chosen in choices if chosen]
    return next((one for one in held if one.agrees), held[0] if held else None)


def _is_named(device: str, domain: str) -> bool:
    """Domains are called like their device, EFA's with a suffix ("rdmap0s6-rdm")."""
    own = device.split("/")[0]
    return domain == own or domain.startswith(f"{own}-")


def _held_against(devices: Sequence[Device], asked: Asked) -> Movement:
    sent = _sum([device.sent_bytes for device in devices])
    received = _sum([device.received_bytes for device in devices])
    verdicts = [
        _is_right(moved, wanted, asked.operations)
        for moved, wanted in ((sent, asked.sent_bytes), (received, asked.fetched_bytes))
        if moved is not None and wanted
    ]
    return Movement(
        devices=tuple(device.name for device in devices),
        sent_bytes=sent,
        received_bytes=received,
        line_rate_bytes_s=_sum([device.line_rate_bytes_s for device in devices]),
        agrees=all(verdicts) if verdicts else None,
    )


def _is_right(moved: int, asked: int, operations: int) -> bool:
    return asked <= moved <= asked * (1 + EXTRA_SHARE) + EXTRA_PER_OPERATION * operations + EXTRA_BYTES


def _sum(values: Sequence[int | None]) -> int | None:
    """Sum, unknown as soon as one part is."""
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None
