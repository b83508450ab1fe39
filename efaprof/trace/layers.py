"""The words that every table, report and picture uses."""

from __future__ import annotations

from enum import StrEnum


class Layer(StrEnum):
    """Where a stretch of a decode step is spent, in the order of the path."""

    COMPUTE = "compute"
    LAUNCH = "launch"
    KERNEL = "kernel"
    RING = "ring"
    PROXY = "proxy"
    LIBFABRIC = "libfabric"
    NIC = "nic"
    RX = "rx"
    POLL = "poll"
    SKEW = "skew"
    UNATTRIBUTED = "unattributed"
    IDLE = "idle"
    # Of ranks whose clocks cannot be compared closely enough: nic, rx and skew together. Last, for its number's sake.
    NIC_SKEW = "nic+skew"


# The layers that one operation climbs.
PATH_LAYERS = (Layer.KERNEL, Layer.RING, Layer.PROXY, Layer.LIBFABRIC, Layer.NIC)


class DispatchPath(StrEnum):
    """How operations reach the NIC."""

    PROXY = "proxy"  # kernel → ring → proxy → libfabric → nic
    GDAKI = "gdaki"  # kernel → nic
    DENSE = "dense"  # bulk all-gather, the control arm
    LIBFABRIC = "libfabric"  # an unmodified libfabric program: libfabric → nic


class Provenance(StrEnum):
    """How a printed number came to be."""

    MEASURED = "measured"
    DERIVED = "derived"
    ASSUMED = "assumed"


PROVENANCE_MARK = {Provenance.MEASURED: "●", Provenance.DERIVED: "○", Provenance.ASSUMED: "△"}


class Match(StrEnum):
    """How an operation met its completion."""

    EXACT = "exact"  # its context was the only one of its kind in flight
    FIFO = "fifo"  # several in flight on one context, taken first in first out: trust sums, not single rows
    EXPECTED_NONE = "expected-none"  # inject or selective completion: none will come
    IN_FLIGHT = "in-flight"  # still open when the trace ended
    FAILED_POST = "failed-post"  # the call returned an error, nothing was posted
    CANCELLED = "cancelled"  # its endpoint or CQ closed, or it was cancelled
    UNEXPLAINED = "unexplained"  # a completion should be here and is not
