from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.internal import decoder, encoder
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from efaprof.export.perfetto import wire

EDGES = [0, 1, 127, 128, 2**14 - 1, 2**14, 2**28 - 1, 2**28, 2**56 - 1, 2**56, 2**63 - 1, 2**63, 2**64 - 1]


def read_varint(data: bytes) -> tuple[int, int]:
    value, end = decoder._DecodeVarint(data, 0)
    return value, end


@given(st.integers(-(2**63), 2**64 - 1))
def test_varints_are_those_of_protobuf(value: int) -> None:
    expected = bytearray()
    encoder._EncodeVarint(expected.extend, value & (2**64 - 1))
    assert wire.varint(value) == bytes(expected)


@given(st.lists(st.one_of(st.integers(0, 2**64 - 1), st.sampled_from(EDGES)), min_size=1, max_size=40))
def test_padded_columns_read_as_their_values(values: list[int]) -> None:
    column = np.array(values, np.uint64)
    narrowest = wire.width_of(column)
    for width in (width for width in wire.WIDTHS if width >= narrowest):
        rows = np.full((len(values), width + 2), 0xAA, np.uint8)
        wire.put_varints(rows, 1, width, column)
        assert [read_varint(bytes(row[1:-1])) for row in rows] == [(value, width) for value in values]
        assert (rows[:, [0, -1]] == 0xAA).all(), "bytes beside the column were written"


@pytest.mark.parametrize("value", EDGES)
def test_the_width_is_the_smallest_that_holds_the_value(value: int) -> None:
    needed = len(wire.varint(value))
    assert wire.width_of(np.array([value], np.uint64)) == min(width for width in wire.WIDTHS if width >= needed)


def test_the_width_of_nothing_is_one() -> None:
    assert wire.width_of(np.empty(0, np.uint64)) == 1


@pytest.mark.parametrize("text", ["", "plain", "Übertragung → ネット 🧵", 'quote"\\\n\0', "x" * 300])
def test_text_fields_read_back(text: str) -> None:
    packet = pb.TracePacket()
    packet.ParseFromString(wire.bytes_field(60, wire.text_field(2, text)))
    assert packet.track_descriptor.name == text


def test_text_that_utf8_cannot_hold_is_marked_not_lost() -> None:
    packet = pb.TracePacket()
    packet.ParseFromString(wire.bytes_field(60, wire.text_field(2, "a\ud800b")))
    assert packet.track_descriptor.name == "a?b"
