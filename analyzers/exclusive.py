"""The exclusive sweep: each instant of a step goes to the first layer open on this rank (METHOD §2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from efaprof.analyzers.intervals import EMPTY, IntervalSet, merge
from efaprof.trace.layers import Layer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

# First open layer wins. What none of them covers is idle.
PRIORITY = (
    Layer.COMPUTE,
    Layer.KERNEL,
    Layer.LIBFABRIC,
    Layer.PROXY,
    Layer.RING,
    Layer.NIC,
    Layer.RX,
    Layer.POLL,
    Layer.LAUNCH,
)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Nanoseconds per step: `exclusive` sums to its wall time exactly, `overlapped` lies under other layers."""

    exclusive: dict[Layer, NDArray[np.int64]]
    overlapped: dict[Layer, NDArray[np.int64]]


def sweep(open_in: Mapping[Layer, IntervalSet], begin: NDArray[np.int64], end: NDArray[np.int64]) -> Sweep:
    """Split each step [begin, end) among the layers open in it; layers that `open_in` lacks get no entry.

    E_l = |cover up to and with l| - |cover before l| inside the step: the sum with idle telescopes to its length.
    """
    cover = EMPTY
    covered = np.zeros(len(begin), np.int64)
    exclusive: dict[Layer, NDArray[np.int64]] = {}
    overlapped: dict[Layer, NDArray[np.int64]] = {}
    for layer in PRIORITY:
        if layer not in open_in:
            continue
        cover = merge(cover, open_in[layer])
        now = cover.covered_within(begin, end)
        exclusive[layer] = now - covered
        overlapped[layer] = open_in[layer].covered_within(begin, end) - exclusive[layer]
        covered = now
    exclusive[Layer.IDLE] = (end - begin) - covered
    return Sweep(exclusive, overlapped)
