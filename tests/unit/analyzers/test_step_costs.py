from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efaprof.analyzers.annotated import annotated_decode, tokens_of
from efaprof.analyzers.decode import Host
from efaprof.analyzers.step_costs import RunSteps, step_costs
from efaprof.analyzers.steps import find_steps
from efaprof.trace import reader
from efaprof.trace.layers import Layer, Provenance
from efaprof.trace.layout import DEVICE, AnnotatedStep, Shape, Source, Span
from efaprof.trace.synth import Cqe, SynthRun, kind_of
from efaprof.trace.traffic import open_endpoint

EP, CQ = 0x1000, 0x2000
HOST = Host(lost=0, unexplained=0, run_delay=None, throttled=None, line_rate_bytes_s=None)
COMPUTE = 1 + list(Layer).index(Layer.COMPUTE)


@pytest.fixture
def synth(tmp_path):
    return SynthRun(tmp_path / "run")


@pytest.fixture
def ring(synth):
    made = synth.ring()
    open_endpoint(made, EP, CQ)
    return made


def costs(synth):
    tables = reader.open_tables(synth.finish())
    found = find_steps(tables.spans)
    return step_costs([RunSteps(tables, found, {one.process: row for row, one in enumerate(found.processes)})])


def layers(synth, step=0):
    row = costs(synth).frame.row(step, named=True)
    return {layer: row[f"{layer}_ns"] for layer in Layer if row.get(f"{layer}_ns")}


def sent(ring, post, returned, done, *, ctx, size=64):
    ring.op("msg.send", post, returned, ep=EP, ctx=ctx, len=size)
    ring.cq(CQ, done - 5, done, [Cqe(ctx, len=0)])


def test_each_instant_of_a_step_goes_to_one_layer(synth, ring):
    ring.step(1000, 1800)
    sent(ring, 1100, 1150, 1300, ctx=0x10)
    ring.named_range("c", 1400, 1600, source=Source.ANNOTATION, category=COMPUTE)
    ring.step(2000, 2800)
    assert layers(synth) == {
        Layer.LIBFABRIC: 50,
        Layer.NIC: 150,
        Layer.COMPUTE: 200,
        Layer.LAUNCH: 200,
        Layer.IDLE: 400,
    }
    assert layers(synth, 1) == {Layer.IDLE: 800}


def test_compute_that_the_program_names_hides_what_runs_meanwhile(synth, ring):
    ring.step(1000, 1800)
    sent(ring, 1100, 1150, 1500, ctx=0x10)
    ring.named_range("c", 1140, 1400, source=Source.ANNOTATION, category=COMPUTE)
    ring.step(1800, 1900)
    found = costs(synth).frame.row(0, named=True)
    assert (found["libfabric_ns"], found["compute_ns"], found["nic_ns"]) == (40, 260, 100)
    assert (found["libfabric_overlapped_ns"], found["nic_overlapped_ns"]) == (10, 250)


def test_operations_belong_to_the_step_in_which_they_were_posted(synth, ring):
    ring.step(1000, 1100)
    sent(ring, 1050, 1060, 2500, ctx=0x10, size=100)  # completes in a later step
    ring.step(2000, 2100)
    sent(ring, 2050, 2060, 2070, ctx=0x11, size=7)
    ring.op("msg.recv", 2080, 2090, ep=EP, ctx=0x12, len=900)  # receives are not sent
    sent(ring, 3000, 3010, 3020, ctx=0x13)  # after the last step
    found = costs(synth)
    assert found.frame.select("operations", "bytes", "unfinished").rows() == [(1, 100, 0), (1, 7, 0)]
    assert found.kinds == {"msg.send": (2, 107)}
    assert (found.stamped, found.latencies[Layer.LIBFABRIC].n, found.latencies[Layer.NIC].n) == (1.0, 2, 2)


def test_only_decode_steps_say_what_an_operation_takes(synth, ring):
    for number, kind in enumerate((AnnotatedStep.PREFILL, AnnotatedStep.DECODE, AnnotatedStep.DECODE)):
        begin = 1000 * (number + 1)
        ring.step(begin, begin + 500, kind=kind)
        sent(ring, begin + 10, begin + 20, begin + 100, ctx=0x10 + number)
    assert costs(synth).kinds == {"msg.send": (2, 128)}


def test_steps_without_kinds_are_told_apart_by_what_they_send(synth, ring):
    for number in range(12):
        begin = 10_000 * (number + 1)
        ring.step(begin, begin + 9_000, kind=AnnotatedStep.UNSAID)
        for k in range(40 if number == 5 else 4):
            sent(ring, begin + 10 + 100 * k, begin + 20 + 100 * k, begin + 50 + 100 * k, ctx=number * 64 + k)
    assert costs(synth).frame["kind"].to_list() == ["decode"] * 5 + ["unclassified"] + ["decode"] * 6


def device(ring, begin, end, correlation):
    ring.put(DEVICE, kind_of(Shape.DEVICE, 1), end, dur_ns=end - begin, name=0, t_begin=begin, correlation=correlation)


