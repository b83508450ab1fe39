"""The critical path: the worked example, closed forms, exact sums, and a slow walk written another way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from fifo_systems import systems
from hand_made import HandMade, worked_example
from hypothesis import given, settings
from slow_walk import slow_walk

from efaprof.analyzers.critical import CriticalPath
from efaprof.analyzers.exclusive import sweep
from efaprof.analyzers.graph import build
from efaprof.analyzers.layers import LayerSplitter
from efaprof.analyzers.replay import Change, parse_change, recoverable, replayed, scaled
from efaprof.analyzers.stamps import LAYERS
from efaprof.analyzers.walk import walk, walk_job
from efaprof.native_graph import Scenario
from efaprof.trace import dispatch
from efaprof.trace.layers import Layer
from efaprof.trace.layout import RINGS_APART
from efaprof.trace.steady import Steady, write_steady
from efaprof.trace.survey import survey

WALKED = [layer for layer in LAYERS if layer is not Layer.LAUNCH]
COLUMNS = [f"{layer}_ns" for layer in WALKED]
PATH = ("compute", "kernel", "ring", "proxy", "libfabric", "nic", "rx", "poll", "skew", "unattributed", "idle")
STEADY = {
    "compute": Steady(steps=12, commands=4, compute_ns=900_000),
    "kernel": Steady(steps=12, commands=5, kernel_ns=40_000),
    "ring": Steady(steps=12, commands=3, ring_ns=700_000),
    "proxy": Steady(steps=12, commands=9, proxy_ns=50_000),
    "libfabric": Steady(steps=12, commands=7, libfabric_ns=45_000),
    "nic": Steady(steps=12, commands=2, nic_ns=600_000),
    # Alone: two arrivals at a time would wait for each other in a receiver's thread.
    "rx": Steady(steps=12, commands=1, rx_ns=500_000),
    "poll": Steady(steps=12, commands=2, poll_ns=400_000),
}  # fmt: skip


def per_step(chunk, context=None):
    """Rank-local costs, one row per (rank, step)."""
    graph = build(chunk) if context is None else build(chunk, context)
    return (
        walk(graph)
        .windows.group_by("rank", "step")
        .agg(pl.sum("wall_ns", *COLUMNS, "true_skew_ns"))
        .sort("rank", "step")
    )


def test_the_worked_example_reads_as_its_golden(golden):
    lines = []
    for number, has_local_forward in enumerate((False, True), start=1):
        chunk = worked_example(has_local_forward=has_local_forward)
        graph = build(chunk)
        found = per_step(chunk).row(0, named=True)
        exclusive = LayerSplitter().split(chunk).row(0, named=True)
        bought = recoverable(graph, [scaled(name, layers) for name, layers in CHANGES.items()]).row(0, named=True)
        lines += [
            f"variant {number}, rank A, µs",
            "exclusive  " + words({layer: exclusive.get(f"{layer}_ns", 0) for layer in PATH}),
            "critical   " + words({layer: found[f"{layer}_ns"] for layer in PATH}),
            f"of skew, the late rank computed {found['true_skew_ns'] / 1000:g}",
            "job        " + words({layer: walk_job(graph)[f"{layer}_ns"][0] for layer in PATH}),
            "without    " + words({name: bought[f"{name}_recoverable_ns"] for name in CHANGES}, is_sum=False),
            "",
        ]
    golden("worked_example.txt", "\n".join(lines))


CHANGES = {
    "compute": (Layer.COMPUTE,), "nic": (Layer.NIC,), "host": (Layer.RING, Layer.PROXY, Layer.LIBFABRIC),
    "issue": (Layer.KERNEL, Layer.RING, Layer.PROXY, Layer.LIBFABRIC), "receive": (Layer.RX, Layer.POLL),
}  # fmt: skip


def words(ns, *, is_sum=True):
    text = "  ".join(f"{name} {value / 1000:g}" for name, value in ns.items() if value)
    return text + (f"  = {sum(ns.values()) / 1000:g}" if is_sum else "")


def closed_form(steady):
    """A command waits for the proxy when it is published before the one before has returned."""
    t = steady.times()
    waited = t["publish"][1:] < t["return"][:-1]
    # The last uninterrupted service begins with the command after the last one that did not wait.
    first = int(np.flatnonzero(~waited)[-1]) + 1 if (~waited).any() else 0
    count = steady.commands - first
    in_service = count * (steady.proxy_ns + steady.libfabric_ns)
    gaps = int(t["return"][-1] - t["seen"][first]) - in_service
    return {
        "compute": steady.compute_ns, "kernel": (first + 1) * steady.kernel_ns,
        "ring": int(t["seen"][first] - t["publish"][first]) + gaps, "proxy": count * steady.proxy_ns,
        "libfabric": count * steady.libfabric_ns, "nic": steady.nic_ns, "rx": steady.rx_ns, "poll": steady.poll_ns,
        "skew": 0, "unattributed": 0, "idle": 0,
    }  # fmt: skip


@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize("chunk_ops", [1, 30, 1 << 18])
def test_each_layer_as_the_bottleneck_has_its_closed_form_however_the_run_is_cut(tmp_path, name, chunk_ops):
    steady = STEADY[name]
    run = write_steady(tmp_path / "run", steady)
    path = CriticalPath()
    found = pl.concat(path.split(chunk)[0] for chunk in dispatch.chunks(survey(run.raw_files), chunk_ops=chunk_ops))
    assert len(found) == steady.steps * steady.ranks
    expected = closed_form(steady)
    assert sum(expected.values()) == steady.wall_ns
    assert max(expected, key=expected.get) == name
    for layer, ns in expected.items():
        assert found[f"{layer}_ns"].unique().to_list() == [ns], layer
    if name != "poll":  # what a late poll costs is not between stages of operations
        assert (found[f"{name}_recoverable_ns"] >= 0).all()


@pytest.mark.parametrize("chunk_ops", [1, 30, 1 << 18])
def test_two_proxies_share_the_path_and_the_replay_of_one_foretells_them(tmp_path, chunk_ops):
    steady = Steady(steps=12, commands=8, proxies=2, proxy_ns=50_000)
    run = write_steady(tmp_path / "run", steady)
    path = CriticalPath()
    found = pl.concat(path.split(chunk)[0] for chunk in dispatch.chunks(survey(run.raw_files), chunk_ops=chunk_ops))
    expected = {
        "compute": steady.compute_ns, "kernel": 2 * steady.kernel_ns, "ring": steady.ring_ns,
        "proxy": steady.of_ring * steady.proxy_ns, "libfabric": steady.of_ring * steady.libfabric_ns,
        "nic": steady.nic_ns, "rx": steady.rx_ns, "poll": steady.poll_ns,
        "skew": 0, "unattributed": 0, "idle": 0,
    }  # fmt: skip
    assert sum(expected.values()) == steady.wall_ns
    for layer, ns in expected.items():
        assert found[f"{layer}_ns"].unique().to_list() == [ns], layer
    one = replace(steady, proxies=1)
    alone = write_steady(tmp_path / "alone", one)
    (chunk,) = dispatch.chunks(survey(alone.raw_files), chunk_ops=1 << 18)
    saved = recoverable(build(chunk), [parse_change("proxies=2")])["proxies=2_recoverable_ns"]
    # How long a command that waited would have been on its way without a queue is not on record.
    assert saved.to_list() == pytest.approx([one.wall_ns - steady.wall_ns] * len(saved), abs=steady.ring_ns)


@pytest.mark.parametrize("late", [0, 1])
def test_a_flush_waits_for_what_was_pushed_into_every_ring(late):
    made = HandMade()
    made.step(0, 0, 100)
    told = {late: 90, 1 - late: 40}
    for proxy in (0, 1):
        at = told[proxy]
        made.operation(0, 0, 1, ring=RINGS_APART * proxy, channel=proxy, kind="put", enter=10 + proxy,
                       publish=11 + proxy, seen=14, call=16, **{"return": 20}, arrival=25, signal=26, done=at - 2,
                       told=at)  # fmt: skip
    made.wait(0, 30, 94, source=0, kind="flush", channel=late, signal=90)
    found = per_step(made.chunk()).row(0, named=True)
    shares = {layer: found[f"{layer}_ns"] // 1000 for layer in PATH if found[f"{layer}_ns"]}
    assert shares["poll"] == 4
    assert shares["nic"] == 88 - 20
    assert "unattributed" not in shares


def test_a_gate_whose_operation_came_before_polling_let_nobody_wait():
    made = HandMade()
    made.step(0, 0, 100)
    made.step(1, 0, 100)
    made.operation(1, 0, 0, enter=0, publish=1, seen=2, call=3, **{"return": 4}, arrival=9, signal=10)
    made.compute(0, 5, 60)
    made.wait(0, 60, 62, source=1, signal=10)
    made.compute(0, 62, 100)
    found = per_step(made.chunk()).row(0, named=True)
    assert {layer: found[f"{layer}_ns"] // 1000 for layer in PATH if found[f"{layer}_ns"]} == {
        "compute": 93, "poll": 2, "idle": 5,
    }  # fmt: skip


@pytest.mark.parametrize("missing", ["enter", "seen", "call", "return", "arrival", "signal"])
def test_what_a_missing_stamp_leaves_open_is_unattributed(missing):
    stamps = {"enter": 40, "publish": 42, "seen": 47, "call": 50, "return": 52, "arrival": 60, "signal": 68}
    made = HandMade()
    for rank in (0, 1):
        made.step(rank, 0, 100)
    whole = {**stamps, "done": 70, "told": 71}
    made.operation(1, 0, 0, **{k: v for k, v in whole.items() if k not in missing_with(missing)})
    # Another one of the ring has all its stages: the path has them.
    made.operation(1, 1, 0, kind="put", wire_seq=None, **{name: at + 40 for name, at in whole.items()})
    made.compute(1, 0, 40)
    made.wait(0, 0, 70, source=1, signal=68)
    found = per_step(made.chunk()).row(0, named=True)
    assert sum(found[name] for name in COLUMNS) == 100_000
    assert found["unattributed_ns"] == 1000 * {
        "enter": 47, "seen": 8, "call": 5, "return": 10, "arrival": 16, "signal": 70,
    }[missing]  # fmt: skip


def missing_with(stamp):
    """Stamps that stand in the same record are lost together."""
    return {"enter": {"enter", "publish"}}.get(stamp, {stamp})


def test_a_kernel_that_posts_itself_has_no_host_stages_and_nothing_unattributed():
    made = HandMade()
    for rank in (0, 1):
        made.step(rank, 0, 100)
    for seq in range(3):
        made.operation(1, seq, 0, kind="signal" if seq == 2 else "put", wire_seq=seq, enter=40 + 3 * seq,
                       publish=42 + 3 * seq, arrival=60 + 4 * seq, signal=61 + 4 * seq)  # fmt: skip
    made.compute(1, 0, 40)
    made.wait(0, 0, 70, source=1, seq=2, signal=69)
    chunk = made.chunk()
    found = per_step(chunk).row(0, named=True)
    spent = {layer: found[f"{layer}_ns"] // 1000 for layer in PATH if found[f"{layer}_ns"]}
    assert spent == {"kernel": 8, "nic": 20, "rx": 1, "poll": 1, "skew": 40, "idle": 30}
    assert recoverable(build(chunk), [scaled("host", CHANGES["host"])])["host_recoverable_ns"].to_list() == [0, 0]


def test_a_gate_whose_operation_is_not_there_is_unattributed():
    made = HandMade()
    made.step(0, 0, 100)
    made.compute(0, 0, 30)
    made.wait(0, 34, 70, source=1, signal=68)
    found = per_step(made.chunk()).row(0, named=True)
    assert (found["unattributed_ns"], found["compute_ns"], found["idle_ns"]) == (36_000, 30_000, 34_000)


def test_without_waits_a_walk_stays_on_its_lane():
    made = HandMade()
    made.step(0, 0, 100)
    made.compute(0, 10, 60)
    found = per_step(made.chunk()).row(0, named=True)
    assert (found["compute_ns"], found["idle_ns"]) == (50_000, 50_000)


def test_stamps_in_a_circle_end_the_walk_and_keep_the_sum():
    made = HandMade()
    made.step(0, 0, 10)
    made.step(1, 0, 10)
    # Each rank's operation begins only after the gate that the other one's lets go.
    for rank in (0, 1):
        made.wait(rank, 0, 5, source=1 - rank, signal=5)
        made.operation(rank, 0, 1 - rank, enter=5, publish=5, seen=5, call=5, **{"return": 5}, arrival=5, signal=5)
    chunk = made.chunk()
    graph = build(chunk)
    for frame in (per_step(chunk), walk_job(graph)):
        assert (frame.select(pl.sum_horizontal(COLUMNS)).to_series() == frame["wall_ns"]).all()
    assert (replayed(graph, Change("same", Scenario())) == graph.events.events.time).all()
    assert graph.events.cut_edges >= 1


@settings(max_examples=100, deadline=None)
@given(systems())
def test_random_systems_walk_as_the_slow_walk_does(system):
    found = per_step(system.chunk())
    assert (found.select(pl.sum_horizontal(COLUMNS)).to_series() == found["wall_ns"]).all()
    for row in found.iter_rows(named=True):
        expected = slow_walk(system, row["rank"])
        assert {layer: row[f"{layer}_ns"] for layer in PATH} == {layer: expected.get(layer, 0) for layer in PATH}


@settings(max_examples=40, deadline=None)
@given(systems())
def test_no_layer_is_on_the_path_longer_than_it_was_open(system):
    graph = build(system.chunk())
    found = walk(graph).overlapped
    assert found.select(pl.min_horizontal(pl.col("^.*_overlapped_ns$"))).to_series().min() >= 0


def test_the_job_and_its_ranks_agree_where_nobody_is_late(tmp_path):
    steady = STEADY["proxy"]
    run = write_steady(tmp_path / "run", steady)
    (chunk,) = dispatch.chunks(survey(run.raw_files))
    job = walk_job(build(chunk))
    assert job["wall_ns"].to_list() == [steady.wall_ns] * steady.steps
    for layer, ns in closed_form(steady).items():
        assert job[f"{layer}_ns"].unique().to_list() == [ns], layer


def test_exclusive_and_critical_split_the_same_wall_time():
    chunk = worked_example()
    assert LayerSplitter().split(chunk)["wall_ns"].to_list() == per_step(chunk)["wall_ns"].to_list()
    assert sweep({}, np.array([0]), np.array([7])).exclusive[Layer.IDLE].tolist() == [7]
