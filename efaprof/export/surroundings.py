"""What happens around operations, as slices: Python stacks, GPU work, arrivals at a target, queue reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.export.board import NOT_DRAWN, LaneTrack, place_on_thread
from efaprof.export.lanes import FOREVER
from efaprof.export.stretches import column_argument
from efaprof.export.timeline import UNFINISHED, Slices

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from efaprof.export.groups import Groups
    from efaprof.export.source import RunTables
    from efaprof.export.timeline import Argument

    Numbers = NDArray[np.int64]

_ARRIVAL_NAMES = ("arrival", "arrival unexplained", "arrival error")


def draw_stacks(tables: RunTables, groups: Groups) -> None:
    """Python stacks, one line a thread, each frame inside its caller; sampled, and called so."""
    frames = tables.named()["stacks"].collect()
    rate = f"{tables.stacks_hz:g} Hz"
    for (process, tid), frame in sorted(frames.partition_by("process", "tid", as_dict=True).items()):
        name = str(frame["thread"][0]) or f"thread {tid}"
        description = f"Python stacks of thread {tid}, sampled {rate} by py-spy: what lies between samples is not seen"
        line = groups.stack_line(int(process), f"Python (sampled, {rate}) · {name}", description)
        file = pl.col("file").str.split("/").list.last()
        named = frame.with_columns(name=pl.col("function") + " (" + file + ")")
        draw_nested(groups, line, f"Python stacks of {name}", named, lambda rows: (column_argument(rows, "line"),))


def draw_nested(
    groups: Groups,
    line: int,
    where: str,
    frame: pl.DataFrame,
    arguments: Callable[[pl.DataFrame], tuple[Argument, ...]],
) -> None:
    """Draw `name`, `begin_ns`, `end_ns` (null: not ended) on one line, nested; what crosses another one goes below."""
    starts = frame["begin_ns"].to_numpy()
    ends = np.maximum(frame["end_ns"].fill_null(int(FOREVER)).to_numpy(), starts)
    order, track = place_on_thread(groups.board, line, where, starts, ends)
    rows = frame[order]
    lasts = np.where(ends == FOREVER, np.int64(UNFINISHED), ends - starts)
    put_named(groups, rows["name"], track, (starts[order], lasts[order]), arguments(rows))


def put_named(
    groups: Groups,
    name: pl.Series,
    track: NDArray[np.uint64],
    when: tuple[Numbers, Numbers],
    arguments: tuple[Argument, ...],
) -> None:
    """Slices by their names, where a track was found for them; `when` is their starts and lengths, ns."""
    names = name.unique().sort()
    slices = Slices(
        track=track,
        start_ns=when[0],
        dur_ns=when[1],
        name=name.cast(pl.Enum(names)).to_physical().cast(pl.UInt32).to_numpy(),
        names=tuple(names),
        arguments=arguments,
    )
    groups.board.sink.slices(slices.where(track != NOT_DRAWN))


def draw_device_work(tables: RunTables, groups: Groups) -> None:
    """What GPUs did, one line a stream."""
    work = tables.named()["device_work"]
    streams = work.select("process", "device", "stream").unique().sort("process", "device", "stream").collect()
    what = (
        pl.when(pl.col("kind") == "graph")
        .then(pl.format("graph {}", "graph"))
        .otherwise(pl.col("kind").cast(pl.String))
    )
    for process, device, stream in streams.iter_rows():
        mine = (pl.col("process") == process) & (pl.col("device") == device) & (pl.col("stream") == stream)
        rows = work.filter(mine).with_columns(name=pl.coalesce(pl.col("name").cast(pl.String), what)).sort("begin_ns")
        frame = rows.collect()
        starts, ends = frame["begin_ns"].to_numpy(), frame["end_ns"].to_numpy()
        track = groups.stream_line(int(process), int(device), int(stream)).place(starts, ends)
        arguments = tuple(column_argument(frame, column) for column in ("correlation", "graph", "bytes"))
        put_named(groups, frame["name"], track, (starts, ends - starts), arguments)


def draw_arrivals(tables: RunTables, groups: Groups) -> None:
    """Completions that met no post, as marks, one line a process."""
    lines: dict[int, LaneTrack] = {}
    for chunk in tables.chunks("arrivals", tables.arrivals):
        for (process,), frame in sorted(chunk.sort("time_ns").partition_by("process", as_dict=True).items()):
            number = int(process)
            if number not in lines:
                lines[number] = groups.arrival_line(number)
            times = frame["time_ns"].to_numpy()
            track = lines[number].place(times, times)
            name = pl.when(pl.col("error").fill_null(0) != 0).then(2).when(~pl.col("is_explained")).then(1).otherwise(0)
            slices = Slices(
                track=track,
                start_ns=times,
                dur_ns=np.zeros_like(times),
                name=frame.select(name.cast(pl.UInt32)).to_series().to_numpy(),
                names=_ARRIVAL_NAMES,
                arguments=tuple(column_argument(frame, column) for column in ("bytes", "immediate", "source")),
            )
            groups.board.sink.slices(slices.where(track != NOT_DRAWN))


@dataclass(slots=True)
class ReadTracks:
    """Completion-queue reads that returned entries, one line a thread, chunk by chunk."""

    groups: Groups
    _lines: dict[int, LaneTrack] = field(default_factory=dict)
    _latest_ns: dict[int, int] = field(default_factory=dict)

    def draw(self, chunk: pl.DataFrame) -> None:
        """Draw a chunk of the reads table; reads of one thread come in order of begin_ns."""
        rows = chunk.filter((pl.col("entries") > 0) & (pl.col("nest") == 0))
        for (process, thread), frame in sorted(rows.partition_by("process", "thread", as_dict=True).items()):
            number = int(thread)
            if number not in self._lines:
                self._lines[number] = self.groups.read_line(int(process), number)
            starts = frame["begin_ns"].to_numpy()
            ends = np.maximum(frame["end_ns"].to_numpy(), starts)
            track = self._lines[number].place(starts, ends)
            slices = Slices(
                track=track,
                start_ns=starts,
                dur_ns=ends - starts,
                name=np.zeros(frame.height, np.uint32),
                names=("cq.read",),
                arguments=tuple(column_argument(frame, column) for column in ("entries", "empties", "cq")),
            )
            self.groups.board.sink.slices(slices.where(track != NOT_DRAWN))
