from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from efaprof.export.lanes import FOREVER, NO_LANE, Lanes, crossing, nesting_order, place_nested

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25)), min_size=1, max_size=120)


def columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    ordered = np.array(sorted(pairs), np.int64)
    return ordered[:, 0].copy(), ordered[:, 0] + ordered[:, 1]


def clashes(starts: np.ndarray, ends: np.ndarray, lanes: np.ndarray) -> int:
    """Pairs of neighbours on one lane that overlap; one of no length takes its nanosecond."""
    ends = np.maximum(ends, starts + 1)
    found = 0
    for lane in set(lanes.tolist()) - {NO_LANE}:
        rows = lanes == lane
        found += int((starts[rows][1:] < ends[rows][:-1]).sum())
    return found


def most_at_once(starts: np.ndarray, ends: np.ndarray) -> int:
    ends = np.maximum(ends, starts + 1)
    return max(int(((starts <= start) & (ends > start)).sum()) for start in starts)


def place_in_parts(lanes: Lanes, starts: np.ndarray, ends: np.ndarray, cuts: list[int]) -> np.ndarray:
    bounds = [0, *sorted(cut % (len(starts) + 1) for cut in cuts), len(starts)]
    return np.concatenate([lanes.place(starts[a:b], ends[a:b]) for a, b in pairwise(bounds)])


@given(spans)
def test_spans_on_a_lane_follow_each_other_and_no_lane_is_wasted(pairs: list[tuple[int, int]]) -> None:
    starts, ends = columns(pairs)
    lanes = Lanes(limit=200).place(starts, ends)
    assert clashes(starts, ends, lanes) == 0
    assert int(lanes.min()) == 0
    assert int(lanes.max()) + 1 == most_at_once(starts, ends)


@given(spans, st.lists(st.integers(0, 120), max_size=6))
def test_chunks_go_on_where_the_last_one_ended(pairs: list[tuple[int, int]], cuts: list[int]) -> None:
    starts, ends = columns(pairs)
    lanes = place_in_parts(Lanes(limit=200), starts, ends, cuts)
    assert clashes(starts, ends, lanes) == 0
    assert int(lanes.max()) + 1 <= most_at_once(starts, ends)


@given(spans, st.integers(1, 6), st.lists(st.integers(0, 120), max_size=4))
def test_a_span_is_left_out_only_while_all_lanes_are_taken(
    pairs: list[tuple[int, int]], limit: int, cuts: list[int]
) -> None:
    starts, ends = columns(pairs)
    crowd = Lanes(limit=limit)
    lanes = place_in_parts(crowd, starts, ends, cuts)
    assert clashes(starts, ends, lanes) == 0
    assert int(lanes.max()) < limit
    assert crowd.overflow == int((lanes == NO_LANE).sum())
    drawn, reserved = lanes != NO_LANE, np.maximum(ends, starts + 1)
    for row in np.flatnonzero(~drawn):
        before = np.arange(len(starts)) < row
        assert int((before & drawn & (reserved > starts[row])).sum()) == limit


def test_spans_in_a_row_share_the_first_lane() -> None:
    starts = np.arange(0, 1000, 10)
    assert not Lanes().place(starts, starts + 10).any()


def test_a_span_that_never_ends_keeps_its_lane() -> None:
    lanes = Lanes()
    assert lanes.place(np.array([0]), np.array([FOREVER])).tolist() == [0]
    assert lanes.place(np.array([10, 20]), np.array([15, 25])).tolist() == [1, 1]
    assert lanes.place(np.array([10**15]), np.array([10**15 + 1])).tolist() == [1]


def test_of_seventy_at_once_sixty_four_are_drawn() -> None:
    starts = np.arange(70)
    lanes = Lanes()
    placed = lanes.place(starts, np.full(70, 1000))
    assert sorted(placed[:64].tolist()) == list(range(64))
    assert placed[64:].tolist() == [NO_LANE] * 6
    assert lanes.overflow == 6
    assert lanes.place(np.array([1000]), np.array([1001])).tolist() != [NO_LANE]


def test_after_a_pause_lanes_start_at_the_first_again() -> None:
    starts = np.array([0, 1, 2, 100, 200, 201])
    ends = np.array([10, 10, 10, 110, 210, 211])
    assert Lanes().place(starts, ends).tolist() == [0, 1, 2, 0, 0, 1]


def paired_durations(starts: np.ndarray, ends: np.ndarray) -> list[int]:
    """What a timeline makes of spans on one track: an end belongs to the innermost open begin."""
    moments = [(when, index) for pair in zip(starts, ends, strict=True) for index, when in enumerate(pair)]
    owners = [index // 2 for index in range(len(moments))]
    open_spans: list[int] = []
    durations = [0] * len(starts)
    for index in sorted(range(len(moments)), key=lambda index: moments[index][0]):
        when, is_end = moments[index]
        if not is_end:
            open_spans.append(owners[index])
        else:
            inner = open_spans.pop()
            durations[inner] = int(when - starts[inner])
    return durations


@given(spans)
def test_crossing_finds_what_a_timeline_would_cut_short(pairs: list[tuple[int, int]]) -> None:
    starts, ends = columns(pairs)
    order = nesting_order(starts, ends)
    starts, ends = starts[order], ends[order]
    shown = np.array(paired_durations(starts, ends))
    assert crossing(starts, ends).tolist() == (shown < ends - starts).tolist()


@given(spans)
def test_nested_placement_shows_every_duration(pairs: list[tuple[int, int]]) -> None:
    starts, ends = columns(pairs)
    order = nesting_order(starts, ends)
    starts, ends = starts[order], ends[order]
    lanes = place_nested(starts, ends, limit=200)
    for lane in set(lanes.tolist()):
        rows = lanes == lane
        assert paired_durations(starts[rows], ends[rows]) == (ends - starts)[rows].tolist()


@pytest.mark.parametrize(
    "pairs",
    [
        [(0, 100), (0, 50), (0, 50), (50, 50), (60, 40), (60, 0)],
        [(0, 10), (10, 10), (20, 0), (20, 10)],
        [(5, 0), (5, 0), (5, 0)],
    ],
)
def test_what_nests_stays_on_its_thread(pairs: list[tuple[int, int]]) -> None:
    starts, ends = columns(pairs)
    order = nesting_order(starts, ends)
    assert not place_nested(starts[order], ends[order]).any()


def test_only_the_crossing_span_leaves_its_thread() -> None:
    starts, ends = np.array([0, 10, 50, 120]), np.array([100, 20, 150, 130])
    assert place_nested(starts, ends).tolist() == [0, 0, 1, 0]


def test_a_long_chain_of_crossings_ends() -> None:
    starts = np.arange(0, 4000, 2, dtype=np.int64)
    ends = starts + 3
    lanes = place_nested(starts, ends)
    assert clashes(starts, ends, lanes) == 0
    assert (lanes != NO_LANE).all()
