"""All rings of a run side by side, in windows of time and bounded memory.

A window takes from every ring its records up to a common time. Those times are chosen beforehand, from how far each
part of each ring reaches, so that a window holds about as many slots as all rings may keep in memory. A libfabric call
is recorded when it returns but belongs where it began, and what a ring still holds may have begun long ago:
`settled_ns` says up to where nothing is missing any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from efaprof.trace.decode import CqFields, OpFields
from efaprof.trace.layout import Shape
from efaprof.trace.rawfile import MAX_TICKS, read_chunk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from efaprof.trace.rawfile import Chunk
    from efaprof.trace.survey import Ring

NEVER = np.iinfo(np.int64).max


class Loaded:
    """One part of one ring in memory, its times in nanoseconds; libfabric's records are decoded when asked for."""

    def __init__(self, ring: Ring, part: int) -> None:
        own = ring.parts[part]
        self.ring = ring
        self.chunk: Chunk = read_chunk(ring.raw, own.begin, own.end)
        self.time_ns = time_ns = ring.clock.to_ns(self.chunk.t_end)
        # Records of one thread are in order but for a name written between a call and its record.
        self.order_ns: NDArray[np.int64] = np.maximum.accumulate(time_ns) if len(time_ns) else time_ns
        later = min((p.first_call_ticks for p in ring.parts[part + 1 :]), default=MAX_TICKS)
        self._later_ns = _ns(ring, later) if later < MAX_TICKS else NEVER

    @cached_property
    def ops(self) -> OpFields:
        """Libfabric calls of the part."""
        return OpFields(self.chunk)

    @cached_property
    def return_ns(self) -> NDArray[np.int64]:
        """When each of them returned."""
        return self.time_ns[self.ops.position]

    @cached_property
    def post_ns(self) -> NDArray[np.int64]:
        """When each of them began."""
        return np.minimum(self.ring.clock.to_ns(self.ops.begin), self.return_ns)

    @cached_property
    def _earliest_ns(self) -> NDArray[np.int64]:
        return np.minimum.accumulate(self.post_ns[::-1])[::-1]

    @cached_property
    def cq(self) -> CqFields:
        """Completion-queue reads of the part."""
        return CqFields(self.chunk)

    def earliest_call_ns(self, record: int) -> int:
        """Begin of the earliest call from this record on, to the end of the ring."""
        if not self.chunk.shapes[Shape.OP]:
            return self._later_ns
        op = int(np.searchsorted(self.ops.position, record))
        return min(int(self._earliest_ns[op]) if op < len(self._earliest_ns) else NEVER, self._later_ns)


def _ns(ring: Ring, ticks: int) -> int:
    return int(ring.clock.to_ns(np.array([ticks]))[0])


@dataclass(frozen=True, slots=True)
class Slice:
    """Records [low, high) of a loaded part."""

    loaded: Loaded
    low: int
    high: int

    @property
    def op_range(self) -> slice:
        """Rows of `loaded.ops` in it."""
        low, high = np.searchsorted(self.loaded.ops.position, (self.low, self.high))
        return slice(int(low), int(high))

    @property
    def cq_range(self) -> slice:
        """Rows of `loaded.cq` in it."""
        low, high = np.searchsorted(self.loaded.cq.position, (self.low, self.high))
        return slice(int(low), int(high))

    def threads(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Thread that wrote each of these records."""
        ring = self.loaded.ring
        if len(ring.thread_rows) == 1:
            return np.full(len(positions), ring.thread_rows[0])
        slots = self.loaded.chunk.base + self.loaded.chunk.starts[positions]
        found: NDArray[np.int64] = ring.thread_rows[np.searchsorted(ring.thread_slots, slots, side="right") - 1]
        return found


@dataclass(frozen=True, slots=True)
class Window:
    """The next records of all rings."""

    slices: tuple[Slice, ...]
    settled_ns: int  # every call that began, and every read that ended, before this time has been seen


class _Cursor:
    """How far one ring has been read."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._part = 0
        self._at = 0
        self._loaded = Loaded(ring, 0)

    @property
    def is_finished(self) -> bool:
        """Everything was taken."""
        return self._is_last and self._at == len(self._loaded.order_ns)

    @property
    def earliest_call_ns(self) -> int:
        """Begin of the earliest call not yet taken."""
        return self._loaded.earliest_call_ns(self._at)

    @property
    def _is_last(self) -> bool:
        return self._part == len(self._ring.parts) - 1

    def take(self, until_ns: int) -> Iterator[Slice]:
        """Records up to a time, one slice a part."""
        while True:
            stop = int(np.searchsorted(self._loaded.order_ns, until_ns, side="right"))
            if stop > self._at:
                yield Slice(self._loaded, self._at, stop)
                self._at = stop
            if self._at < len(self._loaded.order_ns) or self._is_last:
                return
            self._part += 1
            self._loaded, self._at = Loaded(self._ring, self._part), 0


def windows(rings: Sequence[Ring]) -> Iterator[Window]:
    """All records of all rings; the same windows each time."""
    rings = [ring for ring in rings if ring.parts]
    if not rings:
        return
    cursors = [_Cursor(ring) for ring in rings]
    for until_ns in _ends(rings):
        slices = tuple(taken for cursor in cursors for taken in cursor.take(until_ns))
        cursors = [cursor for cursor in cursors if not cursor.is_finished]
        settled = min((cursor.earliest_call_ns for cursor in cursors), default=NEVER)
        yield Window(slices, min(settled, until_ns if until_ns == NEVER else until_ns + 1))


def _ends(rings: Sequence[Ring]) -> list[int]:
    """Times at which windows end: each time that the rings have moved on by what they keep in memory."""
    reach = np.concatenate([ring.clock.to_ns(np.array([part.last_ticks for part in ring.parts])) for ring in rings])
    slots = np.concatenate([[part.end - part.begin for part in ring.parts] for ring in rings])
    most = sum(max(part.end - part.begin for part in ring.parts) for ring in rings)
    order = np.argsort(reach, kind="stable")
    window = np.cumsum(slots[order]) // most
    is_end = np.append(window[1:] != window[:-1], False)
    return [*np.unique(reach[order][is_end]).tolist(), NEVER]
