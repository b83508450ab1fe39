"""From the stages of whole steps to one wide row per operation, and its arrival at the receiver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from efaprof.trace import schema
from efaprof.trace.frames import empty, frame, named
from efaprof.trace.layout import RX_HELD, X_FENCE, X_IMM, Command, Stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from efaprof.trace.marks import Marks

    Column = NDArray[Any]
    Columns = dict[str, Column]
    Wire = dict[tuple[int, int], int]

NO_TIME = np.iinfo(np.int64).min
NONE = -1
# The column that the end of each stage gives.
_END_COLUMN = {
    Stage.KERNEL: "publish_ns",
    Stage.RING: "seen_ns",
    Stage.FENCE: "fenced_ns",
    Stage.PROXY: "call_ns",
    Stage.LIBFABRIC: "return_ns",
    Stage.NIC: "done_ns",
    Stage.TOLD: "told_ns",
}
_ENUMS = {"phase": schema.Phase, "kind": schema.CommandKind}


@dataclass(frozen=True, slots=True)
class DispatchChunk:
    """Whole steps of all ranks, as tables of efaprof/trace/schema.py."""

    steps: pl.DataFrame
    operations: pl.DataFrame
    waits: pl.DataFrame
    computes: pl.DataFrame


def assemble(
    rings: Sequence[Marks],
    steps: tuple[int, int],
    stages: Mapping[int, Mapping[Stage, Columns]],
    waits: Mapping[int, NDArray[np.void]],
    arrivals: Mapping[int, Columns],
    wire: Wire,
) -> tuple[DispatchChunk, dict[int, Columns]]:
    """Tables of the steps [first, last), and per process the arrivals that belong to later ones.

    `wire` holds the next wire sequence of each (ring, peer and channel) and is moved on. Columns without a record are
    null; arrivals older than the chunk's operations are dropped: their operation was handed out without them.
    """
    columns = [_operations(marks, steps, stages[marks.ring], wire) for marks in rings]
    merged = {name: np.concatenate([one[name] for one in columns]) for name in columns[0]}
    receiver = _Receiver(merged)
    rest: dict[int, Columns] = {}
    for marks in rings:
        if marks.process not in rest:
            rest[marks.process] = receiver.take(arrivals[marks.process], marks.rank)
    chunk = DispatchChunk(
        steps=pl.concat([_steps(marks, steps) for marks in rings]),
        operations=_frame(schema.DISPATCH, merged),
        waits=pl.concat([_waits(marks, waits[marks.process]) for marks in rings]),
        computes=pl.concat([_computes(marks, stages[marks.ring][Stage.COMPUTE]) for marks in rings]),
    )
    return chunk, rest


def _operations(marks: Marks, steps: tuple[int, int], stages: Mapping[Stage, Columns], wire: Wire) -> Columns:
    """Columns of one ring's operations, in order of seq."""
    base = marks.seq_at(steps[0])
    count = marks.seq_at(steps[1]) - base
    found: Columns = {name: np.full(count, NO_TIME, np.int64) for name in (*_END_COLUMN.values(), "enter_ns")}
    head, tail = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
    found |= {name: np.full(count, NONE, np.int32) for name in ("eagain", "error", "outstanding")}
    for stage in (Stage.RING, Stage.KERNEL):  # the kernel's own word is the last
        own = stages[stage]
        index, is_ours = _index(own["seq"], base)
        head[index], tail[index] = own["head"][is_ours], own["tail"][is_ours]
    for stage, name in _END_COLUMN.items():
        own = stages[stage]
        index, is_ours = _index(own["seq"], base)
        found[name][index] = own["end_ns"][is_ours]
        if stage is Stage.KERNEL:
            found["enter_ns"][index] = own["begin_ns"][is_ours]
        elif stage is Stage.LIBFABRIC:
            found["eagain"][index] = own["tail"][is_ours] >> np.uint64(48) & np.uint64(0xFF)
        elif stage is Stage.NIC:
            found["error"][index] = own["tail"][is_ours] >> np.uint64(48) & np.uint64(0xFF)
            found["outstanding"][index] = own["tail"][is_ours] >> np.uint64(56)
    return found | _identity(marks, base, head, tail, wire)


def _index(seq: Column, base: int) -> tuple[Column, Column | slice]:
    """Rows of these sequences, and which of them are not of an earlier chunk."""
    index = seq - base
    is_late = index < 0
    if is_late.any():
        return index[~is_late], ~is_late
    return index, slice(None)


def _identity(marks: Marks, base: int, head: Column, tail: Column, wire: Wire) -> Columns:
    """What an operation is: where in the job, what kind, and its number on the wire."""
    count = len(head)
    is_known = head != 0
    x = (head >> np.uint64(48)).astype(np.int32)
    kind = x >> 12
    channel = np.where(is_known, x & 0xFF, NONE)
    peer = np.where(is_known, (tail >> np.uint64(32) & np.uint64(0xFFFF)).astype(np.int32), NONE)
    rows = np.flatnonzero(((x & X_IMM) != 0) | (kind == Command.SIGNAL) | (kind == Command.BARRIER))
    wire_seq = np.full(count, NONE, np.int64)
    wire_seq[rows] = _wire_sequences(marks.ring, peer[rows] << 8 | channel[rows], wire)
    seq = base + np.arange(count)
    place = np.searchsorted(marks.first_seq, seq, side="right") - 1
    return {
        "process": np.full(count, marks.process, np.uint32),
        "rank": np.full(count, marks.rank, np.uint16),
        "ring": np.full(count, marks.ring, np.uint16),
        "seq": seq,
        "step": marks.step[place].astype(np.uint32),
        "layer": marks.layer[place].astype(np.uint16),
        "phase": marks.phase[place],
        "kind": kind,
        "peer": peer,
        "channel": channel,
        "bytes": np.where(is_known, (tail & np.uint64(0xFFFFFFFF)).view(np.int64), NONE),
        "is_fenced": (x & X_FENCE) != 0,
        "wire_seq": wire_seq,
        "arrival_ns": np.full(count, NO_TIME),
        "signal_ns": np.full(count, NO_TIME),
        "is_held": np.full(count, NONE, np.int8),
    }


