"""Ceilings of a fabric from loops of writes: rates that it held up, or that the issuer could not exceed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from efaprof.analyzers.roofline import Fabric
from efaprof.errors import NothingToAnalyse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LEAST_IDLE = 0.20  # part of its time that the issuer must have waited, for a rate to be the fabric's ceiling


@dataclass(frozen=True, slots=True)
class LoopRow:
    """One loop: writes of one size, so many in flight of each thread."""

    size_bytes: int
    window: int
    completed: int
    elapsed_ns: int
    idle_ns: int  # of a thread, mean
    threads: int = 1

    @property
    def operations_s(self) -> float:
        """Completions per second."""
        return self.completed * 1e9 / self.elapsed_ns

    @property
    def bytes_s(self) -> float:
        """Payload per second."""
        return self.operations_s * self.size_bytes

    @property
    def idle(self) -> float:
        """Part of the time in which the issuer waited."""
        return self.idle_ns / self.elapsed_ns


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The largest rate that was seen. Not a ceiling where the issuer was busy: the fabric may take more."""

    value: float
    is_ceiling: bool


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured ceilings of one fabric, by the number of issuing threads that reached most."""

    fingerprint: Mapping[str, str]
    emulated: tuple[str, ...]
    rows: tuple[LoopRow, ...]
    rate_ops_s: Ceiling
    peak_bytes_s: Ceiling
    latency_us: float  # of the smallest write alone, until its local completion

    @property
    def fabric(self) -> Fabric:
        """For the message roofline."""
        rate = self.rate_ops_s.value
        return Fabric(self.peak_bytes_s.value, rate, self.latency_us, 1e6 / rate)


def profile_of(rows: Sequence[LoopRow], fingerprint: Mapping[str, str], emulated: Sequence[str] = ()) -> Profile:
    """Ceilings from these loops; NothingToAnalyse when none completed anything alone."""
    done = [row for row in rows if row.completed > 0]
    alone = [row for row in done if row.window == row.threads == 1]
    if not alone:
        raise NothingToAnalyse("no write completed", hint="efaprof doctor says what works here")
    first = min(alone, key=lambda row: row.size_bytes)
    fastest, widest = max(done, key=lambda row: row.operations_s), max(done, key=lambda row: row.bytes_s)
    return Profile(
        fingerprint=fingerprint,
        emulated=tuple(emulated),
        rows=tuple(rows),
        rate_ops_s=Ceiling(fastest.operations_s, fastest.idle >= LEAST_IDLE),
        peak_bytes_s=Ceiling(widest.bytes_s, widest.idle >= LEAST_IDLE),
        latency_us=first.elapsed_ns / first.completed / 1e3,
    )
