from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from efaprof.export import levels
from efaprof.export.levels import Changes
from efaprof.export.source import Window

changes = st.lists(st.tuples(st.integers(0, 999), st.integers(-5, 5)), min_size=1, max_size=80)


def filled(window: Window, pairs: list[tuple[int, int]], parts: int = 3) -> Changes:
    made = Changes(window)
    for part in np.array_split(np.array(pairs, np.int64), parts):
        made.add(part[:, 0], part[:, 1])
    return made


@given(changes)
def test_the_level_is_the_sum_of_all_changes_up_to_then(pairs: list[tuple[int, int]]) -> None:
    times, values = filled(Window(0, 1000), pairs).level()
    assert (np.diff(times) > 0).all()
    assert (np.diff(values) != 0).all(), "a point that changes nothing is a point too many"
    for time, value in zip(times, values, strict=True):
        assert value == sum(amount for when, amount in pairs if when <= time)
    assert values[-1] == sum(amount for _, amount in pairs)


@given(changes)
def test_sums_lose_nothing(pairs: list[tuple[int, int]]) -> None:
    _, amounts = filled(Window(0, 1000), pairs).sums()
    assert amounts.sum() == sum(amount for _, amount in pairs)


def test_many_changes_become_values_at_the_ends_of_equal_stretches(monkeypatch) -> None:
    monkeypatch.setattr(levels, "MAX_CHANGES", 50)
    monkeypatch.setattr(levels, "GRID", 10)
    rng = np.random.default_rng(3)
    pairs = list(zip(rng.integers(0, 1000, 400).tolist(), rng.integers(1, 9, 400).tolist(), strict=True))
    made = filled(Window(0, 1000), pairs)
    times, values = made.level()
    assert made.step_ns == 100
    assert len(times) <= 10
    for time, value in zip(times, values, strict=True):
        assert value == sum(amount for when, amount in pairs if when < time)
    assert made.sums()[1].sum() == sum(amount for _, amount in pairs)


def test_changes_outside_the_window_count_at_its_edge() -> None:
    made = Changes(Window(100, 200))
    made.add(np.array([50, 150, 900]), np.array([1, 1, -2]))
    times, values = made.level()
    assert times.tolist() == [100, 150, 199]
    assert values.tolist() == [1, 2, 0]


def test_nothing_is_an_empty_line() -> None:
    times, values = Changes(Window(0, 1)).level()
    assert times.size == values.size == 0
