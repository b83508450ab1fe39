"""Where a rank's decode steps hold nothing that is known: the launch and idle of the exclusive sweep, as stretches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.analyzers.intervals import EMPTY, IntervalSet, covering, merge, subtract, union
from efaprof.analyzers.layers import NIC_OPEN_UNTIL, OPERATION_SPANS
from efaprof.trace.layers import Layer

if TYPE_CHECKING:
    from efaprof.trace.widerow import DispatchChunk

_STRETCH = (pl.col("begin_ns"), pl.col("end_ns"))


@dataclass(slots=True)
class StepGaps:
    """Takes chunks of steps in order; what is open at a chunk's end still covers the next one."""

    steps: dict[int, IntervalSet] = field(default_factory=dict)  # by rank: its decode steps
    gaps: dict[int, IntervalSet] = field(default_factory=dict)  # and what nothing covers of them
    _open: dict[int, IntervalSet] = field(default_factory=dict)

    def add(self, chunk: DispatchChunk) -> None:
        """Take one chunk."""
        for (rank,), steps in chunk.steps.group_by("rank", maintain_order=True):
            own = int(str(rank))
            cover = merge(self._open.get(own, EMPTY), _cover(chunk, own))
            self._open[own] = subtract(cover, covering(0, int(steps["end_ns"].max())))  # type: ignore[arg-type]
            decode = steps.filter(pl.col("kind") == "decode")
            inside = union(decode["begin_ns"].to_numpy(), decode["end_ns"].to_numpy())
            self.steps[own] = merge(self.steps.get(own, EMPTY), inside)
            self.gaps[own] = merge(self.gaps.get(own, EMPTY), subtract(inside, cover))


def _cover(chunk: DispatchChunk, rank: int) -> IntervalSet:
    """Everything of one rank that any layer but launch and idle takes."""
    own = chunk.operations.filter(pl.col("rank") == rank)
    inbound = chunk.operations.filter(pl.col("peer") == rank)
    spans = OPERATION_SPANS | {Layer.NIC: (pl.col("return_ns"), NIC_OPEN_UNTIL)}
    parts = [
        (inbound if layer is Layer.RX else own).select(begin=low, end=high) for layer, (low, high) in spans.items()
    ]
    parts.append(own.select(begin="done_ns", end="told_ns"))
    parts += [frame.filter(pl.col("rank") == rank).select(begin=_STRETCH[0], end=_STRETCH[1])
              for frame in (chunk.computes, chunk.waits)]  # fmt: skip
    known = pl.concat(parts).drop_nulls()
    return union(known["begin"].to_numpy().astype(np.int64), known["end"].to_numpy().astype(np.int64))