def launch(ring, begin, end, correlation):
    ring.named_range("launch", begin, end, what=Span.LAUNCH, source=Source.CUDA, correlation=correlation)


def test_a_gpus_gap_is_launch_only_when_what_ends_it_was_launched_in_it(synth, ring):
    ring.step(1000, 1100)
    launch(ring, 1000, 1010, 1)
    launch(ring, 1020, 1030, 2)  # enqueued while the first one runs
    device(ring, 1050, 1200, 1)
    device(ring, 1300, 1400, 2)
    launch(ring, 1500, 1510, 3)  # enqueued when the device had nothing left to do
    device(ring, 1600, 1700, 3)
    ring.step(2000, 2100)
    assert layers(synth) == {Layer.COMPUTE: 350, Layer.LAUNCH: 200, Layer.IDLE: 450}


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_layers_of_every_step_sum_to_its_wall_time(tmp_path_factory, data):
    synth = SynthRun(tmp_path_factory.mktemp("run") / "run")
    ring = synth.ring()
    open_endpoint(ring, EP, CQ)
    at = 1000
    for number in range(data.draw(st.integers(2, 8))):
        length, pause = data.draw(st.integers(1, 500)), data.draw(st.integers(0, 100))
        ring.step(at, at + length)
        if data.draw(st.booleans()):
            post = at + data.draw(st.integers(0, 400))
            sent(ring, post, post + data.draw(st.integers(0, 50)), post + data.draw(st.integers(10, 600)), ctx=number)
        if data.draw(st.booleans()):
            begin = at + data.draw(st.integers(0, 400))
            ring.named_range("c", begin, begin + 30, source=Source.ANNOTATION, category=COMPUTE)
        at += length + pause
    frame = costs(synth).frame
    names = [f"{layer}_ns" for layer in Layer if f"{layer}_ns" in frame.columns]
    assert (frame.select(pl.sum_horizontal(names) - pl.col("wall_ns")).to_series() == 0).all()
    assert frame.select(pl.all_horizontal(pl.col(names) >= 0)).to_series().all()


def test_the_split_is_per_step_and_tokens_are_per_sequence(synth, ring):
    for number in range(40):
        begin = 1000 * (number + 1)
        ring.step(begin, begin + 700, tokens=6, batch=3)
        sent(ring, begin + 100, begin + 200, begin + 500, ctx=number)
    ring.step(41_000, 41_700, tokens=6, batch=3)
    found = annotated_decode(costs(synth), HOST)
    assert found is not None
    us = {row.layer: row.us.value for row in found.split.layers}
    wall = 40 * 1.0 + 0.7
    expected = {Layer.LIBFABRIC: 40 * 0.1, Layer.NIC: 40 * 0.3, Layer.LAUNCH: 40 * 0.3, Layer.IDLE: 40 * 0.3 + 0.7}
    assert {layer: us[layer] * 41 for layer in expected} == pytest.approx(expected)
    assert found.split.wall_us.value * 41 == pytest.approx(wall)
    assert (found.split.steps, found.split.conservation_error_ns, found.split.ranks) == (41, 0, (0,))
    tokens = tokens_of(found.step_costs)
    assert (tokens.per_sequence, tokens.provenance, tokens.tokens) == (2.0, Provenance.MEASURED, 6.0)
    assert "communication_share" not in found.features  # much of the step is not known to be anything
    assert any("coverage" in one.reason for one in found.failed)


@pytest.mark.parametrize(
    ("tokens", "batch", "per_sequence", "provenance"),
    [
        ([6, 6], [3, 3], 2.0, Provenance.MEASURED),
        ([4, 4], [4, None], 4.0, Provenance.ASSUMED),  # of one sequence
        ([4, None], [4, 4], 1.0, Provenance.ASSUMED),
        ([None, None], [None, None], 1.0, Provenance.ASSUMED),
    ],
)
def test_what_the_program_does_not_say_of_tokens_is_assumed(tokens, batch, per_sequence, provenance):
    counts = {"tokens": pl.Series([*tokens, 99], dtype=pl.Int64), "batch": pl.Series([*batch, None], dtype=pl.Int64)}
    found = tokens_of(pl.DataFrame({"kind": ["decode", "decode", "prefill"], **counts}))
    assert (found.per_sequence, found.provenance) == (per_sequence, provenance)


def test_one_step_alone_is_none(synth, ring):
    ring.step(1000, 1100)
    assert annotated_decode(costs(synth), HOST) is None


def test_a_step_counts_only_when_every_rank_has_it(synth):
    for pid, steps in ((7, 3), (8, 2)):
        ring = synth.ring(pid=pid, tid=pid)
        for number in range(steps):
            ring.step(1000 * (number + 1), 1000 * (number + 1) + 500)
    found = annotated_decode(costs(synth), HOST)
    assert found is not None
    assert (found.split.steps, found.split.ranks) == (2, (0, 1))
