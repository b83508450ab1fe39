"""Small timelines written by our writer, and reading them back with protobuf."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from efaprof.export.perfetto.tracks import ClockReading
from efaprof.export.perfetto.writer import PerfettoWriter
from efaprof.export.timeline import Slices, Track

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CLOCKS = ClockReading(5_000_000_000, 1_790_000_000_000_000_000, 5_000_000_007)


def writer_to(out: io.BytesIO, *tracks: Track) -> PerfettoWriter:
    """A writer with these tracks declared."""
    writer = PerfettoWriter(out, clocks=CLOCKS)
    for track in tracks:
        writer.track(track)
    return writer


def slices(
    track: Sequence[int] | int, spans: Iterable[tuple[int, int]], names: Sequence[str] = ("s",), **more: Any
) -> Slices:
    """Slices from (start, duration); their names are taken in turn."""
    pairs = np.array(list(spans), np.int64).reshape(-1, 2)
    count = len(pairs)
    return Slices(
        track=np.full(count, track, np.uint64) if isinstance(track, int) else np.array(track, np.uint64),
        start_ns=np.ascontiguousarray(pairs[:, 0]),
        dur_ns=np.ascontiguousarray(pairs[:, 1]),
        name=(np.arange(count) % len(names)).astype(np.uint32),
        names=tuple(names),
        **more,
    )


def written(*chunks: Slices, tracks: Iterable[Track] = (Track(1, "t"),)) -> bytes:
    """A whole file with these slices."""
    out = io.BytesIO()
    writer = writer_to(out, *tracks)
    for chunk in chunks:
        writer.slices(chunk)
    return out.getvalue()


def decoded(data: bytes) -> list[Any]:
    """Packets as protobuf reads them."""
    trace = pb.Trace()
    trace.ParseFromString(data)
    return list(trace.packet)


def encoded(packets: Iterable[Any]) -> bytes:
    """Packets as a file."""
    trace = pb.Trace()
    trace.packet.extend(packets)
    return trace.SerializeToString()


def events(data: bytes) -> list[dict[str, Any]]:
    """Track events with their interned names resolved, in the order written."""
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    found = []
    for packet in decoded(data):
        names |= {entry.iid: entry.name for entry in packet.interned_data.event_names}
        arguments |= {entry.iid: entry.name for entry in packet.interned_data.debug_annotation_names}
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        found.append(
            {
                "type": event.type,
                "ts": packet.timestamp,
                "track": event.track_uuid,
                "name": names[event.name_iid] if event.name_iid else event.name or None,
                "args": {
                    arguments.get(one.name_iid, one.name): getattr(one, one.WhichOneof("value"))
                    for one in event.debug_annotations
                },
                "flows": list(event.flow_ids),
                "ending_flows": list(event.terminating_flow_ids),
            }
        )
    return found
