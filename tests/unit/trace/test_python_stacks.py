"""py-spy's files as frames on our clock."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stack_files import ORIGIN_NS, events, sampling, write

from efaprof.trace.python_stacks import _origin_ns, _with_parents, read_stacks
from efaprof.trace.rundir import open_run
from efaprof.trace.synth import SynthRun

HALF_NS = 500  # of the period at 1 MHz
MS = 1_000_000


@pytest.fixture
def run(tmp_path):
    synth = SynthRun(tmp_path / "efaprof-x")
    synth.ring(pid=100)
    return synth.finish(program="x", command=["x"])


def frames(run, found, **facts):
    write(run.path, found, sampling(100, **facts))
    stacks = read_stacks(open_run(run.path))
    assert stacks is not None
    assert stacks.warnings == ()
    return stacks.frames


def test_a_run_without_samples_has_no_stacks(run):
    assert read_stacks(run) is None


def test_frames_nest_under_their_callers_and_lie_half_a_period_early(run):
    table = frames(run, events(100, [(10, 20, "main;step"), (20, 50, "main;step;wait")]))
    assert table.select("function", "depth", "parent", "begin_ns", "end_ns").rows() == [
        ("main", 0, -1, ORIGIN_NS + 10_000 - HALF_NS, ORIGIN_NS + 20_000 - HALF_NS),
        ("step", 1, 0, ORIGIN_NS + 10_000 - HALF_NS, ORIGIN_NS + 20_000 - HALF_NS),
        ("main", 0, -1, ORIGIN_NS + 20_000 - HALF_NS, ORIGIN_NS + 50_000 - HALF_NS),
        ("step", 1, 2, ORIGIN_NS + 20_000 - HALF_NS, ORIGIN_NS + 50_000 - HALF_NS),
        ("wait", 2, 3, ORIGIN_NS + 20_000 - HALF_NS, ORIGIN_NS + 50_000 - HALF_NS),
    ]
    assert set(table["thread"]) == {"MainThread"}
    assert set(table["pid"]) == set(table["tid"]) == {100}


def test_threads_that_share_a_handle_one_after_the_other_are_told_apart(run):
    first = events(101, [(10, 20, "work")], key=7, name="a")
    second = events(102, [(30, 40, "work")], key=7, name="b")
    table = frames(run, first + second)
    assert table.select("tid", "thread").rows() == [(101, "a"), (102, "b")]


def test_the_stacks_of_a_thread_that_ended_end_with_it(run):
    found = events(100, [(0, 10_000_000, "main")]) + events(101, [(0, 10_000_000, "gone")], name="t")
    seen = {"100": ORIGIN_NS + 10_000 * MS, "101": ORIGIN_NS + 2_000 * MS}
    ends = dict(frames(run, found, threads=seen).select("function", "end_ns").iter_rows())
    assert ends["main"] == ORIGIN_NS + 10_000 * MS - HALF_NS
    assert ends["gone"] == ORIGIN_NS + 2_250 * MS


@pytest.mark.parametrize(
    ("facts", "origin"),
    [
        ({"spawned_ns": 100, "running_ns": 200}, 200 + 2 * MS),  # nothing else is known
        ({"spawned_ns": 0, "running_ns": 10 * MS, "closed_ns": 61 * MS}, 11 * MS),  # its last stamp was before that
        ({"spawned_ns": 0, "running_ns": 10 * MS, "ended_ns": 59 * MS}, 9 * MS),
        ({"spawned_ns": 0, "running_ns": 10 * MS, "born_ns": 70 * MS, "closed_ns": 90 * MS}, 20 * MS),  # and after this
        ({"spawned_ns": 5 * MS, "running_ns": 6 * MS, "ended_ns": 51 * MS}, 5 * MS),  # never before it was started
    ],
)
def test_where_its_stamps_begin_is_bounded_by_what_the_recorder_saw(facts, origin):
    assert _origin_ns(facts, 50_000) == origin


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=30))
def test_every_frame_has_the_caller_that_encloses_it(pieces):
    stretches, at = [], 0
    for length, depth in pieces:
        stretches.append((at, at + length, ";".join(f"f{level}" for level in range(depth))))
        at += length
    rows = [
        {"pid": 1, "tid": 1, "thread": "", "function": word, "file": "", "line": 0, "depth": level, "begin_ns": begin,
         "end_ns": end, "parent": -1}
        for begin, end, stack in stretches
        for level, word in enumerate(stack.split(";"))
    ]  # fmt: skip
    table = _with_parents(pl.DataFrame(rows))
    for row in table.to_dicts():
        if row["depth"] == 0:
            assert row["parent"] == -1
        else:
            caller = table.row(row["parent"], named=True)
            assert (caller["depth"], caller["begin_ns"]) == (row["depth"] - 1, row["begin_ns"])


@pytest.mark.parametrize("damage", ["[", '[{"ph": "B"}]', None])
def test_a_file_that_is_damaged_or_missing_is_named_and_the_rest_is_read(run, damage):
    write(run.path, events(100, [(0, 10, "main")]), sampling(100), sampling(101, "python-101-0.json"))
    if damage is not None:
        (run.path / "raw" / "python-101-0.json").write_text(damage)
    stacks = read_stacks(run)
    assert stacks is not None
    assert stacks.frames["function"].to_list() == ["main"]
    (warning,) = stacks.warnings
    assert warning.startswith("raw/python-101-0.json: Python stacks not read: ")


def test_a_file_whose_begins_and_ends_do_not_match_is_refused(run):
    write(run.path, events(100, [(0, 10, "main")])[:-1], sampling(100))
    stacks = read_stacks(run)
    assert stacks is not None
    assert "begins and ends do not match" in stacks.warnings[0]


def test_a_damaged_index_is_said(run):
    (run.path / "raw" / "python.json").write_text("{")
    stacks = read_stacks(run)
    assert stacks is not None
    assert stacks.warnings[0].startswith("raw/python.json cannot be read")


def test_what_could_not_be_sampled_was_said_by_the_recorder(run):
    write(
        run.path, events(100, [(0, 10, "main")]), sampling(100), sampling(7, "none.json", problem="permission denied")
    )
    stacks = read_stacks(run)
    assert stacks is not None
    assert stacks.warnings == ()
