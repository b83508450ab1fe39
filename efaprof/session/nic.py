"""NIC counters from sysfs: RDMA devices (EFA, InfiniBand) by port, and network devices.

Counters keep the kernel's own names: `nic.<device>.<counter>`, with `<device>/<port>` beyond the first port. Their
units are the kernel's too: `port_xmit_data` and `port_rcv_data` count words of four bytes. `nic.<device>.rate_bytes_s`
is the line rate, a gauge, absent where the kernel does not know one.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from efaprof import env
from efaprof.session.sample import CounterFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from efaprof.session.sample import Emit

SYSFS = Path("/sys")
_SETTINGS = frozenset({"lifespan"})  # files among the counters that count nothing
_TRAFFIC = re.compile(r"bytes|packets|pkts|_data$|_wrs$")
_NETDEV_COUNTERS = (
    "rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_dropped", "tx_dropped", "rx_errors", "tx_errors",
)  # fmt: skip
_SLOW_INTERVAL_S = 1.0  # for errors, drops and the line rate
_QUIET_BYTES_S = 1e6  # of traffic on all devices together: below, nothing worth resolving goes on
_QUIET_INTERVAL_S = 0.05
_SHARE = 0.02  # of one core that sampling may take; with many devices the interval grows instead


@dataclass(frozen=True, slots=True)
class Device:
    """A NIC (one port of it) and its counter files."""

    name: str
    traffic: tuple[CounterFile, ...]
    others: tuple[CounterFile, ...]
    rate_bytes_s: int | None


@dataclass(slots=True)
class NicSampler:
    """Samples traffic every `interval_s` (seldomer while there is next to none), the rest every second."""

    devices: tuple[Device, ...]
    interval_s: float
    _asked_interval_s: float = field(init=False)
    _samples: int = field(default=0, init=False)
    _stretched: int = field(default=0, init=False)
    _slow_due: float = field(default=0.0, init=False)
    _at: float = field(default=0.0, init=False)
    _total: int = field(default=0, init=False)  # of all traffic counters, at the last sample

    def __post_init__(self) -> None:
        self._asked_interval_s = self.interval_s

    @property
    def complaint(self) -> str:
        """That most samples had to come noticeably later than asked."""
        if 2 * self._stretched <= self._samples or self.interval_s < 1.2 * self._asked_interval_s:
            return ""
        return (
            f"reading the NIC counters takes long: they were sampled every {self.interval_s * 1000:.0f} ms,"
            f" not every {self._asked_interval_s * 1000:.0f} ms"
        )

    def sample(self, emit: Emit) -> None:
        """Emit every traffic counter that can be read, and the others when their second is over."""
        start = time.monotonic()
        total = 0
        for device in self.devices:
            for file in device.traffic:
                if (value := file.read()) is not None:
                    total += value
                    emit(file.name, value)
        is_quiet = abs(total - self._total) < _QUIET_BYTES_S * (start - self._at)
        wanted_s = max(self._asked_interval_s, _QUIET_INTERVAL_S if is_quiet else 0.0)
        # Reading a device's counters may be a command to it: let their number stretch the interval, not the load.
        self.interval_s = max(wanted_s, (time.monotonic() - start) / _SHARE)
        self._total, self._at = total, start
        self._samples += 1
        self._stretched += self.interval_s > wanted_s
        if start >= self._slow_due:
            self._slow_due = start + _SLOW_INTERVAL_S
            self._sample_slow(emit)

    def _sample_slow(self, emit: Emit) -> None:
        for device in self.devices:
            for file in device.others:
                if (value := file.read()) is not None:
                    emit(file.name, value)
            if device.rate_bytes_s is not None:
                emit(f"nic.{device.name}.rate_bytes_s", device.rate_bytes_s, monotone=False)


def find_devices(sysfs: Path = SYSFS) -> tuple[Device, ...]:
    """Every NIC that is up and has counters: RDMA devices first, then network devices, the loopback last.

    RDMA devices are those of an emulated device's own tree where EFAPROF_SYSFS names one.
    """
    emulated = os.environ.get(env.SYSFS)
    return (*_rdma_devices(Path(emulated) if emulated else sysfs), *_network_devices(sysfs))


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    """Content of a small sysfs file, empty when it cannot be read (several answer EINVAL while a link is down)."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _rdma_devices(sysfs: Path) -> Iterator[Device]:
    for entry in _entries(sysfs / "class" / "infiniband"):
        for number, port in enumerate(_entries(entry / "ports")):
            if (state := _text(port / "state")) and "ACTIVE" not in state:
                continue
            name = entry.name if number == 0 else f"{entry.name}/{port.name}"
            folders = [port / "hw_counters", port / "counters"]
            if number == 0:
                folders.append(entry / "hw_counters")
            files = [path for folder in folders for path in _entries(folder)]
            if device := _device(name, files, _rdma_rate(_text(port / "rate"))):
                yield device


def _network_devices(sysfs: Path) -> Iterator[Device]:
    entries = [entry for entry in _entries(sysfs / "class" / "net") if _text(entry / "operstate") in {"up", "unknown"}]
    loopback = [entry for entry in entries if entry.name == "lo"]
    others = [entry for entry in entries if entry.name != "lo"]
    # Inside a container the only way out is a virtual device.
    chosen = [entry for entry in others if (entry / "device").exists()] or others
    for entry in (*chosen, *loopback):
        files = [entry / "statistics" / name for name in _NETDEV_COUNTERS]
        if device := _device(entry.name, files, _network_rate(_text(entry / "speed"))):
            yield device


def _device(name: str, files: list[Path], rate_bytes_s: int | None) -> Device | None:
    counters = [CounterFile(f"nic.{name}.{path.name}", path) for path in files if path.name not in _SETTINGS]
    unique = {counter.name: counter for counter in reversed(counters)}
    readable = [counter for counter in reversed(unique.values()) if counter.is_readable()]
    if not readable:
        return None
    traffic = tuple(counter for counter in readable if _TRAFFIC.search(counter.path.name))
    return Device(name, traffic, tuple(counter for counter in readable if counter not in traffic), rate_bytes_s)


def _rdma_rate(text: str) -> int | None:
    """Bytes a second of `100 Gb/sec (4X EDR)`."""
    found = re.match(r"(\d+(?:\.\d+)?)\s*Gb/sec", text)
    return int(float(found[1]) * 1e9 / 8) or None if found else None


def _network_rate(text: str) -> int | None:
    """Bytes a second of a speed in Mb/s; the kernel says -1 when it does not know."""
    return int(text) * 1_000_000 // 8 if text.isdigit() and int(text) > 0 else None
