"""Bounds on the error of a GPU's times, on runs whose answer is known in closed form."""

from __future__ import annotations

import pytest

from efaprof.analyzers.device_clock import NODES_TOLD, Bounds, device_clocks
from efaprof.trace import layout, reader
from efaprof.trace.layout import DEVICE, EVERY_STREAM, Device, Payload, Shape, Source, Span
from efaprof.trace.synth import SynthRun, kind_of

CONTEXT, STREAM, OTHER = 3, 7, 8
SECOND = 1_000_000_000


@pytest.fixture
def synth(tmp_path):
    return SynthRun(tmp_path / "run")


@pytest.fixture
def ring(synth):
    return synth.ring()


def call(ring, begin, end, what, correlation, **fields):
    ring.named_range("call", begin, end, what=what, source=Source.CUDA, correlation=correlation, **fields)


def work(ring, begin, end, correlation, *, what=Device.KERNEL, **fields):
    values = {"stream": STREAM, "context": CONTEXT} | fields
    ring.put(
        DEVICE, kind_of(Shape.DEVICE, what), end, dur_ns=end - begin, t_begin=begin, correlation=correlation, **values
    )


def wait(ring, begin, end, correlation, stream=STREAM, context=CONTEXT):
    call(ring, begin, end, Span.WAIT, correlation, payload=stream, payload_type=Payload.U64, category=context)


def launch(ring, at, correlation):
    call(ring, at, at + 5, Span.LAUNCH, correlation)


def clocks(synth):
    return device_clocks(reader.open_tables(synth.finish()))


def bounds(synth):
    (only,) = clocks(synth)
    return only.bounds


def exchange(ring, shift=0):
    """Two kernels of 100, seen 7 and 9 after their calls; waits return 4 and 6 after the second ended."""
    launch(ring, 1000, 1)
    work(ring, 1007 + shift, 1107 + shift, 1)
    launch(ring, 2000, 2)
    work(ring, 2009 + shift, 2109 + shift, 2)
    wait(ring, 2050, 2113, 3)
    wait(ring, 2114, 2115, 4, stream=EVERY_STREAM)


def test_the_tightest_launch_and_the_tightest_wait_bound_the_shift(synth, ring):
    exchange(ring)
    (found,) = clocks(synth)
    assert found.bounds == Bounds(-7, 4)
    assert (found.launches, found.waits) == (2, 2)
    assert (found.bounds.error_ns, found.bounds.off_ns, found.bounds.wander_ns) == (6, 0, 0)
    assert found.stretches == ()


@pytest.mark.parametrize(
    ("shift", "lowest", "highest", "off"), [(-50, 43, 54, 43), (50, -57, -46, -46), (3, -10, 1, 0), (-7, 0, 11, 0)]
)
def test_times_that_are_shifted_shift_the_bounds_the_other_way(synth, ring, shift, lowest, highest, off):
    exchange(ring, shift)
    found = bounds(synth)
    assert found == Bounds(lowest, highest)
    assert (found.off_ns, found.error_ns) == (off, 6)


def test_a_program_that_waits_for_nothing_bounds_one_side(synth, ring):
    launch(ring, 1000, 1)
    work(ring, 1020, 1100, 1)
    found = bounds(synth)
    assert found == Bounds(-20, None)
    assert (found.error_ns, found.off_ns, found.wander_ns) == (None, 0, 0)


def test_shifts_that_exclude_each_other_mean_that_times_wander(synth, ring):
    launch(ring, 1000, 1)
    work(ring, 990, 1100, 1)  # 10 early
    launch(ring, 2000, 2)
    work(ring, 2010, 2105, 2)
    wait(ring, 2020, 2100, 3)  # 5 late
    found = bounds(synth)
    assert found == Bounds(10, -5)
    assert (found.error_ns, found.off_ns, found.wander_ns) == (None, 0, 15)


