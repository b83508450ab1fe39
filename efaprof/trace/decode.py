"""Fields of records out of raw slots: one gather per field, no Python loop over records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from efaprof.trace.layout import OP_FUNCTIONS, SLOT_BYTES, OpClass, Shape
from efaprof.trace.schema import OP_KINDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from efaprof.trace.rawfile import Chunk

UNKNOWN_KIND = 255
EVERY = slice(None)
_LOW_WORD = np.uint64(0xFFFFFFFF)


def _kind_table() -> NDArray[np.uint8]:
    table = np.full(256, UNKNOWN_KIND, np.uint8)
    for cls, functions in OP_FUNCTIONS.items():
        for number, function in enumerate(functions):
            table[cls << 5 | number] = OP_KINDS.index(f"{cls.name.lower()}.{function}")
    return table


def _named(*suffixes: str) -> NDArray[np.bool_]:
    found = [kind.split(".")[1] in suffixes for kind in OP_KINDS]
    return np.array([*found, *[False] * (256 - len(found))], np.bool_)


def _of_class(*classes: OpClass) -> NDArray[np.bool_]:
    names = {cls.name.lower() for cls in classes}
    found = [kind.split(".")[0] in names for kind in OP_KINDS]
    return np.array([*found, *[False] * (256 - len(found))], np.bool_)


# Tables over an operation's kind (its index in OP_KINDS).
OP_KIND = _kind_table()  # over `what`
IS_RECV = _named("recv", "recvv", "recvmsg")
IS_INJECT = _named("inject", "injectdata")
IS_CANCEL = _of_class(OpClass.EP)
HAS_DATA = _named("senddata", "injectdata", "writedata")
TAKES_FLAGS = _named("recvmsg", "sendmsg", "readmsg", "writemsg", "readwritemsg", "compwritemsg")
HAS_REMOTE = _of_class(OpClass.RMA, OpClass.TAGGED, OpClass.ATOMIC)


def shapes_of(chunk: Chunk) -> NDArray[np.uint8]:
    """Shape of each record."""
    return (chunk.kinds >> 8).astype(np.uint8)


def records(chunk: Chunk, which: NDArray[np.bool_], dtype: np.dtype[np.void]) -> NDArray[np.void]:
    """The chosen records as a structured array; for kinds that are few."""
    starts = chunk.starts[which]
    rows = [chunk.slots[starts + slot] for slot in range(dtype.itemsize // SLOT_BYTES)]
    return np.concatenate(rows, axis=1).view(dtype).reshape(-1)


class OpFields:
    """Fields of the OP records of a chunk whose kind is known, gathered when asked for."""

    def __init__(self, chunk: Chunk) -> None:
        position = np.flatnonzero(shapes_of(chunk) == Shape.OP)
        kind = OP_KIND[chunk.kinds.take(position) & 0xFF]
        is_known = kind != UNKNOWN_KIND
        self.damaged_slots = 2 * int(len(kind) - np.count_nonzero(is_known))
        if self.damaged_slots:
            position, kind = position[is_known], kind[is_known]
        self.position: NDArray[np.int64] = position  # among the chunk's records
        self.kind: NDArray[np.uint8] = kind
        self.t_end: NDArray[np.int64] = chunk.t_end.take(position)
        self._words = chunk.slots.reshape(-1)
        self._at: NDArray[np.int64] = chunk.starts.take(position) * 4

    def word(self, number: int, rows: slice = EVERY) -> NDArray[np.uint64]:
        """The n-th 64-bit word of each record."""
        return self._words.take(self._at[rows] + number)

    @property
    def begin(self) -> NDArray[np.int64]:
        """Ticks when the first attempt entered."""
        return self.t_end - (self.word(1) & _LOW_WORD).view(np.int64)

    def ret(self, rows: slice) -> NDArray[np.int16]:
        """Return value."""
        return self._words.view(np.int16).take(self._at[rows] * 4 + 7)

    def flags(self, rows: slice = EVERY) -> NDArray[np.uint32]:
        """Flags that took effect."""
        return self._words.view(np.uint32).take(self._at[rows] * 2 + 14)


class CqFields:
    """Fields of the CQ records of a chunk, and of their entries."""

    def __init__(self, chunk: Chunk) -> None:
        self.position = np.flatnonzero(shapes_of(chunk) == Shape.CQ)
        words = chunk.slots.reshape(-1)
        at = chunk.starts[self.position] * 4
        head = words[at + 1]
        self.t_end: NDArray[np.int64] = chunk.t_end[self.position]
        self.begin: NDArray[np.int64] = self.t_end - (head & _LOW_WORD).view(np.int64)
        self.entries: NDArray[np.int64] = (head >> np.uint64(48)).view(np.int64)
        self.cq: NDArray[np.uint64] = words[at + 2]
        tail = words[at + 3]
        self.empties: NDArray[np.uint32] = tail.astype(np.uint32)
        self.nest: NDArray[np.uint8] = (tail >> np.uint64(40)).astype(np.uint8)
        self._words = words
        # Word offset of each entry: its record's start, one slot further for each entry before it.
        first = np.cumsum(self.entries) - self.entries
        self.read = np.repeat(np.arange(len(at)), self.entries)  # which of these reads an entry belongs to
        self._entry_at: NDArray[np.int64] = (at + 4 - 4 * first).take(self.read) + 4 * np.arange(len(self.read))

    def entry_word(self, number: int, rows: slice) -> NDArray[np.uint64]:
        """The n-th 64-bit word of these entries."""
        return self._words.take(self._entry_at[rows] + number)
