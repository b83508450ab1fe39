"""The exclusive sweep: METHOD's worked example, and conservation on random spans."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from efaprof.analyzers.exclusive import PRIORITY, sweep
from efaprof.analyzers.intervals import union
from efaprof.trace.layers import Layer


def spans(*pairs):
    array = np.array(pairs, np.int64).reshape(-1, 2)
    return union(array[:, 0], array[:, 1])


def test_worked_example_of_the_method():
    open_in = {
        Layer.COMPUTE: spans((0, 30), (70, 100)),
        Layer.KERNEL: spans((30, 32), (32, 34)),
        Layer.RING: spans((32, 38), (34, 40)),
        Layer.PROXY: spans((38, 41), (43, 46)),
        Layer.LIBFABRIC: spans((41, 43), (46, 48)),
        Layer.NIC: spans((43, 58), (48, 63)),
        Layer.POLL: spans((34, 70)),
    }
    found = sweep(open_in, np.array([0]), np.array([100]))
    expected = {"compute": 60, "kernel": 4, "ring": 4, "proxy": 6, "libfabric": 4, "nic": 15, "poll": 7, "idle": 0}
    assert {layer.value: int(ns[0]) for layer, ns in found.exclusive.items()} == expected
    assert int(found.overlapped[Layer.POLL][0]) == 36 - 7


SPANS = st.lists(st.tuples(st.integers(0, 80), st.integers(0, 80)), max_size=6)


@given(
    st.dictionaries(st.sampled_from(PRIORITY), SPANS), st.lists(st.integers(0, 90), min_size=2, max_size=6, unique=True)
)
def test_layers_sum_to_the_step_and_each_instant_has_one_owner(layers, cuts):
    edges = np.array(sorted(cuts), np.int64)
    found = sweep({layer: spans(*pairs) for layer, pairs in layers.items()}, edges[:-1], edges[1:])
    assert np.array_equal(sum(found.exclusive.values()), edges[1:] - edges[:-1])
    owner = {}
    for layer in reversed(PRIORITY):
        for begin, end in layers.get(layer, []):
            owner.update(dict.fromkeys(range(begin, end), layer))
    for layer in layers:
        expected = [sum(owner.get(at) == layer for at in range(a, b)) for a, b in itertools.pairwise(edges)]
        assert found.exclusive[layer].tolist() == expected
