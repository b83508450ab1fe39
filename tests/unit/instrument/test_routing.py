"""Routing: the Python mirror, the C++ header and what routing must be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_library import ffi, load

from efaprof.instrument.routing import mix, step_experts, tokens_between_ranks


@pytest.fixture(scope="module")
def lib(build_dir):
    return load(build_dir)


def native_route(lib, seed: int, place: tuple[int, int, int, int], topk: int, experts: int):
    expert, weight = ffi.new("uint16_t[32]"), ffi.new("uint8_t[32]")
    lib.test_route(seed, *place, topk, experts, expert, weight)
    return list(expert)[:topk], list(weight)[:topk]


def test_mix_gives_the_published_sequence_of_splitmix64():
    # Seed 1234567: each output is the finaliser over a state that grows by the golden ratio.
    states = np.uint64(1234567) + np.arange(5, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert mix(states).tolist() == [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
    ]  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1), step=st.integers(0, 2**31), topk=st.integers(1, 32), spare=st.integers(0, 40),
)  # fmt: skip
def test_python_and_native_route_alike(lib, seed, step, topk, spare):
    experts = topk + spare
    routes = step_experts(seed=seed, step=step, layers=2, ranks=3, tokens=2, topk=topk, experts=experts)
    for layer, rank, token in np.ndindex(2, 3, 2):
        expert, weight = native_route(lib, seed, (step, layer, rank, token), topk, experts)
        assert routes[layer, rank, token].tolist() == expert
        assert len(set(expert)) == topk
        assert all(e < experts for e in expert)
        assert all(1 <= w <= 4 for w in weight)


def test_every_expert_is_chosen_about_equally_often():
    routes = step_experts(seed=1, step=0, layers=16, ranks=4, tokens=256, topk=4, experts=16)
    share = np.bincount(routes.ravel(), minlength=16) / routes.size
    assert np.abs(share - 1 / 16).max() < 0.005


def test_tokens_between_ranks_counts_each_rank_of_a_token_once():
    experts = np.array([[[[0, 1], [0, 4]], [[5, 2], [3, 4]]]])  # one layer, two ranks, two tokens, two choices
    counts = tokens_between_ranks(experts, ranks=2, experts_per_rank=3)
    assert counts.tolist() == [[[2, 1], [1, 2]]]


def test_values_are_small_integers_that_differ_between_tokens(lib):
    values = {token: [lib.test_value(1, 0, 0, 0, token, i) for i in range(64)] for token in range(8)}
    assert all(-8 <= value <= 7 for row in values.values() for value in row)
    assert len({tuple(row) for row in values.values()}) == 8
