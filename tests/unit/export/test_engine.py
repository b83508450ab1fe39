"""Files in Perfetto's own engine: what it shows must be what was put in."""

from __future__ import annotations

import io
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from timeline_samples import CLOCKS, decoded, encoded, slices, writer_to, written
from trace_processor import load

from efaprof.export.board import Board, LaneTrack, place_on_thread
from efaprof.export.perfetto.writer import PerfettoWriter
from efaprof.export.timeline import UNFINISHED, Argument, ProcessFacts, ThreadFacts, Track

spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=25)
SHOWN = (
    "select t.name as track, s.name as name, s.ts as ts, s.dur as dur from slice s join track t on t.id = s.track_id"
)


def named(spans: list[tuple[int, int]]) -> tuple[str, ...]:
    """Names that say what each span must be."""
    return tuple(f"{start}+{duration}" for start, duration in spans)


def shown(data: bytes) -> dict[str, Counter[tuple[str, str]]]:
    """(ts, dur) of the slices of every named track, as the engine has them, by the slice's own name.

    A complaint of the engine fails.
    """
    with load(data) as engine:
        assert engine.bad_stats() == []
        found: dict[str, Counter[tuple[str, str]]] = {}
        for row in engine.rows(SHOWN):
            found.setdefault(row["track"], Counter())[f"{row['ts']}+{row['dur']}", row["name"]] += 1
        return found


def right(spans: list[tuple[int, int]]) -> Counter[tuple[str, str]]:
    """What `shown` must have for these."""
    return Counter((name, name) for name in named(spans))


def drawn_on_lanes(groups: list[list[tuple[int, int]]]) -> bytes:
    """Each group on a line of its own, in lanes."""
    out = io.BytesIO()
    board = Board(PerfettoWriter(out, clocks=CLOCKS))
    parent = board.track("parent", orders_children=True)
    for number, group in enumerate(groups):
        ordered = np.array(sorted(group), np.int64)
        line = LaneTrack(board, f"group {number}", parent, number, f"group {number}")
        track = line.place(ordered[:, 0], ordered.sum(axis=1))
        board.sink.slices(slices(track.tolist(), ordered.tolist(), named(ordered.tolist())))
    return out.getvalue()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(spans, min_size=1, max_size=8))
def test_any_spans_in_lanes_keep_their_times(groups: list[list[tuple[int, int]]]) -> None:
    found = shown(drawn_on_lanes(groups))
    assert found == {f"group {number}": right(group) for number, group in enumerate(groups)}


def drawn_on_threads(groups: list[list[tuple[int, int]]]) -> bytes:
    out = io.BytesIO()
    board = Board(PerfettoWriter(out, clocks=CLOCKS))
    process = board.track("process", process=ProcessFacts(1))
    for number, group in enumerate(groups):
        thread = board.track(f"thread {number}", parent=process, thread=ThreadFacts(1, 100 + number))
        pairs = np.array(group, np.int64)
        order, track = place_on_thread(board, thread, "", pairs[:, 0], pairs.sum(axis=1))
        names = [f"{number}: {name}" for name in named(pairs[order].tolist())]
        board.sink.slices(slices(track.tolist(), pairs[order].tolist(), names))
    return out.getvalue()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(spans, min_size=1, max_size=8))
def test_any_spans_of_threads_keep_their_times(groups: list[list[tuple[int, int]]]) -> None:
    with load(drawn_on_threads(groups)) as engine:
        assert engine.bad_stats() == []
        rows = engine.rows("select name, ts, dur from slice")
    assert all(row["name"].endswith(f": {row['ts']}+{row['dur']}") for row in rows), rows
    expected = Counter(f"{number}: {name}" for number, group in enumerate(groups) for name in named(group))
    assert Counter(row["name"] for row in rows) == expected


# The two ways to be wrong without a word from the engine: the comparisons above must see both.
CROSSING = [(9000, 100), (9050, 150)]
TOUCHING = [(0, 10), (10, 10), (20, 10)]


def test_crossing_spans_on_one_track_would_be_wrong_silently() -> None:
    assert shown(written(slices(1, CROSSING, named(CROSSING))))["t"] == Counter(
        [("9000+200", "9000+100"), ("9050+50", "9050+150")]
    )
    assert shown(drawn_on_lanes([CROSSING]))["group 0"] == right(CROSSING)


