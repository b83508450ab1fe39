"""Stage records into the columns of wide rows, and arrivals to their rows (native/include/efaprof/wide.h).

Every call releases the GIL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from efaprof import native
from efaprof.native_graph import address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Column = NDArray[Any]
    Times = NDArray[np.int64]

RINGS = 1 << 16
NO_TIME = np.iinfo(np.int64).min
NONE = -1
TIMES = ("enter_ns", "publish_ns", "seen_ns", "fenced_ns", "call_ns", "return_ns", "done_ns", "told_ns")
# As enum efaprof_wide_column has them: what a cell holds where nothing was recorded.
COLUMNS: dict[str, tuple[type[np.generic], int]] = {
    **dict.fromkeys(TIMES, (np.int64, NO_TIME)),
    "head": (np.uint64, 0), "tail": (np.uint64, 0),
    "eagain": (np.int16, NONE), "error": (np.int16, NONE), "outstanding": (np.int16, NONE),
}  # fmt: skip
_NONE_MISSING = (1 << 64) - 1
ARRIVALS = ("source", "channel", "seq", "seen_ns", "end_ns", "x")


def keep_memory() -> None:
    """Let this process keep the memory that it frees: analyses take and free large arrays for every chunk."""
    native.library().efaprof_keep_memory()


def give_back_memory() -> None:
    """Return to the system what was kept so far."""
    native.library().efaprof_give_back_memory()


class Clock:
    """A piecewise line from ticks to nanoseconds in native hands; no segments: ticks are nanoseconds."""

    def __init__(self, ticks: Times, base_ns: Times, slope: NDArray[np.float64]) -> None:
        """Take the arrays, contiguous ones; they must not change from here on."""
        self._arrays = ticks, base_ns, slope
        self.native = native.ffi().new("struct efaprof_clock_map *")
        self.native.ticks, self.native.base_ns = address(ticks, "int64_t *"), address(base_ns, "int64_t *")
        self.native.slope, self.native.n = address(slope, "double *"), len(ticks)


@dataclass(frozen=True, slots=True)
class Taken:
    """What stands beside stages: arrivals, and the slots of gates and of own computing."""

    arrivals: dict[str, Times]
    waits: NDArray[np.int64]
    computes: NDArray[np.int64]


class _Scratch:
    """Room for what stands beside the stages among some records, used again and again."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._columns = {name: np.empty(room, np.int64) for name in ARRIVALS}
        self._slots = np.empty((2, room), np.uint32)
        self.arrivals = _arrivals(self._columns)
        self.beside = native.ffi().new("struct efaprof_beside *")
        self.beside.waits, self.beside.computes = (address(row, "uint32_t *") for row in self._slots)

    def taken(self) -> Taken:
        """A copy of what is in there."""
        waits, computes = self._slots
        return Taken(
            {name: values[: self.arrivals.n].copy() for name, values in self._columns.items()},
            waits[: self.beside.waits_n].astype(np.int64),
            computes[: self.beside.computes_n].astype(np.int64),
        )


