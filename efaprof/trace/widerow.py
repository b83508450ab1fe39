"""From the stage records of whole steps to one wide row per operation, and its arrival at the receiver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.trace import schema
from efaprof.trace.layout import RX_HELD, X_FENCE, X_IMM, Command, Stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from efaprof.trace.dispatch import Marks

    Wire = dict[tuple[int, int], int]

SEQ_MASK = np.uint64((1 << 48) - 1)
NO_TIME = np.iinfo(np.int64).min
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


@dataclass(frozen=True, slots=True)
class DispatchChunk:
    """Whole steps of all ranks, as tables of efaprof/trace/schema.py."""

    steps: pl.DataFrame
    operations: pl.DataFrame
    waits: pl.DataFrame
    computes: pl.DataFrame


def u48(raw: NDArray[np.uint8]) -> NDArray[np.int64]:
    """48-bit little-endian numbers (n x 6 bytes) as int64."""
    wide = np.zeros((len(raw), 8), np.uint8)
    wide[:, :6] = raw
    return wide.view("<i8").reshape(-1)


def assemble(
    rings: Sequence[Marks],
    steps: tuple[int, int],
    stages: Mapping[int, NDArray[np.void]],
    waits: Mapping[int, NDArray[np.void]],
    rx: Mapping[int, NDArray[np.void]],
    wire: Wire,
) -> tuple[DispatchChunk, dict[int, NDArray[np.void]]]:
    """Tables of the steps [first, last), and per process the arrivals that belong to later ones.

    `wire` holds the next wire sequence of each (ring, peer and channel) and is moved on. Columns without a record are
    null; arrivals older than the chunk's operations are dropped: their operation was handed out without them.
    """
    columns = [_operations(marks, steps, stages[marks.ring], wire) for marks in rings]
    merged = {name: np.concatenate([one[name] for one in columns]) for name in columns[0]}
    rest = {}
    receiver = _Receiver(merged)
    for marks in rings:
        if marks.process not in rest:
            rest[marks.process] = receiver.take(rx[marks.process], marks)
    chunk = DispatchChunk(
        steps=pl.concat([_steps(marks, steps) for marks in rings]),
        operations=_frame(merged, schema.DISPATCH),
        waits=pl.concat([_waits(marks, waits[marks.process]) for marks in rings if len(waits[marks.process])])
        if any(map(len, waits.values()))
        else pl.DataFrame(schema=schema.WAITS),
        computes=pl.concat([_computes(marks, stages[marks.ring]) for marks in rings]),
    )
    return chunk, rest


def _operations(
    marks: Marks, steps: tuple[int, int], stages: NDArray[np.void], wire: Wire
) -> dict[str, NDArray[np.int64]]:
    """Columns of one ring's operations, in order of seq."""
    base, end = marks.seq_at(steps[0]), marks.seq_at(steps[1])
    count = end - base
    what = stages["kind"] & 0xFF
    seq = (stages["op"] & SEQ_MASK).astype(np.int64)
    keep = (what != Stage.COMPUTE) & (seq >= base)
    stages, what, index = stages[keep], what[keep], seq[keep] - base
    found = {name: np.full(count, NO_TIME, np.int64) for name in (*_END_COLUMN.values(), "enter_ns")}
    found |= {name: np.full(count, -1, np.int64) for name in ("x", "peer", "bytes", "eagain", "error", "outstanding")}
    for name in ("x", "peer", "bytes"):  # every stage carries them
        found[name][index] = stages[name]
    for stage, name in _END_COLUMN.items():
        rows = what == stage
        found[name][index[rows]] = marks.clock.to_ns(stages["t_end"][rows].astype(np.int64))
        if stage is Stage.KERNEL:
            begin = stages["t_end"][rows].astype(np.int64) - stages["dur"][rows]
            found["enter_ns"][index[rows]] = marks.clock.to_ns(begin)
        elif stage is Stage.LIBFABRIC:
            found["eagain"][index[rows]] = stages["status"][rows]
        elif stage is Stage.NIC:
            found["error"][index[rows]] = stages["status"][rows]
            found["outstanding"][index[rows]] = stages["depth"][rows]
    return found | _identity(marks, base, found, wire)


def _identity(
    marks: Marks, base: int, found: Mapping[str, NDArray[np.int64]], wire: Wire
) -> dict[str, NDArray[np.int64]]:
    """What an operation is: where in the job, what kind, and its number on the wire."""
    x = found["x"]
    count = len(x)
    is_known = x >= 0
    kind = np.where(is_known, x >> 12, 0)
    channel = np.where(is_known, x & 0xFF, -1)
    is_sequenced = is_known & (((x & X_IMM) != 0) | (kind == Command.SIGNAL) | (kind == Command.BARRIER))
    wire_seq = np.full(count, -1, np.int64)
    rows = np.flatnonzero(is_sequenced)
    wire_seq[rows] = _wire_sequences(marks.ring, found["peer"][rows] << 8 | channel[rows], wire)
    seq = base + np.arange(count)
    place = np.searchsorted(marks.first_seq, seq, side="right") - 1
    return {
        "process": np.full(count, marks.process),
        "rank": np.full(count, marks.rank),
        "ring": np.full(count, marks.ring),
        "seq": seq,
        "step": marks.step[place],
        "layer": marks.layer[place],
        "phase": marks.phase[place],
        "kind": kind,
        "channel": channel,
        "is_fenced": (is_known & ((x & X_FENCE) != 0)).astype(np.int64),
        "wire_seq": wire_seq,
        "arrival_ns": np.full(count, NO_TIME),
        "signal_ns": np.full(count, NO_TIME),
        "is_held": np.full(count, -1),
    }