def test_a_wait_says_nothing_of_what_was_launched_after_it_began_or_elsewhere(synth, ring):
    launch(ring, 1000, 1)
    work(ring, 1010, 1100, 1)
    launch(ring, 1200, 2)
    work(ring, 1210, 9000, 2)  # its call returned after the wait began
    wait(ring, 1203, 1300, 3)
    launch(ring, 1010, 4)
    work(ring, 1020, 9000, 4, stream=OTHER)
    launch(ring, 1030, 5)
    work(ring, 1040, 9000, 5, context=CONTEXT + 1)
    assert bounds(synth) == Bounds(-10, 200)


def test_a_wait_for_a_context_is_for_all_of_its_streams(synth, ring):
    launch(ring, 1000, 1)
    work(ring, 1010, 1100, 1)
    launch(ring, 1010, 2)
    work(ring, 1020, 1400, 2, stream=OTHER)
    wait(ring, 1100, 1409, 3, stream=EVERY_STREAM)
    assert bounds(synth) == Bounds(-10, 9)


def test_a_wait_for_an_event_is_for_what_was_launched_before_it_was_recorded(synth, ring):
    launch(ring, 1000, 1)
    work(ring, 1010, 1100, 1)
    call(ring, 1010, 1012, Span.EVENT, 2, payload=STREAM, payload_type=Payload.U64, category=CONTEXT)
    launch(ring, 1020, 3)
    work(ring, 1100, 9000, 3)  # launched after the event, before the wait for it
    call(ring, 1050, 1111, Span.WAIT, 4, payload=2, payload_type=Payload.U32)
    call(ring, 1050, 1060, Span.WAIT, 5, payload=77, payload_type=Payload.U32)  # for one that nobody knows
    (found,) = clocks(synth)
    assert found.bounds == Bounds(-10, 11)
    assert found.waits == 1


def test_a_copy_to_the_host_ends_before_its_call_returns(synth, ring):
    call(ring, 1000, 1100, Span.WAIT, 1)
    work(ring, 1010, 1098, 1, what=Device.COPY, bytes=64)
    (found,) = clocks(synth)
    assert found.bounds == Bounds(-10, 2)
    assert (found.launches, found.waits) == (1, 1)


def test_kernels_of_graphs_are_not_taken_for_work_of_the_stream_that_they_are_told_in(synth, ring):
    ring.put(layout.NOTE, kind_of(Shape.NOTE, 1), 900, name=ring.name(NODES_TOLD, 900), value=130000)
    call(ring, 1000, 1005, Span.GRAPH, 1, payload=42, payload_type=Payload.U64)
    work(ring, 1010, 5000, 1, graph=42)
    wait(ring, 1100, 1300, 2)
    assert bounds(synth) == Bounds(-10, None)


def test_each_gpu_has_bounds_of_its_own(synth, ring):
    exchange(ring)
    launch(ring, 3000, 10)
    work(ring, 3020, 3030, 10, x=1, context=CONTEXT + 1)
    wait(ring, 3100, 3200, 11, context=CONTEXT + 1)
    found = clocks(synth)
    assert [(one.device, one.bounds) for one in found] == [(0, Bounds(-7, 4)), (1, Bounds(-20, 170))]


def test_a_long_run_has_bounds_for_each_of_its_parts(synth, ring):
    for number in range(9):  # a second apart; the times fall back by 2 with each
        at, late = (number + 1) * SECOND, 2 * number
        launch(ring, at, 2 * number + 1)
        work(ring, at + 10 + late, at + 100 + late, 2 * number + 1)
        wait(ring, at + 50, at + 120, 2 * number + 2)
    (found,) = clocks(synth)
    assert found.bounds == Bounds(-10, 4)
    assert len(found.stretches) == 8
    assert found.stretches[0].bounds == Bounds(-10, 20)
    assert found.stretches[-1].bounds == Bounds(-26, 4)
    assert all(one.end_ns == after.begin_ns for one, after in zip(found.stretches, found.stretches[1:], strict=False))


def test_a_run_without_work_of_gpus_says_nothing(synth, ring):
    launch(ring, 1000, 1)
    assert clocks(synth) == ()
