"""What is said about the times of GPUs: how far they may be off against the host's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from efaprof.analyzers.device_clock import Bounds, DeviceClock, device_clocks
from efaprof.report import units
from efaprof.trace.layers import Provenance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from efaprof.trace.reader import Tables

_MOST = 8


@dataclass(frozen=True, slots=True)
class GpuTimes:
    """Times of one GPU in one process."""

    comm: str
    pid: int
    clock: DeviceClock

    def __str__(self) -> str:
        """Whose they are."""
        return f"GPU {self.clock.device} of {self.comm}[{self.pid}]"


def gpu_times(tables: Tables) -> tuple[GpuTimes, ...]:
    """Of a run; empty where nothing of a GPU was recorded."""
    processes = {
        process: (comm, pid) for process, comm, pid in tables.processes.select("process", "comm", "pid").rows()
    }
    return tuple(GpuTimes(*processes[one.process], one) for one in device_clocks(tables))


def times_lines(found: Sequence[GpuTimes]) -> tuple[str, ...]:
    """A sentence for each, the widest bounds first."""
    ordered = sorted(found, key=lambda one: -_width(one.clock.bounds))
    lines = [
        f"{one}: {_words(one.clock.bounds)}, by {units.whole(one.clock.launches)} launches"
        f" and {units.whole(one.clock.waits)} waits {units.DERIVED}"
        for one in ordered[:_MOST]
    ]
    return (*lines, *([f"{len(found) - _MOST} more"] if len(found) > _MOST else []))


def times_error(found: Sequence[GpuTimes]) -> str:
    """The worst of them in few words."""
    bounds = [one.clock.bounds for one in found]
    if wander := max(one.wander_ns for one in bounds):
        return f"wander by {units.duration(wander)} or more"
    if off := max(abs(one.off_ns) for one in bounds):
        return f"off by {units.duration(off)} or more"
    if any(one.error_ns is None for one in bounds):
        return f"at most {units.duration(max(map(_late, bounds)))} late"
    return f"±{units.duration(max(one.error_ns or 0 for one in bounds))}"


def times_warnings(found: Sequence[GpuTimes]) -> list[str]:
    """Those that cannot be as they are told."""
    return [
        f"times of {one} are {_words(one.clock.bounds)}"
        for one in found
        if one.clock.bounds.off_ns or one.clock.bounds.wander_ns
    ]


def times_document(found: Sequence[GpuTimes]) -> list[dict[str, Any]]:
    """All of it, for JSON."""
    return [
        {
            "comm": one.comm,
            "pid": one.pid,
            "device": one.clock.device,
            "launches": one.clock.launches,
            "waits": one.clock.waits,
            **_document(one.clock.bounds),
            "stretches": [
                {"begin_ns": part.begin_ns, "end_ns": part.end_ns, **_document(part.bounds)}
                for part in one.clock.stretches
            ],
            "provenance": Provenance.DERIVED.value,
        }
        for one in found
    ]


def _document(bounds: Bounds) -> dict[str, Any]:
    return {
        "lowest_shift_ns": bounds.lowest_ns,
        "highest_shift_ns": bounds.highest_ns,
        "error_ns": bounds.error_ns,
        "off_ns": bounds.off_ns,
        "wander_ns": bounds.wander_ns,
    }


def _late(bounds: Bounds) -> int:
    return -(bounds.lowest_ns or 0)


def _width(bounds: Bounds) -> float:
    return float("inf") if bounds.error_ns is None else bounds.error_ns


def _words(bounds: Bounds) -> str:
    if bounds.wander_ns:
        return f"wandering by {units.duration(bounds.wander_ns)} or more against the host's"
    error = "" if bounds.error_ns is None else f" (±{units.duration(bounds.error_ns)})"
    if bounds.off_ns:
        word, most = ("early", bounds.highest_ns) if bounds.off_ns > 0 else ("late", bounds.lowest_ns)
        at_most = "" if most is None else f" and {units.duration(abs(most))} at most"
        return f"{word} by {units.duration(abs(bounds.off_ns))} or more{at_most}{error}"
    late = f"at most {units.duration(_late(bounds))} late"
    if bounds.highest_ns is None:
        return f"{late}, how early is not known: nothing was seen to wait for them"
    return f"{late} and {units.duration(bounds.highest_ns)} early{error}"
