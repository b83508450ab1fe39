"""Message roofline: the bandwidth that messages of one size can reach, and which of three ceilings holds it down."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Ceiling(StrEnum):
    """What limits the bandwidth."""

    BANDWIDTH = "bandwidth"
    RATE = "rate"
    LATENCY = "latency"


@dataclass(frozen=True, slots=True)
class Fabric:
    """Calibrated ceilings of one rank's fabric."""

    peak_bytes_s: float
    rate_ops_s: float
    latency_us: float  # L: a single message, from its post until it is visible
    gap_us: float  # g: what each further message adds when several follow each other


@dataclass(frozen=True, slots=True)
class Roof:
    """The reachable bandwidth, and what holds it there."""

    bytes_s: float
    ceiling: Ceiling


def roof(fabric: Fabric, *, messages: float, size_bytes: float) -> Roof:
    """The roof for `messages` ≥ 1 of `size_bytes` each between two synchronisations.

    min(peak, s·rate, s·m/(L + (m − 1)·g)): with one message the latency decides, with many the rate or the peak.
    """
    if messages < 1 or size_bytes <= 0:
        raise ValueError(f"{messages} messages of {size_bytes} bytes have no roof")
    flight_us = fabric.latency_us + (messages - 1) * fabric.gap_us
    held = size_bytes * messages / flight_us * 1e6 if flight_us > 0 else float("inf")
    ceilings = {
        Ceiling.BANDWIDTH: fabric.peak_bytes_s,
        Ceiling.RATE: size_bytes * fabric.rate_ops_s,
        Ceiling.LATENCY: held,
    }
    lowest = min(ceilings, key=lambda ceiling: ceilings[ceiling])
    return Roof(ceilings[lowest], lowest)