def test_ends_written_after_all_begins_would_be_wrong_silently() -> None:
    ours = written(slices(1, TOUCHING, named(TOUCHING)))
    packets = decoded(ours)
    head = [packet for packet in packets if not packet.HasField("track_event")]
    begins = [packet for packet in packets if packet.track_event.type == 1]
    ends = [packet for packet in packets if packet.track_event.type == 2]
    planted = shown(encoded([*head, *begins, *ends]))["t"]
    assert planted == Counter([("0+30", "0+10"), ("10+0", "10+10"), ("20+0", "20+10")])
    assert shown(ours)["t"] == right(TOUCHING)


def test_the_shorter_of_two_that_begin_together_written_first_would_be_wrong_silently() -> None:
    planted, sound = [(0, 5), (0, 10)], [(0, 10), (0, 5)]
    assert shown(written(slices(1, planted, named(planted))))["t"] == Counter([("0+5", "0+10"), ("0+10", "0+5")])
    assert shown(written(slices(1, sound, named(sound))))["t"] == right(sound)


def test_seventy_at_once_are_sixty_four_lanes_and_a_count() -> None:
    out = io.BytesIO()
    board = Board(PerfettoWriter(out))
    line = LaneTrack(board, "nic", 0, 0, "nic of rank 0")
    pairs = [(start, 1000) for start in range(70)]
    track = line.place(np.arange(70), np.arange(1000, 1070))
    chunk = slices(track.tolist(), pairs, named(pairs))
    board.sink.slices(chunk.where(track != 0))
    assert board.not_drawn == {"nic of rank 0": 6}
    assert shown(out.getvalue())["nic"] == right(pairs[:64])


def test_times_are_monotonic_nanoseconds_and_unfinished_spans_stay_open() -> None:
    start = 2**57 + 12_345_678_901  # an uptime of 4.6 years: nine bytes of varint
    with load(written(slices(1, [(start, 7), (start + 100, UNFINISHED)]))) as engine:
        assert engine.rows("select ts, dur from slice order by ts") == [
            {"ts": start, "dur": 7}, {"ts": start + 100, "dur": -1},
        ]  # fmt: skip
        assert engine.bad_stats() == []
        wall = engine.values(f"select abs_time_str({start})")[0]
    seconds = (CLOCKS.realtime_ns + start - CLOCKS.monotonic_ns) // 10**9
    assert wall.startswith(str(np.datetime64(seconds, "s")))


def test_flows_join_the_slices_of_one_operation_and_end() -> None:
    tracks = (Track(1, "libfabric"), Track(2, "nic"))
    ids = np.array([7, 0, 2**64 - 1], np.uint64)
    with load(
        written(
            slices(1, [(0, 5), (10, 5), (20, 5)], ("a", "b", "c"), flow=ids),
            slices(2, [(5, 9), (15, 9), (25, 9)], ("a", "b", "c"), last_flow=ids),
            slices(2, [(40, 1)], ("again",), last_flow=ids[:1]),
            tracks=tracks,
        )
    ) as engine:
        arrows = engine.rows(
            "select o.name as source, i.name as target, o.ts < i.ts as forward, ot.name as above, it.name as below"
            " from flow join slice o on o.id = slice_out join slice i on i.id = slice_in"
            " join track ot on ot.id = o.track_id join track it on it.id = i.track_id order by o.ts"
        )
        assert engine.bad_stats() == []
    assert arrows == [
        {"source": name, "target": name, "forward": 1, "above": "libfabric", "below": "nic"} for name in ("a", "c")
    ]


def test_arguments_keep_their_values_and_absent_ones_have_no_row() -> None:
    arguments = (
        Argument("bytes", np.array([0, 2**62, 2**63 - 1], np.uint64)),
        Argument("errno", np.array([-1, 0, -(2**63)]), np.array([False, True, False])),
    )
    with load(written(slices(1, [(0, 1), (5, 1), (9, 1)], arguments=arguments))) as engine:
        rows = engine.rows(
            "select s.ts, a.key, a.int_value as v from slice s join args a using (arg_set_id) order by 1, 2"
        )
    assert [(row["ts"], row["key"], row["v"]) for row in rows] == [
        (0, "debug.bytes", 0), (0, "debug.errno", -1), (5, "debug.bytes", 2**62),
        (9, "debug.bytes", 2**63 - 1), (9, "debug.errno", -(2**63)),
    ]  # fmt: skip


