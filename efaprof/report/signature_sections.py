"""Layers and steps found from operations alone, as notes and as keys of the attribution document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from efaprof.analyzers.signatures import LABEL
from efaprof.report import units
from efaprof.report.sections import Notes
from efaprof.report.units import DERIVED
from efaprof.trace.layers import Provenance

if TYPE_CHECKING:
    from efaprof.analyzers.signatures import Segmentation

_NS_PER_US = 1e3


def signature_notes(found: Segmentation) -> Notes:
    """What a layer takes, and the steps if pauses tell them apart."""
    first = found.processes[0]
    wall, libfabric, nic = (units.microseconds(ns) for ns in found.layer_ns)
    to = "each peer" if first.peers > 1 else "the peer"
    barriers = f"two barriers of {first.barrier_bytes} B to {to} in each"
    placed = f"{units.percent(found.coverage)} {DERIVED} placed, the rest needs stamps of the kernel, ring and proxy"
    lines = [
        f"{units.whole(first.layers)} {DERIVED} a process, segmentation: {LABEL} ({barriers})",
        f"{wall} µs {DERIVED} each: libfabric {libfabric}, nic {nic} exclusive {DERIVED}; {placed}",
    ]
    if found.step_ns is None:
        lines.append("steps unknown: no pause between layers repeats")
    else:
        step, libfabric, nic = (units.duration(ns) for ns in found.step_ns)
        left_out = f" ({found.unclassified} unclassified)" if found.unclassified else ""
        lines.append(
            f"{units.whole(found.decode)} {DERIVED} decode steps of {found.layers_per_step} layers{left_out}:"
            f" {step} each, libfabric {libfabric}, nic {nic} exclusive {DERIVED}"
        )
    return Notes("layers", tuple(lines))


def signature_document(found: Segmentation | None) -> dict[str, Any] | None:
    """The same for the document."""
    if found is None:
        return None
    return {
        "segmentation": LABEL,
        "layers": [int(one.layers) for one in found.processes],
        "barrier_bytes": found.processes[0].barrier_bytes,
        "layer": _costs(found.layer_ns),
        "step": _costs(found.step_ns),
        "coverage": found.coverage,
        "layers_per_step": found.layers_per_step,
        "steps": found.decode,
        "unclassified": found.unclassified,
        "provenance": Provenance.DERIVED.value,
    }


def signature_keys(found: Segmentation) -> dict[str, Any]:
    """Keys of the whole document that these steps fill; there are none where no pause tells them apart."""
    left_out = {"unclassified": found.unclassified} if found.unclassified else {}
    return {"steps": found.decode, "steps_excluded": left_out}


def _costs(ns: tuple[float, float, float] | None) -> dict[str, float] | None:
    if ns is None:
        return None
    wall, libfabric, nic = ns
    return {"wall_us": wall / _NS_PER_US, "libfabric_us": libfabric / _NS_PER_US, "nic_us": nic / _NS_PER_US}
