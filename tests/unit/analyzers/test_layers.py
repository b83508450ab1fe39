"""Layer costs of steady synthetic dispatch against an owner computed instant by instant."""

from __future__ import annotations

import polars as pl
import pytest

from efaprof.analyzers.exclusive import PRIORITY
from efaprof.analyzers.layers import LayerSplitter
from efaprof.trace import dispatch
from efaprof.trace.layers import Layer
from efaprof.trace.steady import Steady, write_steady
from efaprof.trace.survey import survey

SHAPES = {
    "slow kernel": Steady(steps=40, commands=5, compute_ns=30, kernel_ns=20, ring_ns=6, proxy_ns=3, libfabric_ns=2,
                          nic_ns=15, rx_ns=2, poll_ns=2),
    "slow proxy": Steady(steps=40, commands=7, compute_ns=30, kernel_ns=2, ring_ns=6, proxy_ns=13, libfabric_ns=2,
                         nic_ns=15, rx_ns=2, poll_ns=2),
    "slow wire": Steady(steps=40, commands=3, compute_ns=10, kernel_ns=2, ring_ns=3, proxy_ns=1, libfabric_ns=2,
                        nic_ns=150, rx_ns=1, poll_ns=4),
    "slow receiver": Steady(steps=40, commands=3, compute_ns=10, kernel_ns=2, ring_ns=3, proxy_ns=1, libfabric_ns=2,
                            nic_ns=15, rx_ns=70, poll_ns=4),
}  # fmt: skip


def split(run, chunk_ops):
    splitter = LayerSplitter()
    return pl.concat(
        [splitter.split(c) for c in dispatch.chunks(survey(run.raw_files), chunk_ops=chunk_ops)], how="diagonal"
    )


def expected(steady):
    """Exclusive nanoseconds of each layer in a step: the first open layer owns the instant."""
    t = {name: times.tolist() for name, times in steady.times().items()}
    spans = {
        Layer.COMPUTE: [(0, steady.compute_ns)],
        Layer.KERNEL: zip(t["enter"], t["publish"], strict=True),
        Layer.RING: zip(t["publish"], t["seen"], strict=True),
        Layer.PROXY: zip(t["seen"], t["call"], strict=True),
        Layer.LIBFABRIC: zip(t["call"], t["return"], strict=True),
        Layer.NIC: zip(t["return"], t["done"], strict=True),
        Layer.RX: zip(t["done"], t["signal"], strict=True),
        Layer.POLL: [(t["publish"][-1], steady.wall_ns)],
    }
    owner = {}
    for layer in reversed([layer for layer in PRIORITY if layer in spans]):
        for begin, end in spans[layer]:
            owner.update(dict.fromkeys(range(begin, end), layer))
    return {layer: sum(found == layer for found in owner.values()) for layer in spans}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("chunk_ops", [1, 50, 1 << 18])
def test_exclusive_costs_match_the_closed_form_however_the_run_is_cut(tmp_path, name, chunk_ops):
    steady = SHAPES[name]
    found = split(write_steady(tmp_path / "run", steady), chunk_ops)
    assert len(found) == steady.steps * steady.ranks
    assert found["wall_ns"].unique().to_list() == [steady.wall_ns]
    inner = found.filter(pl.col("step") > 0)
    for layer, ns in expected(steady).items():
        assert inner[f"{layer}_ns"].unique().to_list() == [ns], layer
    layers = [f"{layer}_ns" for layer in (*PRIORITY, Layer.IDLE) if f"{layer}_ns" in found.columns]
    assert (found.select(pl.sum_horizontal(layers)).to_series() == found["wall_ns"]).all()


def test_commands_behind_a_slow_proxy_are_queue_not_transit(tmp_path):
    steady = SHAPES["slow proxy"]
    found = split(write_steady(tmp_path / "run", steady), 1 << 18)
    t = steady.times()
    service = steady.proxy_ns + steady.libfabric_ns
    queued = 0
    for own in range(steady.commands):
        waiting = range(int(t["publish"][own]), int(t["seen"][own]))
        busy = {at for other in range(own) for at in range(int(t["seen"][other]), int(t["seen"][other]) + service)}
        queued += len(busy.intersection(waiting))
    assert queued > 0
    assert found["queue_ns"].unique().to_list() == [queued]
    assert found["proxy_busy_ns"].unique().to_list() == [steady.commands * service]
    assert found["kernel_busy_ns"].unique().to_list() == [steady.commands * steady.kernel_ns]


def test_each_of_two_proxies_has_a_queue_of_its_own(tmp_path):
    steady = Steady(steps=40, commands=8, proxies=2, compute_ns=30, kernel_ns=2, ring_ns=6, proxy_ns=13, libfabric_ns=2,
                    nic_ns=15, rx_ns=2, poll_ns=2)  # fmt: skip
    found = split(write_steady(tmp_path / "run", steady), 1 << 18)
    t, service = steady.times(), steady.proxy_ns + steady.libfabric_ns
    queued = waiting = 0
    for own in range(steady.commands):
        earlier = range(own % 2, own, 2)
        busy = {at for other in earlier for at in range(int(t["seen"][other]), int(t["seen"][other]) + service)}
        queued += len(busy.intersection(range(int(t["publish"][own]), int(t["seen"][own]))))
        waiting += own + 2 < steady.commands and bool(t["publish"][own + 2] <= t["return"][own])
    assert found["queue_ns"].unique().to_list() == [queued]
    assert found["waiting"].unique().to_list() == [waiting]
    assert found["served"].unique().to_list() == [steady.commands]
    assert found["proxy_busy_ns"].unique().to_list() == [steady.of_ring * service]  # of the busier one
    assert found["kernel_busy_ns"].unique().to_list() == [steady.commands * steady.kernel_ns]
    assert found["operations"].unique().to_list() == [steady.commands]


def test_counts_are_per_step(tmp_path):
    steady = SHAPES["slow wire"]
    found = split(write_steady(tmp_path / "run", steady), 10)
    assert found["operations"].unique().to_list() == [steady.commands]
    assert found["bytes"].unique().to_list() == [steady.commands * steady.len_bytes]
    assert found["unfinished"].sum() == 0