def _wire_sequences(ring: int, key: NDArray[np.int64], wire: Wire) -> NDArray[np.int64]:
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

    def __init__(self, columns: dict[str, NDArray[np.int64]]) -> None:
        self._columns = columns
        self._rows = np.flatnonzero(columns["wire_seq"] >= 0)
        key = _flow(columns["rank"][self._rows], columns["peer"][self._rows], columns["channel"][self._rows])
        self._keys, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
        number = columns["wire_seq"][self._rows]
        self._base = np.full(len(self._keys), np.iinfo(np.int64).max)
        np.minimum.at(self._base, inverse, number)
        self._count = counts
        self._offset = np.cumsum(counts) - counts
        self._table = np.empty(len(self._rows), np.int64)
        self._table[self._offset[inverse] + number - self._base[inverse]] = self._rows

    def take(self, rx: NDArray[np.void], marks: Marks) -> NDArray[np.void]:
        """Write the arrivals of one process into the columns; returns those of later operations."""
        if not len(rx) or not len(self._keys):
            return rx
        key = _flow(rx["src"].astype(np.int64), np.full(len(rx), marks.rank), rx["channel"].astype(np.int64))
        where = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        position = u48(rx["seq"]) - self._base[where]
        is_ours = self._keys[where] == key
        hit = is_ours & (position >= 0) & (position < self._count[where])
        rows = self._table[self._offset[where[hit]] + position[hit]]
        end = rx["t_end"][hit].astype(np.int64)
        self._columns["signal_ns"][rows] = marks.clock.to_ns(end)
        self._columns["arrival_ns"][rows] = marks.clock.to_ns(end - rx["dur"][hit])
        self._columns["is_held"][rows] = rx["x"][hit] & RX_HELD
        later: NDArray[np.void] = rx[~is_ours | (position >= self._count[where])]
        return later


def _flow(src: NDArray[np.int64], dst: NDArray[np.int64], channel: NDArray[np.int64]) -> NDArray[np.int64]:
    return src << 24 | dst << 8 | channel


def _steps(marks: Marks, steps: tuple[int, int]) -> pl.DataFrame:
    rows = marks.step_rows[steps[0] : steps[1] + 1]
    count = len(rows) - 1
    columns = {
        "process": np.full(count, marks.process),
        "rank": np.full(count, marks.rank),
        "step": marks.step[rows[:-1]],
        "kind": marks.kind[rows[:-1]],
        "begin_ns": marks.time_ns[rows[:-1]],
        "end_ns": marks.time_ns[rows[1:]],
    }
    return _frame(columns, schema.STEPS)


def _waits(marks: Marks, waits: NDArray[np.void]) -> pl.DataFrame:
    end = waits["t_end"].astype(np.int64)
    signal = waits["t_sig"].astype(np.int64)
    columns = {
        "process": np.full(len(waits), marks.process),
        "rank": np.full(len(waits), marks.rank),
        "step": waits["step"].astype(np.int64),
        "layer": waits["layer"].astype(np.int64),
        "phase": waits["x"].astype(np.int64),
        "kind": (waits["kind"] & 0xFF).astype(np.int64),
        "begin_ns": marks.clock.to_ns(end - waits["dur"]),
        "end_ns": marks.clock.to_ns(end),
        "source": waits["src"].astype(np.int64),
        "channel": waits["channel"].astype(np.int64),
        "seq": waits["seq"].astype(np.int64),
        "signal_ns": np.where(signal > 0, marks.clock.to_ns(signal), NO_TIME),
        "polls": waits["polls"].astype(np.int64),
    }
    return _frame(columns, schema.WAITS)


def _computes(marks: Marks, stages: NDArray[np.void]) -> pl.DataFrame:
    mine = stages[(stages["kind"] & 0xFF) == Stage.COMPUTE]
    end = mine["t_end"].astype(np.int64)
    columns = {
        "process": np.full(len(mine), marks.process),
        "rank": np.full(len(mine), marks.rank),
        "kind": mine["x"].astype(np.int64),
        "begin_ns": marks.clock.to_ns(end - mine["dur"]),
        "end_ns": marks.clock.to_ns(end),
    }
    return _frame(columns, schema.COMPUTES)


def _frame(columns: Mapping[str, NDArray[np.int64]], wanted: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Columns as a table; NO_TIME and -1 mean null, enums are given by number."""
    out = []
    for name, dtype in wanted.items():
        values = pl.Series(name, columns[name])
        missing = NO_TIME if name.endswith("_ns") else -1
        nulled = pl.when(pl.col(name) == missing).then(None).otherwise(pl.col(name))
        if isinstance(dtype, pl.Enum):
            nulled = pl.col(name).replace_strict(
                list(range(len(dtype.categories))), dtype.categories, default=None, return_dtype=dtype
            )
        elif dtype == pl.Boolean():
            nulled = nulled == 1
        out.append((values, nulled.cast(dtype).alias(name)))
    return pl.DataFrame([series for series, _ in out]).select([expression for _, expression in out])
