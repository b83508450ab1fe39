"""The tables of a run that an export draws from, narrowed to a window of time or a number of slices."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import polars as pl

from efaprof.errors import NothingToAnalyse, UsageError
from efaprof.trace.layers import Match
from efaprof.trace.python_stacks import FRAMES
from efaprof.trace.schema import DEVICE_WORK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from efaprof.analyzers.steps import FoundSteps
    from efaprof.export.dispatch import DispatchSource
    from efaprof.export.perfetto.tracks import ClockReading
    from efaprof.export.timeline import Fact

CHUNK_ROWS = 1 << 18  # as many as a row group of the kept tables
FOREVER_NS = 2**62
# Frames of sampled Python stacks, with the process that they belong to.
STACKS = {"process": pl.UInt32(), **FRAMES}
# First and last instant of a row of each table.
EXTENT: dict[str, tuple[pl.Expr, pl.Expr]] = {
    "ops": (
        pl.col("post_ns"),
        pl.max_horizontal(
            "return_ns",
            pl.when(pl.col("match").cast(pl.String) == Match.IN_FLIGHT.value)
            .then(FOREVER_NS)
            .otherwise(pl.col("done_ns")),
        ),
    ),
    "arrivals": (pl.col("time_ns"), pl.col("time_ns")),
    "reads": (pl.col("begin_ns"), pl.col("end_ns")),
    "counters": (pl.col("time_ns"), pl.col("time_ns")),
    "spans": (pl.col("begin_ns"), pl.col("end_ns").fill_null(FOREVER_NS)),
    "stacks": (pl.col("begin_ns"), pl.col("end_ns")),
    "device_work": (pl.col("begin_ns"), pl.col("end_ns")),
}
# Slices that a row becomes.
_WEIGHT: dict[str, pl.Expr] = {
    "ops": pl.when(pl.col("match").cast(pl.String).is_in([Match.EXPECTED_NONE.value, Match.FAILED_POST.value]))
    .then(1)
    .otherwise(2),
    "arrivals": pl.col("time_ns").is_not_null().cast(pl.Int64),
    "reads": pl.when((pl.col("entries") > 0) & (pl.col("nest") == 0)).then(1).otherwise(0),
    "spans": pl.col("begin_ns").is_not_null().cast(pl.Int64),
    "stacks": pl.col("begin_ns").is_not_null().cast(pl.Int64),
    "device_work": pl.lit(1),
}


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time, [start_ns, end_ns) of CLOCK_MONOTONIC."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class RunTables:
    """Tables of one run, with the columns of `efaprof.trace.schema`; ops in order of post_ns."""

    ops: pl.LazyFrame
    arrivals: pl.LazyFrame
    reads: pl.LazyFrame
    counters: pl.LazyFrame
    spans: pl.LazyFrame
    processes: pl.DataFrame
    threads: pl.DataFrame
    objects: pl.DataFrame
    clocks: ClockReading | None = None
    facts: dict[str, Fact] = field(default_factory=dict)
    identity: str = ""  # the run's name, unlike any other run's
    window: Window | None = None
    keep_alive: object = None  # whose end removes the files behind the tables
    dispatch: DispatchSource | None = None  # operations of a dispatch path of ours
    stacks: pl.LazyFrame = field(default_factory=lambda: pl.LazyFrame(schema=STACKS))
    stacks_hz: float = 0.0
    steps: FoundSteps | None = None  # of a program that says where they are
    device_work: pl.LazyFrame = field(default_factory=lambda: pl.LazyFrame(schema=DEVICE_WORK))

    def named(self) -> dict[str, pl.LazyFrame]:
        """The tables whose rows have times, each row touching the window."""
        tables = {
            "ops": self.ops,
            "arrivals": self.arrivals,
            "reads": self.reads,
            "counters": self.counters,
            "spans": self.spans,
            "stacks": self.stacks,
            "device_work": self.device_work,
        }
        return {name: self.cut(name, table) for name, table in tables.items()}

    def cut(self, name: str, table: pl.LazyFrame) -> pl.LazyFrame:
        """Rows of a table that touch the window."""
        if self.window is None:
            return table
        first, last = EXTENT[name]
        return table.filter((first < self.window.end_ns) & (last >= self.window.start_ns))

    def chunks(self, name: str, table: pl.LazyFrame) -> Iterator[pl.DataFrame]:
        """A table's rows within the window, a bounded number at a time, in order.

        Slices come before the filter, so that each part of a file is read once.
        """
        rows = int(table.select(pl.len()).collect().item())
        for offset in range(0, rows, CHUNK_ROWS):
            part = self.cut(name, table.slice(offset, CHUNK_ROWS)).collect()
            if part.height:
                yield part

    def extent(self) -> Window:
        """First and last instant of what is in the tables, the window not applied."""
        bounds = []
        for name, table in replace(self, window=None).named().items():
            first, last = EXTENT[name]
            low, high = (
                table.select(low=first.min(), high=pl.when(last < FOREVER_NS).then(last).otherwise(first).max())
                .collect()
                .row(0)
            )
            if low is not None:
                bounds.append((low, high))
        if self.dispatch is not None:
            bounds.append((self.dispatch.extent.start_ns, self.dispatch.extent.end_ns - 1))
        if not bounds:
            raise NothingToAnalyse(
                f"{self.identity or 'the run'} holds no operations, spans or counters",
                hint="efaprof info RUN says which probes recorded, and why others did not",
            )
        return Window(min(low for low, _ in bounds), max(high for _, high in bounds) + 1)


def seconds_window(tables: RunTables, text: str) -> Window:
    """Window of "A:B", seconds from the first event of the run; either may be left out."""
    extent = tables.extent()
    before, colon, after = text.partition(":")
    try:
        start_s = float(before) if before.strip() else 0.0
        end_s = float(after) if after.strip() else None
    except ValueError:
        start_s, end_s = 0.0, -1.0
    if not colon or start_s < 0 or (end_s is not None and not end_s > start_s):
        raise UsageError(
            f"--window {text!r} is not A:B in seconds from the start, A before B",
            hint="for example --window 1.5:2.0, or --window 10: for all from second 10 on",
        )
    end_ns = extent.end_ns if end_s is None else min(extent.end_ns, extent.start_ns + round(end_s * 1e9))
    window = Window(extent.start_ns + round(start_s * 1e9), end_ns)
    if window.start_ns >= extent.end_ns:
        length_s = (extent.end_ns - extent.start_ns) / 1e9
        raise UsageError(f"--window {text} starts after the end: the run is {length_s:.6f} s long")
    return window


def expected_slices(tables: RunTables) -> int:
    """Slices that the tables become within the window."""
    return int(_starts(tables).select(pl.sum("weight")).collect().item() or 0)


def _starts(tables: RunTables) -> pl.LazyFrame:
    """`time` and `weight`: how many slices start when."""
    starts = [
        table.select(time=EXTENT[name][0], weight=_WEIGHT[name].cast(pl.Int64))
        for name, table in tables.named().items()
        if name in _WEIGHT
    ]
    if tables.dispatch is not None:
        starts.append(tables.dispatch.starts(tables.window or tables.extent()))
    return pl.concat(starts)


def first_slices(tables: RunTables, limit: int) -> Window:
    """The part of the window that holds the first `limit` slices, by the start of what they draw."""
    window = tables.window or tables.extent()
    beyond = (
        _starts(tables)
        .group_by("time")
        .agg(pl.sum("weight"))
        .sort("time")
        .filter(pl.col("weight").cum_sum() > limit)
        .select(pl.col("time").first())
        .collect()
    )
    end_ns = beyond.item()
    return window if end_ns is None else Window(window.start_ns, min(window.end_ns, int(end_ns)))
