"""Operations of our own dispatch paths as slices: one line a layer, one flow an operation from kernel to receiver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.export.batch import flow_ids
from efaprof.export.lanes import FOREVER
from efaprof.export.stretches import StretchLines
from efaprof.trace.layers import Layer
from efaprof.trace.layout import RINGS_APART

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from efaprof.export.board import LaneTrack
    from efaprof.export.groups import Groups
    from efaprof.export.source import Window
    from efaprof.trace.widerow import DispatchChunk


@dataclass(frozen=True, slots=True)
class Stage:
    """A layer of the path: from one stamp of an operation to another."""

    layer: str
    start: str
    end: str
    arguments: tuple[str, ...]
    description: str


# In the order in which an operation passes them; "fence" lies inside "proxy", or before what a kernel posts itself.
STAGES = (
    Stage(
        Layer.KERNEL,
        "enter_ns",
        "publish_ns",
        ("ring", "seq", "step", "layer", "bytes"),
        "entered → command published, or the kernel's own doorbell rung",
    ),
    Stage(Layer.RING, "publish_ns", "seen_ns", ("seq",), "published → seen by the proxy"),
    Stage(Layer.PROXY, "seen_ns", "call_ns", ("seq",), "seen → library call entered"),
    Stage("fence", "held_ns", "fenced_ns", ("seq",), "waiting for earlier operations to complete"),
    Stage(Layer.LIBFABRIC, "call_ns", "return_ns", ("seq", "bytes", "eagain"), "first attempt → doorbell"),
    Stage(Layer.NIC, "return_ns", "done_ns", ("seq", "peer", "error"), "doorbell → completion seen by the poster"),
    Stage("told", "done_ns", "told_ns", ("seq",), "part of proxy: completion seen → consumer told"),
    Stage(Layer.RX, "arrival_ns", "signal_ns", ("seq", "rank", "channel"), "seen by the receiver → handed over"),
)
_PARTS = ("fence", "told")  # of other stages: outside the chain of an operation
_OF_PROXY = frozenset({Layer.RING, Layer.PROXY, "fence", "told", Layer.LIBFABRIC})  # a line for each proxy of a rank
_PROXY_SHIFT = 32  # number of a line: process, and above it which of the rank's proxies
_HOST_STAMPS = ("seen_ns", "call_ns")  # of a path with a proxy
_STAMPS = ("enter_ns", "publish_ns", "seen_ns", "call_ns", "return_ns", "done_ns", "signal_ns")


@dataclass(frozen=True, slots=True)
class DispatchSource:
    """Where chunks of a run's dispatch operations come from."""

    processes: frozenset[int]
    extent: Window
    chunks: Callable[[], Iterator[DispatchChunk]]

    def starts(self, window: Window) -> pl.LazyFrame:
        """`time` and `weight`: how many slices start when, within a window."""
        found = []
        for chunk in self.chunks():
            operations = _touching(chunk.operations, window)
            weight = pl.sum_horizontal(
                *((pl.col(stage.start).is_not_null() & pl.col(stage.end).is_not_null()) for stage in STAGES)
            )
            found.append(operations.select(time="enter_ns", weight=weight.cast(pl.Int64)))
            for frame in (chunk.steps, chunk.waits, chunk.computes):
                times = frame.filter(pl.col("begin_ns") < window.end_ns, pl.col("end_ns") >= window.start_ns)
                found.append(times.select(time="begin_ns", weight=pl.lit(1, pl.Int64)))
        found.append(pl.DataFrame(schema={"time": pl.Int64, "weight": pl.Int64}))
        return pl.concat(found).drop_nulls("time").lazy()


def _touching(operations: pl.DataFrame, window: Window) -> pl.DataFrame:
    """Operations in a window; what a kernel posted itself was published by its doorbell. `held_ns`: a fence began."""
    last = pl.max_horizontal(*_STAMPS).fill_null(0)
    is_posted = pl.col("is_posted")
    return operations.filter(pl.col("enter_ns") < window.end_ns, last >= window.start_ns).with_columns(
        publish_ns=pl.when(is_posted).then(pl.col("return_ns")).otherwise(pl.col("publish_ns")),
        held_ns=pl.when(is_posted).then(pl.col("enter_ns")).otherwise(pl.col("seen_ns")),
    )