class WideRows:
    """Columns of chunks that are being filled; rings and chunks are numbered from 0."""

    def __init__(self, rings: Sequence[int], cuts: Times) -> None:
        """`cuts`, rings x (chunks + 1): sequences at which the chunks of each ring begin, and the end."""
        self._cuts = np.ascontiguousarray(cuts)
        lengths = np.diff(self._cuts, axis=1)
        self._first_row = (np.cumsum(lengths, axis=0) - lengths).astype(np.uint64)
        self._rows = lengths.sum(axis=0)
        self._ring_row = np.full(RINGS, NONE, np.int32)
        self._ring_row[list(rings)] = np.arange(len(rings))
        self._addresses = np.zeros((len(self._rows), len(COLUMNS)), np.uint64)
        self._columns: dict[int, dict[str, Column]] = {}
        self._scratch: _Scratch | None = None
        self.completed = np.zeros(len(self._rows), np.uint64)
        self._native = native.ffi().new("struct efaprof_wide *")
        self._native.chunks = len(self._rows)
        for name, values, pointer in (
            ("ring_row", self._ring_row, "int32_t *"), ("cuts", self._cuts, "int64_t *"),
            ("first_row", self._first_row, "uint64_t *"), ("columns", self._addresses, "void **"),
            ("completed", self.completed, "uint64_t *"),
        ):  # fmt: skip
            setattr(self._native, name, address(values, pointer))

    def rows(self, chunk: int) -> int:
        """Operations of a chunk."""
        return int(self._rows[chunk])

    def take(self, clock: Clock, slots: Column, starts: Times | None = None) -> Taken:
        """Put the stages among records where they belong; without `starts` records follow each other from slot 0."""
        scratch = self._scratch_for(len(slots) if starts is None else len(starts))
        scratch.arrivals.n = scratch.beside.waits_n = scratch.beside.computes_n = 0
        missing = native.ffi().new("uint64_t *", _NONE_MISSING)
        low, high = 0, len(slots) if starts is None else len(starts)
        words, places = address(slots, "void *"), address(starts, "int64_t *")
        while True:
            low = native.library().efaprof_wide_take(
                self._native, clock.native, words, places, low, high, scratch.arrivals, scratch.beside, missing
            )
            if missing[0] == _NONE_MISSING:
                return scratch.taken()
            self._make(int(missing[0]))

    def _scratch_for(self, records: int) -> _Scratch:
        if self._scratch is None or self._scratch.room < records:
            self._scratch = _Scratch(records)
        return self._scratch

    def hand_out(self, chunk: int) -> dict[str, Column]:
        """The columns of a chunk; what comes later for it, or for one before it, is left out."""
        self._make(chunk)
        self._native.done = chunk + 1
        self._addresses[chunk] = 0
        return self._columns.pop(chunk)

    def _make(self, chunk: int) -> None:
        if chunk in self._columns:
            return
        made = {name: np.full(self.rows(chunk), empty, dtype) for name, (dtype, empty) in COLUMNS.items()}
        self._columns[chunk] = made
        self._addresses[chunk] = [values.ctypes.data for values in made.values()]


_DESCRIBED: dict[str, tuple[type[np.generic], str]] = {
    "kind": (np.int32, "int32_t *"), "peer": (np.int32, "int32_t *"), "channel": (np.int32, "int32_t *"),
    "bytes": (np.int64, "int64_t *"), "flow": (np.int64, "int64_t *"),
    "is_fenced": (np.bool_, "uint8_t *"), "is_posted": (np.bool_, "uint8_t *"),
}  # fmt: skip


def describe(head: Column, tail: Column, rank: Times, kinds: int) -> dict[str, Column]:
    """What head and tail say of each operation of these ranks: NONE where there are none, or no such kind.

    `flow`: a number for what it is numbered in, negative for none.
    """
    found: dict[str, Column] = {name: np.empty(len(head), dtype) for name, (dtype, _) in _DESCRIBED.items()}
    made = native.ffi().new("struct efaprof_described *")
    for name, (_, pointer) in _DESCRIBED.items():
        setattr(made, name, address(found[name], pointer))
    native.library().efaprof_wide_describe(
        address(head, "uint64_t *"), address(tail, "uint64_t *"), address(rank, "int64_t *"), len(head), kinds, made
    )
    return found


class Flows:
    """Numbers operations of each flow in their order, and finds the operation that an arrival belongs to."""

    def __init__(self) -> None:
        made = native.library().efaprof_flows_open()
        if made == native.ffi().NULL:
            raise MemoryError
        self._native = native.ffi().gc(made, native.library().efaprof_flows_close)

    def number(self, key: Times) -> Times:
        """The next number of each row's flow; NONE where the key is negative."""
        number = np.empty(len(key), np.int64)
        failed = native.library().efaprof_flows_number(
            self._native, address(key, "int64_t *"), len(key), address(number, "int64_t *")
        )
        if failed:
            raise MemoryError
        return number

    def arrive(self, key: Times, arrivals: Mapping[str, Times], columns: Mapping[str, Column]) -> NDArray[np.bool_]:
        """Store arrivals in arrival_ns, signal_ns and is_held of the rows numbered last; which are of later ones."""
        is_later = np.empty(len(key), np.uint8)
        native.library().efaprof_flows_arrive(
            self._native, address(key, "int64_t *"), _arrivals(arrivals), address(columns["arrival_ns"], "int64_t *"),
            address(columns["signal_ns"], "int64_t *"), address(columns["is_held"], "int8_t *"),
            address(is_later, "uint8_t *"),
        )  # fmt: skip
        return is_later.view(np.bool_)


def _arrivals(columns: Mapping[str, Times]) -> Any:
    made = native.ffi().new("struct efaprof_arrivals *")
    for name in ARRIVALS:
        setattr(made, name, address(columns[name], "int64_t *"))
    made.n = len(columns[ARRIVALS[0]])
    return made
