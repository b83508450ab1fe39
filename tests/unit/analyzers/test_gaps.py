"""Gaps of steps against the exclusive sweep's idle time."""

from __future__ import annotations

from hand_made import HandMade, worked_example
from hypothesis import given
from hypothesis import strategies as st

from efaprof.analyzers.gaps import StepGaps
from efaprof.analyzers.layers import LayerSplitter

STAMPS = ("enter", "publish", "seen", "call", "return", "done", "arrival", "signal")


def test_what_nothing_covers_is_a_gap():
    made = HandMade(unit=1)
    made.step(0, 0, 100)
    made.compute(0, 10, 30)
    made.wait(0, 50, 60, source=0)
    found = StepGaps()
    found.add(made.chunk())
    assert list(zip(found.gaps[0].begin, found.gaps[0].end, strict=True)) == [(0, 10), (30, 50), (60, 100)]


def test_steps_that_are_no_decode_steps_have_none():
    made = HandMade(unit=1)
    made.step(0, 0, 100, kind="warm-up")
    made.step(0, 100, 120, number=1)
    found = StepGaps()
    found.add(made.chunk())
    assert (found.steps[0].covered_ns, found.gaps[0].covered_ns) == (20, 20)


def test_an_operation_that_is_open_at_a_chunk_s_end_covers_the_next_one():
    first, second = HandMade(unit=1), HandMade(unit=1)
    first.step(0, 0, 100)
    first.operation(0, 0, 1, enter=90, publish=92, seen=93, call=94, **{"return": 95}, done=130)
    second.step(0, 100, 200, number=1)
    found = StepGaps()
    found.add(first.chunk())
    found.add(second.chunk())
    assert list(zip(found.gaps[0].begin, found.gaps[0].end, strict=True)) == [(0, 90), (130, 200)]


def test_the_worked_example_has_no_gap_on_the_rank_that_waits():
    found = StepGaps()
    found.add(worked_example())
    split = LayerSplitter().split(worked_example())
    for row in split.to_dicts():
        assert found.gaps[row["rank"]].covered_ns == row["idle_ns"]


@given(
    st.lists(st.tuples(st.integers(0, 1), st.lists(st.integers(0, 120), min_size=8, max_size=8)), max_size=8),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 110), st.integers(0, 30)), max_size=4),
)
def test_gaps_are_as_long_as_the_idle_of_the_exclusive_sweep(operations, computes):
    made = HandMade(unit=1)
    for rank in range(2):
        made.step(rank, 0, 60)
        made.step(rank, 60, 120, number=1)
    for seq, (rank, times) in enumerate(operations):
        made.operation(rank, seq, 1 - rank, **dict(zip(STAMPS, sorted(times), strict=True)))
    for rank, begin, length in computes:
        made.compute(rank, begin, begin + length)
    found = StepGaps()
    found.add(made.chunk())
    split = LayerSplitter().split(made.chunk())
    for rank in range(2):
        idle = int(split.filter(rank=rank)["idle_ns"].sum())
        assert found.gaps[rank].covered_ns == idle
