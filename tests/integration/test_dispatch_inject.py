"""Injected delays stand in the layer they were put into, on every operation, and nowhere else."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from dispatch_runs import Recorded, record

from efaprof import native
from efaprof.instrument.dispatch import INJECTABLE, DispatchOptions, Injection, Lateness, SignalMode
from efaprof.trace.layers import Layer
from efaprof.trace.layout import Compute, Shape, Stage

STAGE = {
    Layer.KERNEL: Stage.KERNEL, Layer.RING: Stage.RING, Layer.PROXY: Stage.PROXY, Layer.LIBFABRIC: Stage.LIBFABRIC,
    Layer.NIC: Stage.NIC,
}  # fmt: skip
SHORT = DispatchOptions(
    provider="tcp", layers=1, tokens=2, topk=2, experts=4, hidden=64, channels=2, steps=4, warmup=1, compute_us=0,
    threads=2,
)  # fmt: skip
DELAY_NS = 2_000_000


def clock_pair() -> tuple[int, int]:
    return native.now_ticks(), time.monotonic_ns()


def layer_ns(recorded: Recorded, layer: Layer, ticks_per_ns: float) -> np.ndarray:
    """Time of each operation in this layer; for rx the service alone, without the wait behind earlier arrivals."""
    if layer is Layer.RX:
        parts = []
        for rank in recorded.ranks:
            rx = rank.records[Shape.RX]
            end = rx["t_end"].astype(np.int64)
            free = np.maximum(end - rx["dur"], np.concatenate([[0], end[:-1]]))
            parts.append(end - free)
        return np.concatenate(parts) / ticks_per_ns
    return np.concatenate([rank.stages[STAGE[layer]]["dur"] for rank in recorded.ranks]) / ticks_per_ns


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Each layer's run and one without injection, and the clock's rate."""
    ticks, ns = clock_pair()
    folder = tmp_path_factory.mktemp("inject")
    found = {None: record(SHORT, folder / "none")}
    for layer in INJECTABLE:
        found[layer] = record(replace(SHORT, inject=(Injection(layer, DELAY_NS),)), folder / layer.value)
    later_ticks, later_ns = clock_pair()
    return found, (later_ticks - ticks) / (later_ns - ns)


@pytest.mark.parametrize("layer", INJECTABLE)
def test_every_operation_lasts_the_delay_longer_in_its_layer(runs, layer):
    found, ticks_per_ns = runs
    lasted = layer_ns(found[layer], layer, ticks_per_ns)
    assert len(lasted) == sum(counts.total for counts in SHORT.run_counts())
    assert lasted.min() >= DELAY_NS * 0.999  # the program and this test each measure the clock's rate
    assert layer_ns(found[None], layer, ticks_per_ns).min() < DELAY_NS / 10


@pytest.mark.parametrize("layer", INJECTABLE)
def test_the_delay_is_not_added_to_operations_in_other_layers(runs, layer):
    found, ticks_per_ns = runs
    for other in set(INJECTABLE) - {layer}:
        assert layer_ns(found[layer], other, ticks_per_ns).min() < DELAY_NS / 2, other


@pytest.mark.parametrize("layer", INJECTABLE)
def test_an_injected_run_says_so(runs, layer):
    found, _ = runs
    for rank in found[layer].ranks:
        assert rank.notes[f"inject.{layer}"] == DELAY_NS


@pytest.mark.parametrize("signal", list(SignalMode))
def test_delays_in_every_layer_at_once_leave_the_data_right(signal, tmp_path):
    inject = tuple(Injection(layer, 100_000) for layer in INJECTABLE)
    recorded = record(replace(SHORT, provider="shm", signal=signal, ranks=2, inject=inject), tmp_path / "all")
    assert recorded.summary["verified_tokens"] == 2 * SHORT.tokens * (SHORT.steps + SHORT.warmup)


def test_a_fence_that_waits_for_slow_completions_is_not_proxy_time(tmp_path):
    options = replace(SHORT, signal=SignalMode.FENCE_BATCH, inject=(Injection(Layer.NIC, DELAY_NS),))
    recorded = record(options, tmp_path / "fence")
    for rank in recorded.ranks:
        # Puts to that peer are on their way when a dispatch tail's fence begins.
        assert (rank.stages[Stage.FENCE]["dur"] > 0).any()
        assert rank.stages[Stage.PROXY]["dur"].min() < rank.stages[Stage.FENCE]["dur"].max() / 10


def test_a_late_rank_computes_longer_and_says_so(tmp_path):
    ticks, ns = clock_pair()
    recorded = record(replace(SHORT, late=(Lateness(1, DELAY_NS),)), tmp_path / "late")
    later_ticks, later_ns = clock_pair()
    ticks_per_ns = (later_ticks - ticks) / (later_ns - ns)
    early, late = (rank.stages[Stage.COMPUTE] for rank in recorded.ranks)
    lasted = late["dur"][late["x"] == Compute.STANDIN] / ticks_per_ns
    assert len(lasted) == SHORT.steps + SHORT.warmup
    assert lasted.min() >= DELAY_NS * 0.999
    assert early["dur"][early["x"] == Compute.STANDIN].min() / ticks_per_ns < DELAY_NS / 2
    assert [rank.notes.get("late") for rank in recorded.ranks] == [None, DELAY_NS]


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["tcp", "shm"])
def test_medians_move_by_the_delay_in_the_named_layer_only(provider, tmp_path):
    """200 µs, over 200 steps, in palindromic order: A, every layer, every layer backwards, A."""
    base = DispatchOptions(provider=provider, layers=2, tokens=4, hidden=256, steps=220, warmup=20, compute_us=100)
    order = [None, *INJECTABLE, *reversed(INJECTABLE), None]
    ticks, ns = clock_pair()
    found: dict[Layer | None, list[Recorded]] = {}
    for number, layer in enumerate(order):
        inject = () if layer is None else (Injection(layer, 200_000),)
        found.setdefault(layer, []).append(record(replace(base, inject=inject), tmp_path / str(number)))
    later_ticks, later_ns = clock_pair()
    rate = (later_ticks - ticks) / (later_ns - ns)

    def median_us(arm: Layer | None, layer: Layer) -> float:
        return float(np.median(np.concatenate([layer_ns(run, layer, rate) for run in found[arm]]))) / 1000

    moved = {arm: {layer: median_us(arm, layer) - median_us(None, layer) for layer in INJECTABLE} for arm in INJECTABLE}
    print(moved)
    for arm, by_layer in moved.items():
        assert 190 <= by_layer[arm] <= 300
        # A slow server makes commands queue in front of it: ring time then, which reports show as queue.
        for other in set(INJECTABLE) - {arm, Layer.RING}:
            assert by_layer[other] < 50
