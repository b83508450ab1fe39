"""Turns: every part of every ring once, and never one ring far ahead of the others."""

from __future__ import annotations

from itertools import pairwise

from efaprof.trace.steady import Steady, write_steady
from efaprof.trace.survey import survey
from efaprof.trace.turns import NEVER, turns


def test_each_part_comes_once_and_nothing_earlier_than_promised_follows(tmp_path):
    run = write_steady(tmp_path / "run", Steady(steps=60, commands=6, ranks=3))
    rings = survey(run.raw_files, part_slots=100).rings
    found = list(turns(rings))
    parts = [(turn.ring.raw.path, turn.part.begin) for turn in found]
    assert sorted(parts) == sorted((ring.raw.path, part.begin) for ring in rings for part in ring.parts)
    assert len(set(parts)) == len(parts) > 20
    assert all(one.reached_ns <= other.reached_ns for one, other in pairwise(found))
    assert found[-1].reached_ns == NEVER
    for before, turn in pairwise(found):
        assert turn.part.last_ticks >= before.reached_ns


def test_without_parts_there_are_no_turns():
    assert list(turns([])) == []
