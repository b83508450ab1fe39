from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from timeline_samples import decoded, events, slices, written

from efaprof.export.perfetto.slices import BLOCK_ROWS
from efaprof.export.timeline import UNFINISHED, Argument, Track

BEGIN, END = 1, 2
int64 = st.integers(-(2**63), 2**63 - 1)
uint64 = st.integers(0, 2**64 - 1)
optional = st.one_of(st.none(), int64)


@st.composite
def chunks(draw):
    """Rows of (track, start, duration, name, first, second, flow, last flow), None where there is none."""
    return draw(
        st.lists(
            st.tuples(
                st.integers(1, 2**40),
                st.integers(0, 2**60),
                st.one_of(st.none(), st.integers(0, 2**60)),
                st.integers(0, 3),
                optional,
                st.one_of(st.none(), uint64),
                st.one_of(st.none(), st.integers(1, 2**64 - 1)),
                st.one_of(st.none(), st.integers(1, 2**64 - 1)),
            ),
            min_size=1,
            max_size=30,
        )
    )


def argument(name: str, values: list[int | None], dtype: type) -> Argument:
    absent = np.array([value is None for value in values])
    return Argument(name, np.array([value or 0 for value in values], dtype), absent)


@given(chunks())
def test_packets_read_as_the_model(rows) -> None:
    names = ("a", "rma.write", "ü🧵", "")
    chunk = slices(
        [row[0] for row in rows],
        [(row[1], UNFINISHED if row[2] is None else row[2]) for row in rows],
        names,
        arguments=(
            argument("first", [row[4] for row in rows], np.int64),
            argument("second", [row[5] for row in rows], np.uint64),
        ),
        flow=np.array([row[6] or 0 for row in rows], np.uint64),
        last_flow=np.array([row[7] or 0 for row in rows], np.uint64),
    )
    expected = []
    for index, (track, start, duration, _, first, second, flow, last_flow) in enumerate(rows):
        expected.append(
            {
                "type": BEGIN, "ts": start, "track": track, "name": names[index % 4],
                "args": {name: value for name, value in (("first", first), ("second", second)) if value is not None},
                "flows": [] if flow is None else [flow], "ending_flows": [] if last_flow is None else [last_flow],
            }
        )  # fmt: skip
        if duration is not None:
            end = {"type": END, "ts": start + duration, "track": track, "name": None, "args": {}}
            expected.append(end | {"flows": [], "ending_flows": []})
    assert events(written(chunk)) == expected


def test_blocks_join_without_a_seam() -> None:
    count = BLOCK_ROWS * 2 + 17
    chunk = slices(1, [(start, 3) for start in range(0, count * 10, 10)], ("a", "b"))
    found = events(written(chunk))
    assert [event["ts"] for event in found[0::2]] == list(range(0, count * 10, 10))
    assert [event["ts"] for event in found[1::2]] == list(range(3, count * 10, 10))


def test_a_file_without_slices_is_valid() -> None:
    packets = decoded(written(slices(1, [])))
    assert [packet.track_descriptor.name for packet in packets if packet.HasField("track_descriptor")] == ["t"]
    assert not any(packet.HasField("track_event") for packet in packets)


def test_the_first_packets_set_the_clock_and_the_names() -> None:
    snapshot, start = decoded(written())[:2]
    assert {clock.clock_id: clock.timestamp for clock in snapshot.clock_snapshot.clocks} == {
        3: 5_000_000_000, 1: 1_790_000_000_000_000_000, 6: 5_000_000_007,
    }  # fmt: skip
    assert snapshot.clock_snapshot.primary_trace_clock == 3
    assert start.sequence_flags == 3
    assert start.trace_packet_defaults.timestamp_clock_id == 3


def test_names_are_written_once_and_only_if_used() -> None:
    data = written(
        slices(1, [(0, 1)], ("x", "never")), slices(1, [(5, 1)], ("x",)), slices(1, [(9, 1), (11, 1)], ("y", "x"))
    )
    named = [entry.name for packet in decoded(data) for entry in packet.interned_data.event_names]
    assert named == ["x", "y"]


def test_more_arguments_than_a_packet_holds_are_refused() -> None:
    many = tuple(Argument(f"a{n}", np.array([-1])) for n in range(8))
    with pytest.raises(ValueError, match="fewer arguments"):
        written(slices(1, [(2**60, 1)], arguments=many, flow=np.array([1], np.uint64)))


def test_track_descriptors_carry_their_place() -> None:
    tracks = (
        Track(1, "efaprof", orders_children=True),
        Track(2, "nic", parent=1, order=4, description="doorbell → done"),
        Track(3, "bytes", parent=1, order=0, unit="B"),
    )
    parent, nic, counter = (
        packet.track_descriptor for packet in decoded(written(tracks=tracks)) if packet.HasField("track_descriptor")
    )
    assert parent.child_ordering == parent.EXPLICIT
    assert (nic.parent_uuid, nic.sibling_order_rank, nic.name) == (1, 4, "nic")
    assert nic.description == "doorbell → done"
    assert counter.counter.unit_name == "B"
    assert not nic.HasField("counter")
