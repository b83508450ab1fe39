"""A sweep's grid: every combination, in turns, and mistakes named before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from efaprof.errors import EfaprofError, UsageError
from efaprof.session.sweep import grid, parse_vary, run_cells


def test_every_combination_is_there_and_repeats_take_turns():
    cells = grid(parse_vary(["channels=4,8", "hidden=512,1024"]), repeat=2, folder=Path("out"))
    assert [cell.path.name for cell in cells[:4]] == [
        "channels4-hidden512-1", "channels4-hidden1024-1", "channels8-hidden512-1", "channels8-hidden1024-1",
    ]  # fmt: skip
    assert [cell.seed for cell in cells] == [1] * 4 + [2] * 4
    assert cells[5].values == {"channels": "4", "hidden": "1024"}


@pytest.mark.parametrize(
    ("vary", "reason"),
    [
        ([], "nothing is varied"),
        (["colour=1,2"], "'colour' cannot be varied"),
        (["steps=1,2"], "'steps' cannot be varied"),
        (["channels=4"], "no two values"),
        (["channels=4,4"], "no two values"),
        (["channels=4,8", "channels=8,16"], "no two values"),
    ],
)
def test_mistakes_are_named(vary, reason):
    with pytest.raises(UsageError) as caught:
        parse_vary(vary)
    assert reason in caught.value.message


def test_a_run_that_fails_stops_the_sweep_with_its_own_words(tmp_path):
    cells = grid(parse_vary(["channels=4,8"]), repeat=1, folder=tmp_path)
    with pytest.raises(EfaprofError, match="channels4 failed") as caught:
        list(run_cells(cells, ["--no-such-option"]))
    assert "bench dispatch --no-such-option --channels 4" in str(caught.value.hint)
