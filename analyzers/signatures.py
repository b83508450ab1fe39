"""Layers and steps of a run without marks, from its remote writes alone: their sizes, targets and order.

Expert-parallel dispatch begins each phase with a barrier: one small write of the same size to every peer, always to the
same place there. Two phases, dispatch and combine, make a layer. Steps are told apart where the pauses between layers
repeat; traffic without such pauses has layers, but no steps. A recording that begins inside a phase is not recognised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.analyzers.exclusive import sweep
from efaprof.analyzers.intervals import union
from efaprof.trace.layers import Layer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]

LABEL = "signature"
BARRIER_BYTES = 64  # at most, of a write to one peer
LEAST_PHASES = 16
LEAST_STEPS = 5
PAUSE = 3.0  # times the median pause between layers: one between steps
STRAY = 0.05  # of layers: pauses for another reason, for want of a core for one
PREFILL = 4.0  # times the running median of writes a step: no decode step
RUNNING = 31  # steps of that median
MOST_WRITES = 2_000_000  # that are looked at
_KINDS = ("rma.write", "rma.writev", "rma.writemsg", "rma.inject", "rma.writedata", "rma.injectdata")
_COLUMNS = ("process", "peer", "bytes", "remote", "post_ns", "return_ns", "done_ns")


@dataclass(frozen=True, slots=True)
class ProcessLayers:
    """Layers of one process: where each begins, and at last where the last one's writes were completed."""

    process: int
    begin_ns: Rows
    writes: Rows  # of each layer
    pause_ns: Rows  # before each layer, since the last write had returned
    libfabric_ns: Rows  # exclusive, of each layer
    nic_ns: Rows  # exclusive, of each layer
    barrier_bytes: int
    peers: int

    @property
    def layers(self) -> int:
        """How many."""
        return len(self.writes)


@dataclass(frozen=True, slots=True)
class Segmentation:
    """Layers found in every process that writes, and steps where pauses tell them apart."""

    processes: tuple[ProcessLayers, ...]
    layers_per_step: int | None
    first: int  # layer that begins the first whole step
    is_decode: NDArray[np.bool_]  # of each whole step; the others write much more, and are `unclassified`

    @property
    def decode(self) -> int:
        """Decode steps."""
        return int(self.is_decode.sum())

    @property
    def unclassified(self) -> int:
        """Whole steps of another kind."""
        return len(self.is_decode) - self.decode

    @property
    def layer_ns(self) -> tuple[float, float, float]:
        """Means over all layers of a layer's time, and of that exclusively in libfabric and in the NIC."""
        wall, libfabric, nic = (float(np.concatenate(one).mean()) for one in self._costs)
        return wall, libfabric, nic

    @property
    def step_ns(self) -> tuple[float, float, float] | None:
        """The same per decode step; None where there is none."""
        if self.layers_per_step is None or not self.decode:
            return None
        rows = slice(self.first, self.first + len(self.is_decode) * self.layers_per_step)
        shape = (len(self.is_decode), self.layers_per_step)
        wall, libfabric, nic = (
            float(np.mean([values[rows].reshape(shape)[self.is_decode].sum(axis=1) for values in one]))
            for one in self._costs
        )
        return wall, libfabric, nic

    @property
    def coverage(self) -> float:
        """Share of a layer's time in libfabric or in the NIC."""
        wall, libfabric, nic = self.layer_ns
        return (libfabric + nic) / wall

    @property
    def _costs(self) -> tuple[list[Rows], list[Rows], list[Rows]]:
        return (
            [np.diff(one.begin_ns) for one in self.processes],
            [one.libfabric_ns for one in self.processes],
            [one.nic_ns for one in self.processes],
        )


def segment(ops: pl.LazyFrame) -> Segmentation | None:
    """Layers and steps of the writes in a table of operations; None where their pattern is not that of dispatch."""
    writes = ops.filter(pl.col("kind").cast(pl.String).is_in(_KINDS), pl.col("nest") == 0, pl.col("ret") >= 0).select(
        _COLUMNS
    )
    if not LEAST_PHASES <= writes.select(pl.len()).collect().item() <= MOST_WRITES:
        return None
    found = []
    for _, own in writes.collect().sort("process", "post_ns", maintain_order=True).group_by("process"):
        layers = _layers(own)
        if layers is None:
            return None
        found.append(layers)
    found.sort(key=lambda one: one.process)
    steps = {(one.layers, *_steps(one.pause_ns)) for one in found}
    _, length, first = steps.pop() if len(steps) == 1 else (0, None, 0)
    is_decode = _decode(found[0].writes[first:], length) if length else np.empty(0, np.bool_)
    return Segmentation(tuple(found), length, first, is_decode)


