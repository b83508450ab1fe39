"""The wire model of the emulated device, as people type it: `rate=100Gbps,ops=2M,latency=12us,reorder=0.3`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

from efaprof.errors import UsageError

_NUMBER = r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"
_RATE = re.compile(rf"{_NUMBER}\s*([KMGT]?)bps", re.ASCII)
_COUNT = re.compile(rf"{_NUMBER}\s*([KMG]?)", re.ASCII)
_TIME = re.compile(rf"{_NUMBER}\s*(ns|us|µs|ms|s)")
_SHARE = re.compile(rf"{_NUMBER}\s*(%?)", re.ASCII)
_POWER = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_NANOSECONDS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_LEAST_SPREAD_NS = 10e3
_LEAST_RTO_NS = 50e3


@dataclass(frozen=True, slots=True)
class Emulation:
    """What the emulated wire costs. Zero of a rate, of `window` or of a delay means: none."""

    rate_bits_s: float = 0.0  # payload, of one device, each way
    ops_s: float = 0.0  # operations that one device starts per second
    pps: float = 0.0  # packets of one device per second, each way
    latency_ns: float = 0.0  # last bit out to payload visible; completions take it a second time
    jitter_ns: float = 0.0  # mean of an exponential addition
    reorder: float = 0.0  # probability that a part (of up to 16 packets) takes a slower path
    spread_ns: float | None = None  # a slower path adds up to this; None: the latency, at least 10 us
    loss: float = 0.0  # probability that a packet is lost
    rto_ns: float | None = None  # what one loss costs; None: four latencies, at least 50 us
    retries: int = 7  # losses of one packet, after which the peer counts as unresponsive
    corrupt: float = 0.0  # probability that a bit of a part's last byte arrives flipped
    corrupt_after: int = 0  # operations of each queue pair that arrive whole first
    rnr_ns: float = 100e3  # pause before a send to a queue without receives is tried again
    timeout_ns: float = 100e6  # how long a dead peer is waited for
    window: int = 0  # operations of one queue pair in flight
    mtu: int = 8928  # payload bytes of a packet
    seed: int = 1
    line_bits_s: float = 100e9  # what the device says it is when `rate` is not limited
    counters: int = 0  # 1: the device has completion counters

    @property
    def model(self) -> str:
        """The whole model as the device's process takes it: `key=value,…` in base units."""
        spread_ns = max(self.latency_ns, _LEAST_SPREAD_NS) if self.spread_ns is None else self.spread_ns
        rto_ns = max(4 * self.latency_ns, _LEAST_RTO_NS) if self.rto_ns is None else self.rto_ns
        resolved = {field.name: getattr(self, field.name) for field in fields(self)}
        resolved |= {"spread_ns": spread_ns, "rto_ns": rto_ns}
        return ",".join(f"{_MODEL_KEYS.get(name, name)}={value!r}" for name, value in resolved.items())

    @property
    def label(self) -> str:
        """What the user set, short: for manifests, tables and plots."""
        set_by_user = [
            f"{_MODEL_KEYS.get(field.name, field.name)}={_shown(field.name, getattr(self, field.name))}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
        return " ".join(["device: softefa", *set_by_user])

    @property
    def is_timed(self) -> bool:
        """Some knob says when things happen, so that keeping its times matters."""
        return any((self.rate_bits_s, self.ops_s, self.pps, self.latency_ns, self.jitter_ns))


_MODEL_KEYS: Final = {
    "rate_bits_s": "rate", "ops_s": "ops", "latency_ns": "latency", "jitter_ns": "jitter", "spread_ns": "spread",
    "rto_ns": "rto", "rnr_ns": "rnr", "timeout_ns": "timeout", "line_bits_s": "line",
}  # fmt: skip


def parse_emulation(text: str) -> Emulation:
    """The model that `text` describes; UsageError names the part that is wrong."""
    found: dict[str, float | int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        knob = _KNOBS.get(key)
        if knob is None or not equals:
            raise UsageError(f"{part!r} is not a knob of the emulated wire", hint=f"knobs: {', '.join(_KNOBS)}")
        if knob.name in found:
            raise UsageError(f"{key} stands twice in {text!r}", hint="give each knob once")
        number = knob.read(value)
        if not math.isfinite(number) or number < 0:
            raise UsageError(f"{part!r}: {value!r} is no {knob.kind}", hint=f"write it like {key}={knob.example}")
        if not knob.least <= number <= knob.most:
            raise UsageError(f"{part!r} is out of range", hint=f"{key} goes from {knob.least:g} to {knob.most:g}")
        found[knob.name] = number
    return Emulation(**found)  # type: ignore[arg-type]  # the knobs name the fields and read their types


@dataclass(frozen=True, slots=True)
class _Knob:
    name: str  # field of Emulation
    read: Callable[[str], float]  # NaN when the text is none
    kind: str
    example: str
    least: float = 0.0
    most: float = 1e18


def _read(pattern: re.Pattern[str], units: dict[str, float], text: str) -> float:
    found = pattern.fullmatch(text)
    return float(found[1]) * units[found[2]] if found else math.nan


def _rate(text: str) -> float:
    return _read(_RATE, _POWER, text)


def _count(text: str) -> float:
    return _read(_COUNT, _POWER, text)


def _time(text: str) -> float:
    return _read(_TIME, _NANOSECONDS, text)


def _share(text: str) -> float:
    return _read(_SHARE, {"": 1.0, "%": 0.01}, text)


def _whole(text: str) -> float:
    return int(text) if text.isascii() and text.isdigit() else math.nan


def _switch(text: str) -> float:
    return {"on": 1, "off": 0}.get(text, math.nan)


_KNOBS: Final[dict[str, _Knob]] = {
    "rate": _Knob("rate_bits_s", _rate, "rate", "100Gbps"),
    "ops": _Knob("ops_s", _count, "number per second", "2M"),
    "pps": _Knob("pps", _count, "number per second", "2M"),
    "latency": _Knob("latency_ns", _time, "time", "12us"),
    "jitter": _Knob("jitter_ns", _time, "time", "2us"),
    "reorder": _Knob("reorder", _share, "share", "0.3", most=1.0),
    "spread": _Knob("spread_ns", _time, "time", "20us"),
    "loss": _Knob("loss", _share, "share", "0.1%", most=1.0),
    "rto": _Knob("rto_ns", _time, "time", "50us"),
    "retries": _Knob("retries", _whole, "whole number", "7", most=64),
    "corrupt": _Knob("corrupt", _share, "share", "0.01", most=1.0),
    "corrupt_after": _Knob("corrupt_after", _whole, "whole number", "50", most=2**32 - 1),
    "rnr": _Knob("rnr_ns", _time, "time", "100us"),
    "timeout": _Knob("timeout_ns", _time, "time", "100ms"),
    "window": _Knob("window", _whole, "whole number", "64", most=2**20),
    "mtu": _Knob("mtu", _whole, "whole number", "8928", least=256, most=65535),
    "seed": _Knob("seed", _whole, "whole number", "1", most=2**64 - 1),
    "line": _Knob("line_bits_s", _rate, "rate", "200Gbps", least=1e6),
    "counters": _Knob("counters", _switch, "switch", "on", most=1),
}


def _shown(name: str, value: float) -> str:
    """A value with the largest unit that leaves it short."""
    if name == "counters":
        return "on" if value else "off"
    if name.endswith("_ns"):
        unit = next((unit for unit in ("s", "ms", "us") if value >= _NANOSECONDS[unit]), "ns")
        return f"{value / _NANOSECONDS[unit]:g}{unit}"
    if name.endswith(("_s", "pps")):
        prefix = next((prefix for prefix in ("T", "G", "M", "K") if value >= _POWER[prefix]), "")
        return f"{value / _POWER[prefix]:g}{prefix}{'bps' if 'bits' in name else ''}"
    return f"{value:g}" if isinstance(value, float) else str(value)
