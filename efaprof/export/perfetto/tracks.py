"""Packets that stand before the events: track descriptors, clocks, interned names, facts of the trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from efaprof.export.perfetto.slices import (
    ANNOTATION,
    EVENT_TYPE,
    INSTANT,
    PACKET,
    SEQUENCE,
    SEQUENCE_FLAGS,
    SEQUENCE_ID,
    TIMESTAMP,
    TRACK_EVENT,
    TRACK_UUID,
    USES_NAMES,
)
from efaprof.export.perfetto.wire import bytes_field, double_field, text_field, uint_field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from efaprof.export.timeline import Fact, Track

CLOCK_SNAPSHOT, INTERNED_DATA, PACKET_DEFAULTS, TRACK_DESCRIPTOR, TRACE_ATTRIBUTES = 6, 12, 59, 60, 126
EVENT_NAMES, ANNOTATION_NAMES = 2, 3  # of InternedData
REALTIME, MONOTONIC, BOOTTIME = 1, 3, 6  # builtin clocks
EXPLICIT_ORDER = 3  # of TrackDescriptor.child_ordering
TIMESTAMP_CLOCK_ID = 58
# Descriptors go on a sequence of their own: on the events' one, a thread descriptor would make every slice carry an
# argument that names that thread.
DESCRIPTORS = uint_field(SEQUENCE_ID, 2)


@dataclass(frozen=True, slots=True)
class ClockReading:
    """One instant on the host's clocks; None where it was not read."""

    monotonic_ns: int
    realtime_ns: int | None = None
    boottime_ns: int | None = None


def preamble(clocks: ClockReading | None) -> bytes:
    """First packets of a file: timestamps are CLOCK_MONOTONIC, names start afresh."""
    start = SEQUENCE + uint_field(SEQUENCE_FLAGS, 3)  # INCREMENTAL_STATE_CLEARED | NEEDS_INCREMENTAL_STATE
    defaults = bytes_field(PACKET_DEFAULTS, uint_field(TIMESTAMP_CLOCK_ID, MONOTONIC))
    if clocks is None:
        return bytes_field(PACKET, start)
    readings = (
        (MONOTONIC, clocks.monotonic_ns),
        (REALTIME, clocks.realtime_ns),
        (BOOTTIME, clocks.boottime_ns),
    )
    snapshot = b"".join(
        bytes_field(1, uint_field(1, clock) + uint_field(2, value)) for clock, value in readings if value is not None
    )
    snapshot += uint_field(2, MONOTONIC)  # primary_trace_clock
    return bytes_field(PACKET, SEQUENCE + bytes_field(CLOCK_SNAPSHOT, snapshot)) + bytes_field(PACKET, start + defaults)


def descriptor(track: Track) -> bytes:
    """Packet that declares a track."""
    body = uint_field(1, track.uuid)
    if track.parent:
        body += uint_field(5, track.parent)
    if track.process is not None:
        labels = b"".join(text_field(8, label) for label in track.process.labels)
        body += bytes_field(3, uint_field(1, track.process.pid) + text_field(6, track.name) + labels)
    elif track.thread is not None:
        body += bytes_field(
            4, uint_field(1, track.thread.pid) + uint_field(2, track.thread.tid) + text_field(5, track.name)
        )
    else:
        body += text_field(2, track.name)
    if track.unit is not None:
        body += bytes_field(8, text_field(6, track.unit))
    if track.orders_children:
        body += uint_field(11, EXPLICIT_ORDER)
    if track.order is not None:
        body += uint_field(12, track.order)
    if track.description:
        body += text_field(14, track.description)
    return bytes_field(PACKET, DESCRIPTORS + bytes_field(TRACK_DESCRIPTOR, body))


def interned(kind: int, names: Mapping[str, int]) -> bytes:
    """Packet that gives names their numbers; `kind` is EVENT_NAMES or ANNOTATION_NAMES."""
    entries = b"".join(bytes_field(kind, uint_field(1, iid) + text_field(2, name)) for name, iid in names.items())
    return bytes_field(PACKET, SEQUENCE + USES_NAMES + bytes_field(INTERNED_DATA, entries))


def attributes(facts: Mapping[str, Fact]) -> bytes:
    """Packet with facts of the whole trace, shown by engines of version 55 and later."""
    entries = b""
    for key, value in facts.items():
        shown = uint_field(2, value) if type(value) is int and abs(value) < 2**63 else text_field(3, str(value))
        entries += bytes_field(1, text_field(1, key) + shown)
    return bytes_field(PACKET, SEQUENCE + bytes_field(TRACE_ATTRIBUTES, entries))


def instant(track: int, time_ns: int, name: str, facts: Mapping[str, Fact]) -> bytes:
    """Packet of one mark with arguments of any kind."""
    event = uint_field(EVENT_TYPE, INSTANT) + uint_field(TRACK_UUID, track) + text_field(23, name)
    for key, value in facts.items():
        event += bytes_field(ANNOTATION, text_field(10, key) + _annotation_value(value))
    packet = SEQUENCE + USES_NAMES + uint_field(TIMESTAMP, time_ns) + bytes_field(TRACK_EVENT, event)
    return bytes_field(PACKET, packet)


def _annotation_value(value: Fact) -> bytes:
    if isinstance(value, bool):
        return uint_field(2, int(value))
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return uint_field(3 if value >= 0 else 4, value)
    if isinstance(value, float):
        return double_field(5, value)
    return text_field(6, str(value))