def _decode(writes: Rows, length: int) -> NDArray[np.bool_]:
    """Which whole steps do not write much more than those around them."""
    whole = len(writes) // length
    per_step = writes[: whole * length].reshape(whole, length).sum(axis=1)
    usual = pl.Series(per_step.astype(np.float64)).rolling_median(RUNNING, min_samples=1).to_numpy()
    is_usual: NDArray[np.bool_] = per_step <= PREFILL * usual
    return is_usual


def _layers(own: pl.DataFrame) -> ProcessLayers | None:
    """Layers of one process' writes in order."""
    bounds = _bounds(own)
    if bounds is None:
        return None
    own, begins = own.head(int(bounds[-1])), bounds[:-1]
    post, returned = own["post_ns"].to_numpy(), own["return_ns"].to_numpy()
    done = own.select(pl.coalesce("done_ns", "return_ns")).to_series().to_numpy()
    time = np.append(post[begins], done.max())
    split = sweep({Layer.LIBFABRIC: union(post, returned), Layer.NIC: union(returned, done)}, time[:-1], time[1:])
    before = np.maximum.accumulate(returned)[np.maximum(begins - 1, 0)]
    return ProcessLayers(
        process=int(own["process"][0]),
        begin_ns=time,
        writes=np.diff(bounds),
        pause_ns=np.where(begins > 0, post[begins] - before, 0),
        libfabric_ns=split.exclusive[Layer.LIBFABRIC],
        nic_ns=split.exclusive[Layer.NIC],
        barrier_bytes=int(own["bytes"][0]),
        peers=own["peer"].n_unique(),
    )


def _bounds(own: pl.DataFrame) -> Rows | None:
    """Row of the first write of each layer and the row after all, or None where the pattern is not that of dispatch."""
    peers = own["peer"].n_unique()
    head = own.head(peers)
    if head["peer"].n_unique() != peers or head["bytes"].n_unique() != 1 or head["bytes"][0] > BARRIER_BYTES:
        return None
    rows = own.with_row_index("row").join(head.select("peer", "remote", "bytes"), on=["peer", "remote", "bytes"])
    at = np.sort(rows["row"].to_numpy().astype(np.int64))
    if len(at) % peers or len(at) // peers < LEAST_PHASES:
        return None
    groups = at.reshape(-1, peers)
    if len(groups) % 2:  # a layer that was not ended
        own, groups = own.head(int(groups[-1, 0])), groups[:-1]
    others = np.diff(np.append(groups[:, 0], len(own))) - peers
    to = np.sort(own["peer"].to_numpy()[groups], axis=1)
    is_barrier = (groups[:, -1] - groups[:, 0] == peers - 1).all() and (np.diff(to, axis=1) != 0).all()
    if not is_barrier or (others[:-1] <= 0).any() or not _is_alternating(own["bytes"], groups[:, 0]):
        return None
    return np.append(groups[::2, 0], len(own))


def _is_alternating(size: pl.Series, begins: Rows) -> bool:
    """Phases are of two kinds in turn: each one that announces a dispatch writes a size that no combine does."""
    phase = np.searchsorted(begins, np.arange(len(size)), side="right") - 1
    written = pl.DataFrame({"size": size, "phase": phase, "is_second": phase % 2 == 1}).unique()
    is_first_only = ~pl.col("is_second").any().over("size")
    return written.filter(is_first_only)["phase"].n_unique() == len(begins) // 2


def _steps(pause: Rows) -> tuple[int | None, int]:
    """Layers of a step and the first layer that begins one, from the pauses before layers; None where none repeats."""
    cuts = np.flatnonzero(pause > PAUSE * np.median(pause[1:]))
    cuts = cuts[cuts > 0]
    if len(cuts) < LEAST_STEPS:
        return None, 0
    length = int(np.bincount(np.diff(cuts)).argmax())
    first = int(np.bincount(cuts % length).argmax())
    expected = np.arange(first or length, len(pause), length)
    stray = len(cuts) - len(expected)
    if length < 2 or len(expected) < LEAST_STEPS or stray > STRAY * len(pause) or not np.isin(expected, cuts).all():
        return None, 0
    return length, first
