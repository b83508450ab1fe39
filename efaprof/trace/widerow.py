"""From the stages of whole steps to one wide row per operation, and its arrival at the receiver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from efaprof.native_wide import NO_TIME, NONE, TIMES, describe
from efaprof.trace import schema
from efaprof.trace.frames import empty, frame, named

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from efaprof.native_wide import Flows
    from efaprof.trace.marks import Marks

    Column = NDArray[Any]
    Columns = dict[str, Column]

_KINDS, _PHASES = len(schema.CommandKind.categories), len(schema.Phase.categories)


class Rows:
    """Rows given as a table or as columns of a schema; the table is made when it is first asked for."""

    __slots__ = ("_columns", "_frame", "_wanted")

    def __init__(self, wanted: Mapping[str, pl.DataType], values: pl.DataFrame | Columns) -> None:
        """In columns NO_TIME and NONE mean null, and enums are given by number."""
        self._wanted = wanted
        self._frame = values if isinstance(values, pl.DataFrame) else None
        self._columns: Columns = {} if isinstance(values, pl.DataFrame) else values

    def __len__(self) -> int:
        return len(self._frame) if self._frame is not None else len(next(iter(self._columns.values())))

    @property
    def frame(self) -> pl.DataFrame:
        """The table."""
        if self._frame is None:
            self._frame = _frame(self._wanted, self._columns)
        return self._frame

    def numbers(self, name: str) -> NDArray[np.int64]:
        """One column as whole numbers, words as theirs; null is NO_TIME."""
        if not self._columns:
            values = self.frame[name]
            values = (values.to_physical() if isinstance(values.dtype, pl.Enum) else values).cast(pl.Int64)
            return (values.fill_null(NO_TIME) if values.null_count() else values).to_numpy()
        own, dtype = self._columns[name], self._wanted[name]
        numbers: NDArray[np.int64] = own.astype(np.int64, copy=False)
        if isinstance(dtype, pl.Enum):
            return np.where((numbers >= 0) & (numbers < len(dtype.categories)), numbers, NO_TIME)
        if own.dtype.kind == "i" and not name.endswith("_ns"):
            return np.where(numbers == NONE, NO_TIME, numbers)
        return numbers

    def at(self, rows: NDArray[np.intp]) -> Rows:
        """Some of the rows."""
        if not self._columns:
            return Rows(self._wanted, self.frame[rows])
        return Rows(self._wanted, {name: values[rows] for name, values in self._columns.items()})


class DispatchChunk:
    """Whole steps of all ranks, as tables of efaprof/trace/schema.py and as what these are made from.

    Operations are there twice, each made from the other when it is first asked for: as a table, and as numpy columns,
    in which NO_TIME and NONE stand for null and enums are numbers.
    """

    __slots__ = ("_columns", "_operations", "compute_rows", "step_rows", "wait_rows")

    def __init__(
        self,
        steps: pl.DataFrame | Rows,
        operations: pl.DataFrame | Columns,
        waits: pl.DataFrame | Rows,
        computes: pl.DataFrame | Rows,
    ) -> None:
        """Each may be given either way."""
        self.step_rows = _rows_of(schema.STEPS, steps)
        self.wait_rows = _rows_of(schema.WAITS, waits)
        self.compute_rows = _rows_of(schema.COMPUTES, computes)
        self._operations = operations if isinstance(operations, pl.DataFrame) else None
        self._columns = None if isinstance(operations, pl.DataFrame) else operations

    @property
    def steps(self) -> pl.DataFrame:
        """Steps as a table."""
        return self.step_rows.frame

    @property
    def waits(self) -> pl.DataFrame:
        """Gates as a table."""
        return self.wait_rows.frame

    @property
    def computes(self) -> pl.DataFrame:
        """Own computing as a table."""
        return self.compute_rows.frame

    @property
    def operations(self) -> pl.DataFrame:
        """Operations as a table."""
        if self._operations is None:
            self._operations = _frame(schema.DISPATCH, self.columns)
        return self._operations

    @property
    def columns(self) -> Columns:
        """Operations as columns."""
        if self._columns is None:
            self._columns = {one.name: _column(one) for one in self.operations}
        return self._columns

    @property
    def count(self) -> int:
        """Operations."""
        return len(self._operations) if self._operations is not None else len(self.columns["seq"])


def _rows_of(wanted: Mapping[str, pl.DataType], values: pl.DataFrame | Rows) -> Rows:
    return values if isinstance(values, Rows) else Rows(wanted, values)


def _column(values: pl.Series) -> Column:
    if values.dtype == pl.Boolean:
        return values.fill_null(value=False).to_numpy()
    if isinstance(values.dtype, pl.Enum):
        values = values.to_physical()
    return values.cast(pl.Int64).fill_null(NO_TIME if values.name.endswith("_ns") else NONE).to_numpy()


def assemble(
    rings: Sequence[Marks],
    steps: tuple[int, int],
    stages: Columns,
    computes: Mapping[int, Columns],
    waits: Mapping[int, NDArray[np.void]],
    arrivals: Mapping[int, Columns],
    flows: Flows,
) -> tuple[DispatchChunk, dict[int, Columns]]:
    """Tables of the steps [first, last), and per process the arrivals that belong to later ones.

    `stages` holds the rings' operations one ring after the other, `flows` the next wire sequence of each (rank, peer,
    channel). Arrivals older than the chunk's operations are dropped: their operation was handed out without them.
    """
    columns = _operations(rings, steps, stages)
    columns["wire_seq"] = flows.number(columns.pop("flow"))
    rest: dict[int, Columns] = {}
    for marks in rings:
        if marks.process not in rest:
            rest[marks.process] = _arrive(flows, arrivals[marks.process], marks.rank, columns)
    lanes = [marks for marks in rings if marks.is_first]
    chunk = DispatchChunk(
        steps=Rows(schema.STEPS, _joined([_steps(marks, steps) for marks in lanes])),
        operations=columns,
        waits=Rows(schema.WAITS, _joined([_waits(marks, waits[marks.process]) for marks in lanes])),
        computes=Rows(schema.COMPUTES, _joined([_computes(marks, computes[marks.ring]) for marks in lanes])),
    )
    return chunk, rest


def _operations(rings: Sequence[Marks], steps: tuple[int, int], stages: Columns) -> Columns:
    """All columns of operations, ring after ring, in order of seq."""
    lengths = [int(marks.step_seqs[steps[1]] - marks.step_seqs[steps[0]]) for marks in rings]
    places = [_places(marks, steps) for marks in rings]
    phase = np.concatenate([np.repeat(marks.phase[rows].astype(np.int64), many) for marks, rows, many in places])
    owner = {name: _filled([getattr(one, name) for one in rings], lengths) for name in ("process", "rank", "ring")}
    count = len(phase)
    return {
        **owner,
        "seq": np.concatenate([np.arange(*marks.step_seqs[list(steps)]) for marks in rings]),
        **{
            name: np.concatenate(
                [np.repeat(getattr(marks, name)[rows].astype(np.int64), many) for marks, rows, many in places]
            )
            for name in ("step", "layer")
        },
        "phase": np.where(phase < _PHASES, phase, NONE),
        **describe(stages["head"], stages["tail"], owner["rank"], _KINDS),
        **{name: stages[name] for name in (*TIMES, "eagain", "error", "outstanding")},
        "arrival_ns": np.full(count, NO_TIME),
        "signal_ns": np.full(count, NO_TIME),
        "is_held": np.full(count, NONE, np.int8),
    }


def _filled(values: Sequence[int], lengths: Sequence[int]) -> NDArray[np.int64]:
    """Each value as often as its length says."""
    return np.concatenate([np.full(length, value) for value, length in zip(values, lengths, strict=True)])


def _places(marks: Marks, steps: tuple[int, int]) -> tuple[Marks, slice, NDArray[np.int64]]:
    """The marks that begin steps and phases in here, and how many operations follow each of them."""
    first, last = int(marks.step_rows[steps[0]]), int(marks.step_rows[steps[1]])
    begins = np.maximum.accumulate(marks.first_seq[first : last + 1])
    return marks, slice(first, last), np.diff(np.minimum(begins, marks.first_seq[last]))


def _arrive(flows: Flows, arrivals: Columns, rank: int, columns: Columns) -> Columns:
    """Write the arrivals at one rank into the columns; returns those of later operations."""
    if not len(arrivals["seq"]):
        return arrivals
    is_later = flows.arrive(_flow(arrivals["source"], rank, arrivals["channel"]), arrivals, columns)
    return {name: values[is_later] for name, values in arrivals.items()}


def _flow(src: Column, dst: Column | int, channel: Column) -> NDArray[np.int64]:
    """One number for a flow, below 0 where one of them is not known."""
    wide = [np.asarray(one, np.int64) for one in (src, dst, channel)]
    flow: NDArray[np.int64] = wide[0] << 24 | wide[1] << 8 | wide[2]
    return flow


def _joined(parts: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([one[name] for one in parts]) for name in parts[0]}


def _steps(marks: Marks, steps: tuple[int, int]) -> Columns:
    rows = marks.step_rows[steps[0] : steps[1] + 1]
    count = len(rows) - 1
    return {
        "process": np.full(count, marks.process),
        "rank": np.full(count, marks.rank),
        "step": marks.step[rows[:-1]],
        "kind": marks.kind[rows[:-1]],
        "begin_ns": marks.step_ns[steps[0] : steps[1]],
        "end_ns": marks.step_ns[steps[0] + 1 : steps[1] + 1],
    }


def _waits(marks: Marks, waits: NDArray[np.void]) -> Columns:
    end = waits["t_end"].astype(np.int64)
    signal = waits["t_sig"].astype(np.int64)
    return {
        "process": np.full(len(waits), marks.process),
        "rank": np.full(len(waits), marks.rank),
        "phase": waits["x"],
        "kind": waits["kind"] & 0xFF,
        "begin_ns": marks.clock.to_ns(end - waits["dur"]),
        "end_ns": marks.clock.to_ns(end),
        "source": waits["src"],
        "signal_ns": np.where(signal > 0, marks.clock.to_ns(signal), NO_TIME),
        **{name: waits[name] for name in ("step", "layer", "channel", "seq", "polls")},
    }


def _computes(marks: Marks, own: Columns) -> Columns:
    return {
        "process": np.full(len(own["end_ns"]), marks.process),
        "rank": np.full(len(own["end_ns"]), marks.rank),
        "kind": own["head"] >> np.uint64(48),
        "begin_ns": own["begin_ns"],
        "end_ns": own["end_ns"],
    }


def _frame(wanted: Mapping[str, pl.DataType], columns: Columns) -> pl.DataFrame:
    """Columns as a table; NO_TIME and NONE mean null, enums are given by number."""
    made: dict[str, Column | pl.Series] = {}
    null = {}
    for name, dtype in wanted.items():
        values = columns[name]
        if isinstance(dtype, pl.Enum):
            last = len(dtype.categories) - 1
            is_word = (values >= 0) & (values <= last)
            made[name] = named(tuple(dtype.categories), dtype, np.where(is_word, values, 0))
            null[name] = ~is_word
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
