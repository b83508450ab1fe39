"""Layer costs of each step on each rank: what is open when, and the exclusive sweep over it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.analyzers.counts import step_counts
from efaprof.analyzers.exclusive import PRIORITY, sweep
from efaprof.analyzers.intervals import EMPTY, IntervalSet, merge, union
from efaprof.trace.layers import Layer

if TYPE_CHECKING:
    from efaprof.trace.widerow import DispatchChunk

# First evidence that the data is visible at the receiver; where nothing is seen there, the local completion.
DELIVERED = pl.coalesce("arrival_ns", "done_ns")
IS_POSTED = pl.col("is_posted")  # by the kernel itself: no ring, no proxy, no library
# From … to … of one operation in each layer of its path (METHOD §1). PROXY leaves the fence wait out, and so does
# KERNEL where the kernel posts by itself.
OPERATION_SPANS: dict[Layer, tuple[pl.Expr, pl.Expr]] = {
    Layer.KERNEL: (
        pl.when(IS_POSTED).then(pl.coalesce("fenced_ns", "enter_ns")).otherwise(pl.col("enter_ns")),
        pl.when(IS_POSTED).then(pl.col("return_ns")).otherwise(pl.col("publish_ns")),
    ),
    Layer.RING: (pl.col("publish_ns"), pl.col("seen_ns")),
    Layer.PROXY: (pl.coalesce("fenced_ns", "seen_ns"), pl.col("call_ns")),
    Layer.LIBFABRIC: (pl.col("call_ns"), pl.col("return_ns")),
    Layer.NIC: (pl.col("return_ns"), DELIVERED),
    Layer.RX: (pl.col("arrival_ns"), pl.col("signal_ns")),
}
# A flush waits for local completions: its operations are in the NIC until then.
_IS_FLUSHED = (pl.col("phase") == "combine") & (pl.col("kind") == "put")
NIC_OPEN_UNTIL = pl.when(_IS_FLUSHED).then(pl.max_horizontal("arrival_ns", "done_ns")).otherwise(DELIVERED)

# Order in which the layers stand in tables of step costs.
STEP_LAYERS = (*PRIORITY, Layer.IDLE)


@dataclass(slots=True)
class LayerSplitter:
    """Splits chunks of steps in order; what is still open at a chunk's end goes on in the next one."""

    _open: dict[tuple[int, Layer], IntervalSet] = field(default_factory=dict)

    def split(self, chunk: DispatchChunk) -> pl.DataFrame:
        """One row per (rank, step): what `step_counts` says, `<layer>_ns`, `<layer>_overlapped_ns`.

        The layers sum to `wall_ns`; those that no operation has are absent.
        """
        operations, counts = chunk.operations, step_counts(chunk)
        frames = []
        for (rank,), steps in chunk.steps.group_by("rank", maintain_order=True):
            own = operations.filter(pl.col("rank") == rank)
            inbound = operations.filter(pl.col("peer") == rank)
            computes = chunk.computes.filter(pl.col("rank") == rank)
            waits = chunk.waits.filter(pl.col("rank") == rank)
            layers = self._split_rank(int(str(rank)), steps, own, inbound, computes, waits)
            frames.append(counts.filter(pl.col("rank") == rank).hstack(layers))
        return pl.concat(frames, how="diagonal") if frames else pl.DataFrame()

    def _split_rank(
        self,
        rank: int,
        steps: pl.DataFrame,
        own: pl.DataFrame,
        inbound: pl.DataFrame,
        computes: pl.DataFrame,
        waits: pl.DataFrame,
    ) -> pl.DataFrame:
        begin, end = steps["begin_ns"].to_numpy(), steps["end_ns"].to_numpy()
        open_in = {
            Layer.COMPUTE: _between(computes, pl.col("begin_ns"), pl.col("end_ns")),
            Layer.POLL: _between(waits, pl.col("begin_ns"), pl.col("end_ns")),
            Layer.RX: _between(inbound, *OPERATION_SPANS[Layer.RX]),
            Layer.NIC: _between(own, pl.col("return_ns"), NIC_OPEN_UNTIL),
            Layer.PROXY: merge(
                _between(own, *OPERATION_SPANS[Layer.PROXY]), _between(own, pl.col("done_ns"), pl.col("told_ns"))
            ),
        }
        for layer in (Layer.KERNEL, Layer.RING, Layer.LIBFABRIC):
            open_in[layer] = _between(own, *OPERATION_SPANS[layer])
        for layer, spans in open_in.items():
            open_in[layer] = merge(self._open.get((rank, layer), EMPTY), spans)
            self._open[rank, layer] = _beyond(open_in[layer], int(end[-1]))
        found = sweep({layer: spans for layer, spans in open_in.items() if len(spans.begin)}, begin, end)
        columns = {f"{layer}_ns": ns for layer, ns in found.exclusive.items()}
        columns |= {f"{layer}_overlapped_ns": ns for layer, ns in found.overlapped.items()}
        return pl.DataFrame({name: pl.Series(values) for name, values in columns.items()})


def _between(frame: pl.DataFrame, begin: pl.Expr, end: pl.Expr) -> IntervalSet:
    """Union of [begin, end) over the rows that have both."""
    found = frame.select(begin=begin, end=end).drop_nulls()
    return union(found["begin"].to_numpy(), found["end"].to_numpy())


def _beyond(spans: IntervalSet, time_ns: int) -> IntervalSet:
    """The part of a set after a time."""
    rows = spans.end > time_ns
    return union(np.maximum(spans.begin[rows], time_ns), spans.end[rows])
