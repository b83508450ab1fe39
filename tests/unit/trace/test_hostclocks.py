"""Clocks of several hosts: a known offset and drift are found again, within an error that holds."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from efaprof.trace import dispatch
from efaprof.trace.hostclocks import Bounds, Line, align, reach
from efaprof.trace.steady import HostClock, Steady, write_hosts, write_steady
from efaprof.trace.survey import survey
from efaprof.trace.synth import SynthRun

STEADY = Steady(steps=60, commands=6, ranks=2)
CLOCKS = (
    HostClock(offset_ns=5_000_000_000),
    HostClock(offset_ns=-90_000_000, drift=8e-6, day_error_ns=400_000),
)


def aligned(folder, steady=STEADY, clocks=CLOCKS):
    runs = write_hosts(folder, steady, clocks)
    return align(survey([path for run in runs for path in run.raw_files]))


def stamps(surveyed):
    columns = [chunk.columns for chunk in dispatch.chunks(surveyed)]
    joined = {name: np.concatenate([one[name] for one in columns]) for name in columns[0]}
    order = np.lexsort((joined["seq"], joined["ring"]))
    return {name: values[order] for name, values in joined.items() if name.endswith("_ns") and name != "fenced_ns"}


def test_operations_across_hosts_lie_where_they_were_within_the_error(tmp_path):
    found = aligned(tmp_path / "hosts")
    one_host = stamps(survey(write_steady(tmp_path / "one", STEADY).raw_files))
    assert found.hosts == 2
    assert abs(found.drift - 8e-6) * STEADY.steps * STEADY.wall_ns <= 2 * found.error_ns
    for name, values in stamps(found.survey).items():
        away = values - one_host[name]
        assert np.ptp(away) <= found.error_ns, name
    flight = STEADY.libfabric_ns + STEADY.nic_ns  # a message's, one way
    assert found.error_ns <= 2.2 * flight


def test_no_message_arrives_before_it_left(tmp_path):
    found = stamps(aligned(tmp_path).survey)
    assert (found["arrival_ns"] > found["call_ns"]).all()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(-(10**12), 10**12), st.floats(-3e-5, 3e-5), st.integers(1, 50_000), st.integers(1, 50_000),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_the_true_difference_is_never_farther_than_the_error(offset, drift, there, back, seed):
    rng = np.random.default_rng(seed)
    bounds, whole = Bounds(), 2_000_000_000

    def difference(time):
        return offset + drift * time

    sent = np.sort(rng.integers(0, whole, 300))
    bounds.below.append((sent, np.ceil(difference(sent) + there + rng.exponential(20_000, 300)).astype(np.int64)))
    arrived = np.sort(rng.integers(0, whole, 300))
    bounds.above.append((arrived, np.floor(difference(arrived) - back - rng.exponential(20_000, 300)).astype(np.int64)))
    line = bounds.line()
    for time in (int(min(sent[0], arrived[0])), int(max(sent[-1], arrived[-1]))):
        said = line.offset_ns + line.drift * (time - line.at_ns)
        assert abs(said - difference(time)) <= line.error_ns + 2


def test_messages_one_way_align_nothing():
    bounds = Bounds()
    bounds.below.append((np.arange(10), np.arange(10) + 100))
    assert bounds.line() is None


def test_messages_that_contradict_each_other_align_nothing():
    bounds = Bounds()
    bounds.below.append((np.arange(10), np.full(10, 100)))
    bounds.above.append((np.arange(10), np.full(10, 200)))
    assert bounds.line() is None


def test_hosts_without_messages_both_ways_are_told(tmp_path):
    """Of three ranks each sends to the next one only."""
    three = Steady(steps=20, commands=4, ranks=3)
    assert aligned(tmp_path, three, [*CLOCKS, HostClock()]).startswith("no line fits between their clocks")


def test_without_steps_nothing_is_aligned(tmp_path):
    runs = [SynthRun(tmp_path / name, host=name, boot=(number, 1)) for number, name in enumerate("ab", 1)]
    for run in runs:
        run.ring().clock_sample(100)
    surveyed = survey([path for run in runs for path in run.finish().raw_files])
    assert align(surveyed) == "their clocks are not aligned, as no message between them is known"


def test_a_host_is_reached_over_others_by_the_way_with_the_least_error():
    a, b, c = (1, 0), (2, 0), (3, 0)
    lines = {
        (a, b): Line(1_000, 500.0, 1e-5, 10.0),  # b shows 500 ns more than a
        (b, c): Line(1_000, -2_000.0, 0.0, 20.0),
        (a, c): Line(1_000, 123.0, 0.0, 900.0),
    }
    found = reach(a, lines)
    assert {boot: one.error_ns for boot, one in found.items()} == {a: 0, b: 10, c: 30}
    time = np.array([5_000_000])
    for shift in found[c].shifts:
        time = shift.to_ns_of(time)
    assert abs(int(time[0]) - (5_000_000 + 2_000 - 500 - 50)) <= 2