@dataclass(slots=True)
class DispatchTracks:
    """Draws a run's chunks, each once the next one says what can no longer come."""

    groups: Groups
    window: Window
    salt: int  # sets the flows of this run apart from those of others
    missing: int = 0  # stamps that an operation lacks although it went on
    _stages: dict[str, StretchLines] = field(init=False)
    _others: dict[str, StretchLines] = field(init=False)

    def __post_init__(self) -> None:
        self._stages = {
            stage.layer: StretchLines(self._opener(stage.layer, stage.description), stage.arguments) for stage in STAGES
        }
        self._others = {
            "steps": StretchLines(self._opener("steps", "begin of a step → begin of the next"), ("step",)),
            Layer.COMPUTE: StretchLines(self._opener(Layer.COMPUTE, "this rank's own arithmetic")),
            "waits": StretchLines(
                self._opener("waits", "gates: polls, flushes and barriers"), ("step", "layer", "polls")
            ),
        }

    def draw(self, source: DispatchSource) -> None:
        """Draw everything that touches the window."""
        held: DispatchChunk | None = None
        for chunk in source.chunks():
            first = chunk.operations["enter_ns"].min()
            self._draw_chunk(held, int(first) if isinstance(first, int) else int(FOREVER))
            held = chunk
        self._draw_chunk(held, int(FOREVER))

    def _opener(self, layer: str, description: str) -> Callable[[int], LaneTrack]:
        return lambda line: self.groups.stage_line(
            line & (1 << _PROXY_SHIFT) - 1, layer, description, proxy=line >> _PROXY_SHIFT
        )

    def _draw_chunk(self, chunk: DispatchChunk | None, until_ns: int) -> None:
        """Draw a chunk as far as nothing can still come before, `until_ns` being the begin of the next one."""
        if chunk is None:
            return
        operations = self._named(_touching(chunk.operations, self.window))
        self.missing += _missing(operations)
        known = [frame.select("process", "rank").unique() for frame in (operations, chunk.steps)]
        home = {rank: process for process, rank in pl.concat(known).rows()}
        for stage in STAGES:
            self._stages[stage.layer].draw(_stage_frame(operations, stage, home), until_ns)
        shape = (pl.col("process").cast(pl.Int64), pl.col("begin_ns").alias("start"), pl.col("end_ns").alias("end"))
        touching = (pl.col("begin_ns") < self.window.end_ns, pl.col("end_ns") >= self.window.start_ns)
        kind = pl.col("kind").cast(pl.String)
        phase = pl.col("phase").cast(pl.String)
        for line, frame, name, arguments in (
            ("steps", chunk.steps, kind + " step", ["step"]),
            (Layer.COMPUTE, chunk.computes, kind, []),
            ("waits", chunk.waits, pl.concat_str(phase, kind, separator=" "), ["step", "layer", "polls"]),
        ):
            self._others[line].draw(frame.filter(*touching).select(*shape, *arguments, name=name), until_ns)

    def _named(self, operations: pl.DataFrame) -> pl.DataFrame:
        """Operations with their names, their flows, and which slice is the last of its flow."""
        ring = operations["ring"].cast(pl.UInt64).to_numpy() << np.uint64(48)
        flow = flow_ids(ring | operations["seq"].cast(pl.UInt64).to_numpy(), self.salt)
        is_rx_last = pl.col("arrival_ns").is_not_null() & (
            pl.col("return_ns").is_null() | (pl.col("arrival_ns") >= pl.col("return_ns"))
        )
        phase, kind = pl.col("phase").cast(pl.String), pl.col("kind").cast(pl.String)
        return operations.with_columns(
            name=pl.when(phase == "none").then(kind).otherwise(pl.concat_str(phase, kind, separator=" ")),
            flow=pl.Series(flow),
            last_stage=pl.when(is_rx_last).then(pl.lit(Layer.RX.value)).otherwise(pl.lit(Layer.NIC.value)),
        )


def _stage_frame(operations: pl.DataFrame, stage: Stage, home: dict[int, int]) -> pl.DataFrame:
    """Stretches of one stage; what is under way at the end of the run has no end."""
    later = _STAMPS[_STAMPS.index(stage.end) :] if stage.end in _STAMPS else (stage.end,)
    is_open = pl.all_horizontal(pl.col(stamp).is_null() for stamp in later) & (stage.layer not in _PARTS)
    process = pl.col("peer").replace_strict(home, default=None) if stage.layer == Layer.RX else pl.col("process")
    proxy = pl.col("ring").cast(pl.Int64) // RINGS_APART if stage.layer in _OF_PROXY else pl.lit(0, pl.Int64)
    is_last = pl.col("last_stage") == str(stage.layer)
    flow = pl.col("flow") if stage.layer not in _PARTS else pl.lit(0, pl.UInt64)
    zero = pl.lit(0, pl.UInt64)
    return (
        operations.with_columns(process=process.cast(pl.Int64) + proxy * (1 << _PROXY_SHIFT))
        .filter(
            pl.col("process").is_not_null(),
            pl.col(stage.start).is_not_null(),
            pl.col(stage.end).is_not_null() | is_open,
        )
        .select(
            "process",
            "name",
            *stage.arguments,
            start=pl.col(stage.start),
            end=pl.col(stage.end),
            flow=pl.when(is_last).then(zero).otherwise(flow),
            last_flow=pl.when(is_last).then(flow).otherwise(zero),
        )
    )


def _missing(operations: pl.DataFrame) -> int:
    """Stamps that are not there although a later one of the poster is."""
    own = _STAMPS[:-1]
    holes = [
        pl.col(stamp).is_null()
        & pl.any_horizontal(pl.col(later).is_not_null() for later in own[index + 1 :])
        & ~(pl.col("is_posted") & pl.lit(stamp in _HOST_STAMPS))
        for index, stamp in enumerate(own[:-1])
    ]
    return int(operations.select(pl.sum_horizontal(hole.sum() for hole in holes)).item() or 0)
