"""Counter lines of a run: operations and bytes in flight, empty polls, what was sampled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.export.levels import Changes
from efaprof.export.rates import counter_line
from efaprof.trace.layers import Match

if TYPE_CHECKING:
    from efaprof.export.batch import CallKey
    from efaprof.export.groups import Groups
    from efaprof.export.source import RunTables, Window

_HOST_COUNTERS = "nic."  # names of counters that belong to a host, not to a process
# Name, unit, direction, column that is summed ("" counts operations).
_LEVELS = (
    ("outstanding operations", "operations", "tx", ""),
    ("bytes in flight", "B", "tx", "bytes"),
    ("posted receives waiting", "operations", "rx", ""),
)


def _sampling(step_ns: int) -> str:
    return f"value every {step_ns} ns" if step_ns else "every change"


@dataclass(slots=True)
class InFlight:
    """How many operations, and how many bytes, lie between doorbell and completion, on each level of a process.

    Operations without a completion to come, failed posts, and those whose end is not known are left out.
    """

    window: Window
    keys: list[CallKey]
    _changes: dict[tuple[int, int], Changes] = field(default_factory=dict)

    def add(self, ops: pl.DataFrame) -> None:
        """Take a chunk of the ops table in."""
        in_flight = pl.col("match").cast(pl.String) == Match.IN_FLIGHT.value
        rows = ops.filter(pl.col("done_ns").is_not_null() | in_flight).with_columns(
            start=pl.coalesce("doorbell_ns", "return_ns"),
            bytes=pl.col("bytes").fill_null(0).cast(pl.Int64),
            provider=pl.col("provider").cast(pl.String).fill_null(""),
        )
        levels = {(key.process, key.nest, key.provider): key.flight for key in self.keys}
        by_level = rows.partition_by("process", "nest", "provider", "direction", as_dict=True)
        for (process, nest, provider, direction), frame in by_level.items():
            ended = frame.filter(pl.col("done_ns").is_not_null())
            starts = frame["start"].to_numpy()
            ends = np.maximum(ended["done_ns"].to_numpy(), ended["start"].to_numpy())
            for index, (_, _, side, column) in enumerate(_LEVELS):
                if side == direction:
                    changes = self._changes.setdefault((levels[process, nest, provider], index), Changes(self.window))
                    changes.add(starts, _amounts(frame, column))
                    changes.add(ends, -_amounts(ended, column))

    def draw(self, groups: Groups) -> None:
        """Put the lines on the sink."""
        for (level, index), changes in sorted(self._changes.items()):
            name, unit, _, _ = _LEVELS[index]
            times, levels = changes.level()
            description = f"between doorbell and completion; {_sampling(changes.step_ns)}"
            track = groups.counter_of_level(self.keys[level], name, unit, description)
            groups.board.sink.counter(track, times, levels)


def _amounts(frame: pl.DataFrame, column: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return frame[column].to_numpy() if column else np.ones(frame.height, np.int64)


@dataclass(slots=True)
class EmptyPolls:
    """Empty completion-queue reads, each gap's number at the end of the read before it."""

    window: Window
    _changes: dict[tuple[int, int], Changes] = field(default_factory=dict)
    _last_end: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def add(self, reads: pl.DataFrame) -> None:
        """Take a chunk of the reads table in; reads of one thread and queue come in order."""
        rows = reads.filter(pl.col("nest") == 0).with_columns(pl.col("cq").fill_null(0))
        for key, frame in rows.partition_by("process", "thread", "cq", as_dict=True).items():
            process, thread, queue = (int(part) for part in key)
            ends = frame["end_ns"].to_numpy()
            since = self._last_end.get((process, thread, queue), self.window.start_ns)
            self._last_end[process, thread, queue] = int(ends[-1])
            changes = self._changes.setdefault((process, queue), Changes(self.window))
            changes.add(np.concatenate(([since], ends[:-1])), frame["empties"].cast(pl.Int64).to_numpy())

    def draw(self, groups: Groups) -> None:
        """Put the lines on the sink; a queue that was never polled in vain has none."""
        queues = {
            process: [queue for other, queue in self._changes if other == process] for process, _ in self._changes
        }
        for (process, queue), changes in sorted(self._changes.items()):
            times, counts = changes.sums()
            if not counts.any():
                continue
            name = "empty polls" if len(queues[process]) == 1 else f"empty polls · cq {queue}"
            step_ns = changes.step_ns
            per = f"per {step_ns} ns" if step_ns else "until the next read that returned something"
            description = f"completion-queue reads that returned nothing, {per}"
            track = groups.counter(process, name, "polls", description=description)
            groups.board.sink.counter(track, times, counts)


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was noticed about sampled counters."""

    resets: int  # times that a count went back
    still: int  # counts that never moved and gauges that stayed 0, not drawn


def draw_counters(tables: RunTables, groups: Groups) -> Sampled:
    """Put sampled counters on the sink, NICs in a group of their host."""
    samples = tables.named()["counters"].with_columns(pl.col("name").cast(pl.String)).sort("time_ns").collect()
    resets = still = 0
    for (process, name), frame in sorted(samples.partition_by("process", "name", as_dict=True).items()):
        line = counter_line(
            name, frame["time_ns"].to_numpy(), frame["value"].to_numpy(), is_monotone=bool(frame["is_monotone"][0])
        )
        resets += line.resets
        if not line.values.any():
            still += 1
            continue
        if name.startswith(_HOST_COUNTERS):
            track = groups.host_counter(int(process), name.removeprefix(_HOST_COUNTERS), line.unit)
        else:
            track = groups.counter(int(process), name, line.unit, is_sampled=True)
        groups.board.sink.counter(track, line.time_ns, line.values)
    return Sampled(resets, still)
