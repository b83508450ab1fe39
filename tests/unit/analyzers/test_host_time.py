"""Stacks within stretches of time."""

from __future__ import annotations

import numpy as np
import polars as pl

from efaprof.analyzers.host_time import GAPS, driving_threads, host_time
from efaprof.analyzers.intervals import union
from efaprof.trace.python_stacks import FRAMES, _with_parents


def frames(*rows):
    """(pid, tid, depth, function, begin, end)."""
    table = [
        {"pid": pid, "tid": tid, "thread": f"t{tid}", "function": function, "file": f"/a/{function}.py", "line": 1,
         "depth": depth, "begin_ns": begin, "end_ns": end, "parent": -1}
        for pid, tid, depth, function, begin, end in rows
    ]  # fmt: skip
    return _with_parents(pl.DataFrame(table, schema=FRAMES))


def stretches(*pairs):
    array = np.array(pairs, np.int64).reshape(-1, 2)
    return union(array[:, 0], array[:, 1])


SERVER = frames(
    (1, 1, 0, "main", 0, 100),
    (1, 1, 1, "schedule", 0, 40),
    (1, 1, 2, "select", 10, 40),
    (1, 1, 1, "forward", 40, 100),
    (1, 9, 0, "log", 0, 100),
)


def test_time_on_top_of_the_stack_counts_inside_the_stretches_only():
    found = host_time(SERVER, {1: stretches((0, 20), (90, 110))}, {1: 1}, window=GAPS)
    assert {one.function: one.ns for one in found.functions} == {"schedule": 10, "select": 10, "forward": 10}
    assert (found.window_ns, found.sampled_ns) == (40, 30)
    assert sum(one.share for one in found.functions) == 1
    assert found.threads == ("t1",)


def test_who_called_a_function_is_said():
    found = host_time(SERVER, {1: stretches((0, 100))}, {1: 1}, window=GAPS)
    assert [(one.function, one.caller, one.ns) for one in found.functions] == [
        ("forward", "main", 60), ("select", "schedule", 30), ("schedule", "main", 10),
    ]  # fmt: skip


def test_the_thread_that_marked_steps_answers_else_the_main_thread_else_the_busiest():
    assert driving_threads(SERVER, {1: [9]}) == {1: 9}
    assert driving_threads(SERVER, {1: [77]}) == {1: 1}
    assert driving_threads(frames((5, 6, 0, "a", 0, 10), (5, 7, 0, "b", 0, 30)), {}) == {5: 7}


def test_processes_add_up():
    both = frames((1, 1, 0, "f", 0, 100), (2, 2, 0, "f", 0, 50))
    found = host_time(both, {1: stretches((0, 10)), 2: stretches((40, 60))}, {1: 1, 2: 2}, window=GAPS)
    assert [(one.function, one.ns) for one in found.functions] == [("f", 20)]
    assert (found.window_ns, found.sampled_ns) == (30, 20)


def test_stretches_without_stacks_have_no_functions():
    found = host_time(SERVER, {1: stretches((200, 300))}, {1: 1}, window=GAPS)
    assert (found.functions, found.sampled_ns, found.window_ns) == ((), 0, 100)
