from __future__ import annotations

import numpy as np
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from efaprof.export.perfetto.rows import TemplateBuilder


def template():
    row = TemplateBuilder()
    with row.message(1):
        row.varint("time", 8, 8)
        with row.message(11):
            row.varint("track", 11, 4)
            for key in ("first", "second"):
                with row.section(key), row.message(4):
                    row.varint(key, 3, 2)
            with row.section("flow"):
                row.fixed64("flow", 47)
    return row.build()


def filled(absent: dict[str, list[bool]]) -> list[pb.TracePacket]:
    count = len(next(iter(absent.values()), [0, 0, 0]))
    number = np.arange(1, count + 1, dtype=np.uint64)
    columns = {
        key: number * scale for key, scale in {"time": 1, "track": 10, "first": 100, "second": 200, "flow": 300}.items()
    }
    data = template().fill(columns, {key: np.array(mask) for key, mask in absent.items()})
    trace = pb.Trace()
    trace.ParseFromString(data.tobytes())
    return list(trace.packet)


def test_rows_carry_their_own_values() -> None:
    packets = filled({})
    assert [packet.timestamp for packet in packets] == [1, 2, 3]
    assert [packet.track_event.track_uuid for packet in packets] == [10, 20, 30]
    assert [[one.uint_value for one in packet.track_event.debug_annotations] for packet in packets] == [
        [100, 200], [200, 400], [300, 600],
    ]  # fmt: skip
    assert [list(packet.track_event.flow_ids) for packet in packets] == [[300], [600], [900]]


def test_sections_are_absent_where_they_are_marked() -> None:
    packets = filled(
        {"first": [True, False, True, False], "second": [True, True, False, False], "flow": [False, True, True, False]}
    )
    assert [[one.uint_value for one in packet.track_event.debug_annotations] for packet in packets] == [
        [], [200], [600], [400, 800],
    ]  # fmt: skip
    assert [list(packet.track_event.flow_ids) for packet in packets] == [[300], [], [], [1200]]


def test_a_message_longer_than_its_length_byte_is_refused() -> None:
    row = TemplateBuilder()
    with pytest.raises(ValueError, match="fewer arguments"), row.message(1):
        row.raw(bytes(128))
