"""How far a GPU's times, as CUPTI converts them, may be off: bounds from what causes what.

Work cannot begin before the call that launched it, nor end after a call that waited for it has returned. With a shift
that is added to all times of a GPU, each launch says how large it is at least, each wait how large at most:

    lowest = max(call begins − work begins)        highest = min(wait returns − work ends)

A shift below 0 means that the GPU's times are told too late, above 0 too early.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.trace.layout import EVERY_STREAM, Payload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from efaprof.trace.reader import Tables

    Times = NDArray[np.int64]

NODES_TOLD = "CUPTI attached: kernels of graphs told"  # a note of the probe
MOST_STRETCHES = 16
LEAST_STRETCH_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """The shifts of a GPU's times that launches and waits allow; None: nothing says."""

    lowest_ns: int | None
    highest_ns: int | None

    @property
    def wander_ns(self) -> int:
        """Where no one shift is allowed: the times wander against ours by so much at least. Else 0."""
        if self.lowest_ns is None or self.highest_ns is None:
            return 0
        return max(self.lowest_ns - self.highest_ns, 0)

    @property
    def error_ns(self) -> int | None:
        """Half the width of what is allowed; None where one side is open, or nothing is allowed."""
        if self.lowest_ns is None or self.highest_ns is None or self.wander_ns:
            return None
        return -((self.lowest_ns - self.highest_ns) // 2)

    @property
    def off_ns(self) -> int:
        """The least shift that is needed, with its sign; 0 where times as they are told are allowed."""
        if self.wander_ns:
            return 0
        return max(self.lowest_ns or 0, 0) + min(self.highest_ns or 0, 0)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the run."""

    begin_ns: int
    end_ns: int
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class DeviceClock:
    """Times of one GPU in one process."""

    process: int
    device: int
    launches: int  # stretches of the GPU's time whose launch is known
    waits: int  # calls that waited for some of them
    bounds: Bounds  # of one shift for the whole run
    stretches: tuple[Stretch, ...]  # equal parts of it, where there are several: shifts of their own


@dataclass(frozen=True, slots=True)
class _Said:
    """Bounds on the shift: when each holds, of which GPU, and how it limits."""

    device: Times
    time: Times
    shift: Times

    def of(self, device: int) -> _Said:
        mine = self.device == device
        return _Said(self.device[mine], self.time[mine], self.shift[mine])


def device_clocks(tables: Tables) -> tuple[DeviceClock, ...]:
    """Of each process and GPU of a run, in their order; empty where no launch was recorded."""
    # Streams of graphs' kernels are not those that a program waits for.
    has_nodes = any(note.text == NODES_TOLD for note in tables.facts.notes)
    calls = tables.spans.filter(pl.col("source") == "cuda", pl.col("correlation") > 0).rename(
        {"begin_ns": "call_ns", "end_ns": "return_ns"}
    )
    work = tables.device_work.select(
        "process", "device", "stream", "context", "begin_ns", "end_ns", "correlation",
        is_node=pl.col("graph").is_not_null() & pl.lit(has_nodes),
    )  # fmt: skip
    known = calls.select("process", "what", "call_ns", "return_ns", pl.col("correlation").cast(pl.UInt32))
    launched = work.join(known, on=["process", "correlation"]).collect()
    if launched.is_empty():
        return ()
    waits = _waits(calls).collect()
    found: list[DeviceClock] = []
    for (process,), own in launched.sort("process").group_by("process", maintain_order=True):
        found += _of_process(int(str(process)), own, waits.filter(pl.col("process") == process))
    return tuple(found)


def _waits(calls: pl.LazyFrame) -> pl.LazyFrame:
    """Calls that waited for streams: which, for what had been launched before when, and when they returned."""
    waits = calls.filter(pl.col("what") == "wait")
    streams = ("process", "category", "payload")
    by_stream = waits.filter(pl.col("payload_type") == Payload.U64)
    for_event = waits.filter(pl.col("payload_type") == Payload.U32).select(
        "process", "return_ns", correlation="payload"
    )
    events = calls.filter(pl.col("what") == "event").select(*streams, "correlation", before_ns="call_ns")
    return pl.concat(
        [
            by_stream.select(*streams, "return_ns", before_ns="call_ns"),
            for_event.join(events, on=["process", "correlation"]).select(*streams, "return_ns", "before_ns"),
        ]
    )


def _of_process(process: int, launched: pl.DataFrame, waits: pl.DataFrame) -> Iterator[DeviceClock]:
    device, begin = (launched[name].to_numpy().astype(np.int64) for name in ("device", "begin_ns"))
    lower = _Said(device, begin, launched["call_ns"].to_numpy() - begin)
    upper = _joined([_copies(launched), *_waited(launched, waits)])
    for number in np.unique(device).tolist():
        low, high = lower.of(number), upper.of(number)
        yield DeviceClock(process, number, len(low.time), len(high.time), _bounds(low, high), _stretches(low, high))


def _joined(parts: list[_Said]) -> _Said:
    return _Said(*(np.concatenate([getattr(one, name) for one in parts]) for name in ("device", "time", "shift")))


def _copies(launched: pl.DataFrame) -> _Said:
    """Bounds by calls that came back when what they launched was done."""
    own = launched.filter(pl.col("what") == "wait")
    device, returned, end = (own[name].to_numpy().astype(np.int64) for name in ("device", "return_ns", "end_ns"))
    return _Said(device, returned, returned - end)


def _waited(launched: pl.DataFrame, waits: pl.DataFrame) -> Iterator[_Said]:
    """Bounds by calls that waited for what had been launched before them."""
    for (context, stream), calls in waits.group_by("category", "payload", maintain_order=True):
        within = launched.filter(pl.col("context") == context)
        if stream != EVERY_STREAM:
            within = within.filter(pl.col("stream") == stream, ~pl.col("is_node"))
        if within.is_empty():
            continue
        # Of what had been launched by then, the last end is what the call waited for.
        within = within.sort("return_ns")
        reach = np.maximum.accumulate(within["end_ns"].to_numpy())
        at = np.searchsorted(within["return_ns"].to_numpy(), calls["before_ns"].to_numpy(), side="right") - 1
        returned = calls["return_ns"].to_numpy()[at >= 0]
        device = np.full(len(returned), within["device"][0], np.int64)  # a context is of one GPU
        yield _Said(device, returned, returned - reach[at[at >= 0]])


def _bounds(low: _Said, high: _Said) -> Bounds:
    return Bounds(int(low.shift.max()) if len(low.shift) else None, int(high.shift.min()) if len(high.shift) else None)


def _stretches(low: _Said, high: _Said) -> tuple[Stretch, ...]:
    times = np.concatenate([low.time, high.time])
    first, last = int(times.min()), int(times.max())
    count = min((last - first) // LEAST_STRETCH_NS, MOST_STRETCHES)
    if count < 2:
        return ()
    edges = np.linspace(first, last + 1, count + 1).astype(np.int64)
    made = []
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        parts = [_Said(one.device[mine], one.time[mine], one.shift[mine])
                 for one in (low, high) for mine in ((one.time >= begin) & (one.time < end),)]  # fmt: skip
        made.append(Stretch(begin, end, _bounds(*parts)))
    return tuple(made)
