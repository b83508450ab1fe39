"""What the NICs say they moved while a run was recorded, held against what its operations asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from efaprof.analyzers.growth import Growth, growth

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_NAME = re.compile(r"nic\.(?P<device>.+)\.(?P<counter>[^.]+)")
_RATE = "rate_bytes_s"
# Counters of bytes on the wire, and bytes per unit: the kernel counts InfiniBand data in words of four bytes.
_SENT = {"tx_bytes": 1, "port_xmit_data": 4}
_RECEIVED = {"rx_bytes": 1, "port_rcv_data": 4}
# Payload that EFA counts by work request, without headers and acknowledgements: held exactly against the operations.
_PAYLOAD = ("send_bytes", "rdma_write_bytes")
_KEPT = frozenset({_RATE, *_SENT, *_RECEIVED, *_PAYLOAD})
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
    payload_bytes: int | None = None  # sent, as the work requests say it
    resets: int = 0  # times that one of these counters was set back
    wraps: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """What the operations asked the NICs to move."""

    sent_bytes: int  # sends, writes, atomics
    fetched_bytes: int  # reads
    operations: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Bytes that counters moved by, and what operations asked for."""

    moved_bytes: int
    asked_bytes: int

    @property
    def bytes(self) -> int:
        """Moved less asked: headers, acknowledgements and other traffic, when positive."""
        return self.moved_bytes - self.asked_bytes

    @property
    def share(self) -> float:
        """The same over what was asked for."""
        return self.bytes / self.asked_bytes if self.asked_bytes else 0.0


@dataclass(frozen=True, slots=True)
class Movement:
    """The devices that the run is held against, and whether they moved the right number of bytes."""

    devices: tuple[str, ...]
    sent_bytes: int | None
    received_bytes: int | None
    line_rate_bytes_s: int | None
    agrees: bool | None  # None: nothing to compare
    asked: Asked = Asked(0, 0, 0)
    payload_bytes: int | None = None  # sent, as the work requests say it
    resets: int = 0
    wraps: int = 0

    @property
    def sent(self) -> Difference | None:
        """What was sent against what operations asked to send; None where either is unknown or nothing."""
        return self._against(self.sent_bytes, self.asked.sent_bytes)

    @property
    def fetched(self) -> Difference | None:
        """What was received against what operations asked to read."""
        return self._against(self.received_bytes, self.asked.fetched_bytes)

    @property
    def payload(self) -> Difference | None:
        """The payload that work requests sent against what operations asked to send."""
        return self._against(self.payload_bytes, self.asked.sent_bytes)

    @staticmethod
    def _against(moved: int | None, asked: int) -> Difference | None:
        return Difference(moved, asked) if moved is not None and asked else None


def devices_of(counters: pl.LazyFrame) -> tuple[Device, ...]:
    """NICs with sampled counters. Needs `name`, `time_ns`, `value`, in order of time."""
    name = pl.col("name").cast(pl.String)
    kept = (
        counters.filter(name.str.starts_with("nic.") & name.str.split(".").list.last().is_in(sorted(_KEPT)))
        .select(name.alias("name"), "value")
        .collect()
    )
    found: dict[str, dict[str, Growth]] = {}
    rates: dict[str, int] = {}
    for (full,), rows in sorted(kept.partition_by("name", as_dict=True, include_key=False).items()):
        if (match := _NAME.fullmatch(full)) is None:
            continue
        own = found.setdefault(match["device"], {})
        if match["counter"] == _RATE:
            rates[match["device"]] = int(rows["value"][-1])
        else:
            own[match["counter"]] = growth(rows["value"].to_numpy())
    return tuple(_device(device, values, rates.get(device)) for device, values in found.items())


def _device(name: str, values: Mapping[str, Growth], rate: int | None) -> Device:
    payload = [values[counter] for counter in _PAYLOAD if counter in values]
    return Device(
        name=name,
        sent_bytes=_moved(values, _SENT),
        received_bytes=_moved(values, _RECEIVED),
        line_rate_bytes_s=rate,
        payload_bytes=sum(one.total for one in payload) if len(payload) == len(_PAYLOAD) else None,
        resets=sum(int(one.is_reset.sum()) for one in values.values()),
        wraps=sum(int(one.is_wrapped.sum()) for one in values.values()),
    )


def _moved(values: Mapping[str, Growth], counters: Mapping[str, int]) -> int | None:
    """Growth of the first of these counters that there is; None without one, and when it is stuck."""
    for counter, unit in counters.items():
        if counter in values:
            return None if values[counter].is_stuck else values[counter].total * unit
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
        asked=asked,
        payload_bytes=_sum([device.payload_bytes for device in devices]),
        resets=sum(device.resets for device in devices),
        wraps=sum(device.wraps for device in devices),
    )


def _is_right(moved: int, asked: int, operations: int) -> bool:
    return asked <= moved <= asked * (1 + EXTRA_SHARE) + EXTRA_PER_OPERATION * operations + EXTRA_BYTES


def _sum(values: Sequence[int | None]) -> int | None:
    """Sum, unknown as soon as one part is."""
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None