def _wire_sequences(ring: int, key: Column, wire: Wire) -> NDArray[np.int64]:
    """Rank of each operation among those of its key, in order, from where the chunk before ended."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(key) else np.empty(0, np.int64)
    lengths = np.diff(np.append(starts, len(key)))
    bases = np.array([wire.get((ring, int(one)), 0) for one in ordered[starts]], np.int64)
    for one, length, base in zip(ordered[starts], lengths, bases, strict=True):
        wire[ring, int(one)] = int(base + length)
    numbers = np.empty(len(key), np.int64)
    numbers[order] = np.arange(len(key)) - np.repeat(starts - bases, lengths)
    return numbers


class _Receiver:
    """Finds the operation that an arrival belongs to: (src, dst, channel) and a dense range of wire sequences."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        rows = np.flatnonzero(columns["wire_seq"] >= 0)
        key = _flow(columns["rank"][rows], columns["peer"][rows], columns["channel"][rows])
        self._keys, inverse, self._count = np.unique(key, return_inverse=True, return_counts=True)
        number = columns["wire_seq"][rows]
        self._base = np.full(len(self._keys), np.iinfo(np.int64).max)
        np.minimum.at(self._base, inverse, number)
        self._offset = np.cumsum(self._count) - self._count
        self._table = np.empty(len(rows), np.int64)
        self._table[self._offset[inverse] + number - self._base[inverse]] = rows

    def take(self, arrivals: Columns, rank: int) -> Columns:
        """Write the arrivals at one rank into the columns; returns those of later operations."""
        if not len(arrivals["seq"]) or not len(self._keys):
            return arrivals
        key = _flow(arrivals["source"], np.full(len(arrivals["seq"]), rank), arrivals["channel"])
        where = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        position = arrivals["seq"] - self._base[where]
        is_ours = self._keys[where] == key
        hit = is_ours & (position >= 0) & (position < self._count[where])
        rows = self._table[self._offset[where[hit]] + position[hit]]
        self._columns["signal_ns"][rows] = arrivals["end_ns"][hit]
        self._columns["arrival_ns"][rows] = arrivals["seen_ns"][hit]
        self._columns["is_held"][rows] = arrivals["x"][hit] & RX_HELD
        is_later = ~is_ours | (position >= self._count[where])
        return {name: values[is_later] for name, values in arrivals.items()}


def _flow(src: Column, dst: Column, channel: Column) -> NDArray[np.int64]:
    return src.astype(np.int64) << 24 | dst.astype(np.int64) << 8 | channel.astype(np.int64)


def _steps(marks: Marks, steps: tuple[int, int]) -> pl.DataFrame:
    rows = marks.step_rows[steps[0] : steps[1] + 1]
    count = len(rows) - 1
    columns: Columns = {
        "process": np.full(count, marks.process),
        "rank": np.full(count, marks.rank),
        "step": marks.step[rows[:-1]],
        "kind": marks.kind[rows[:-1]],
        "begin_ns": marks.time_ns[rows[:-1]],
        "end_ns": marks.time_ns[rows[1:]],
    }
    return _frame(schema.STEPS, columns)


def _waits(marks: Marks, waits: NDArray[np.void]) -> pl.DataFrame:
    end = waits["t_end"].astype(np.int64)
    signal = waits["t_sig"].astype(np.int64)
    columns: Columns = {
        "process": np.full(len(waits), marks.process),
        "rank": np.full(len(waits), marks.rank),
        "phase": waits["x"],
        "kind": waits["kind"] & 0xFF,
        "begin_ns": marks.clock.to_ns(end - waits["dur"]),
        "end_ns": marks.clock.to_ns(end),
        "source": waits["src"],
        "signal_ns": np.where(signal > 0, marks.clock.to_ns(signal), NO_TIME),
    }
    columns |= {name: waits[name] for name in ("step", "layer", "channel", "seq", "polls")}
    return _frame(schema.WAITS, columns)


def _computes(marks: Marks, own: Columns) -> pl.DataFrame:
    columns: Columns = {
        "process": np.full(len(own["end_ns"]), marks.process),
        "rank": np.full(len(own["end_ns"]), marks.rank),
        "kind": own["head"] >> np.uint64(48),
        "begin_ns": own["begin_ns"],
        "end_ns": own["end_ns"],
    }
    return _frame(schema.COMPUTES, columns)


def _frame(wanted: Mapping[str, pl.DataType], columns: Columns) -> pl.DataFrame:
    """Columns as a table; NO_TIME and NONE mean null, enums are given by number."""
    made: dict[str, Column | pl.Series] = {}
    null = {}
    for name, dtype in wanted.items():
        values = columns[name]
        if isinstance(dtype, pl.Enum):
            last = len(dtype.categories) - 1
            made[name] = named(tuple(dtype.categories), dtype, np.minimum(values, last))
            null[name] = values > last
            continue
        if values.dtype.kind == "i":
            null[name] = values == (NO_TIME if name.endswith("_ns") else NONE)
        if dtype == pl.Boolean():
            made[name] = values.astype(np.bool_)
        elif values.dtype.kind == "i" and dtype.is_unsigned_integer():
            made[name] = np.maximum(values, 0)
        else:
            made[name] = values
    return frame(wanted, made, null=null) if len(next(iter(columns.values()))) else empty(wanted)