def test_counters_keep_values_units_and_their_place() -> None:
    out = io.BytesIO()
    group = Track(1, "efaprof", orders_children=True)
    writer = writer_to(out, group, Track(2, "in flight", 1, 1, unit="B"), Track(3, "rate", 1, 0, unit="B/s"))
    writer.counter(2, np.array([10, 20, 30]), np.array([1, -5, 2**52]))
    writer.counter(3, np.array([10, 20]), np.array([0.5, 1e15]))
    with load(out.getvalue()) as engine:
        rows = engine.rows(
            "select t.name, t.unit, c.ts, c.value from counter c join counter_track t on t.id = c.track_id"
            " order by t.name, c.ts"
        )
        assert engine.bad_stats() == []
    assert [tuple(row.values()) for row in rows] == [
        ("in flight", "B", 10, 1.0), ("in flight", "B", 20, -5.0), ("in flight", "B", 30, float(2**52)),
        ("rate", "B/s", 10, 0.5), ("rate", "B/s", 20, 1e15),
    ]  # fmt: skip


def test_names_in_any_script_come_through() -> None:
    names = ("Übertragung", "ネット", "🧵 rma.write", 'a"b\\c', "x" * 500, "")
    with load(written(slices(1, [(10 * n, 1) for n in range(6)], names), tracks=(Track(1, "→ Spur"),))) as engine:
        assert engine.values("select ifnull(name, '') from slice order by ts") == list(names)
        assert engine.values("select distinct t.name from slice s join track t on t.id = s.track_id") == ["→ Spur"]


def test_facts_of_the_run_are_on_a_mark() -> None:
    out = io.BytesIO()
    writer = writer_to(out, Track(1, "efaprof run"))
    facts = {"program": "fi_pingpong → b", "drops": 0, "negative": -3, "huge": 2**70, "share": 0.25, "ok": True}
    writer.facts(1, 77, "efaprof run", facts)
    (attributes,) = (one.trace_attributes for one in decoded(out.getvalue()) if one.HasField("trace_attributes"))
    told = {one.key: one.long_value if one.HasField("long_value") else one.string_value for one in attributes.attribute}
    assert told == {**facts, "huge": str(2**70), "share": "0.25", "ok": "True"}
    with load(out.getvalue()) as engine:
        rows = engine.rows("select s.ts, a.key, a.display_value as v from slice s join args a using (arg_set_id)")
        assert engine.bad_stats() == []
    assert {row["key"]: row["v"] for row in rows} == {
        "debug.program": "fi_pingpong → b", "debug.drops": "0", "debug.negative": "-3", "debug.huge": str(2**70),
        "debug.share": "0.25", "debug.ok": "true",
    }  # fmt: skip
    assert {row["ts"] for row in rows} == {77}


def test_two_files_one_after_the_other_are_one_valid_file() -> None:
    def one(process: int, names: tuple[str, str]) -> bytes:
        tracks = (
            Track(10 * process, f"rank {process}", process=ProcessFacts(process)),
            Track(10 * process + 1, "nic", 10 * process),
        )
        return written(slices(10 * process + 1, [(5, 3), (9, 3)], names), tracks=tracks)

    with load(one(1, ("a", "b")) + one(2, ("c", "d"))) as engine:
        assert engine.values("select name from slice order by name") == ["a", "b", "c", "d"]
        assert engine.bad_stats() == []


@pytest.mark.slow
def test_a_million_slices_keep_every_sum() -> None:
    rng = np.random.default_rng(5)
    starts = np.sort(rng.integers(0, 10**10, 1_000_000))
    durations = rng.integers(0, 60_000, 1_000_000)
    out = io.BytesIO()
    board = Board(PerfettoWriter(out, clocks=CLOCKS))
    line = LaneTrack(board, "nic", 0, 0, "nic")
    for first in range(0, 1_000_000, 200_000):
        part = slice(first, first + 200_000)
        track = line.place(starts[part], (starts + durations)[part])
        chunk = slices(track.tolist(), np.stack([starts[part], durations[part]], axis=1))
        board.sink.slices(chunk.where(track != 0))
    assert board.not_drawn == {}
    with load(out.getvalue()) as engine:
        (row,) = engine.rows("select count() as n, sum(dur) as total, min(ts) as low, max(ts + dur) as high from slice")
        assert engine.bad_stats() == []
    assert (row["n"], row["total"]) == (1_000_000, int(durations.sum()))
    assert (row["low"], row["high"]) == (int(starts[0]), int((starts + durations).max()))
