"""One pass over one raw file: its control records, counts of the others, and how far each part reaches in time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from efaprof.native import glance_at
from efaprof.trace import layout
from efaprof.trace.decode import UNKNOWN_KIND, OpFields, records, shapes_of
from efaprof.trace.layout import Shape, name_id
from efaprof.trace.rawfile import MAX_TICKS, chunk_of, is_sound, read_slots, slot_buffer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from efaprof.native import Glance
    from efaprof.trace.rawfile import Chunk, RawFile

CONTROL = (Shape.NAME, Shape.THREAD, Shape.OBJECT, Shape.BIND, Shape.CLOCK, Shape.NOTE, Shape.MARK)
_KEPT = [*CONTROL, Shape.OP]


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of one ring that is read at once."""

    begin: int  # slots
    end: int
    last_ticks: int  # no record up to here is later
    first_call_ticks: int  # no libfabric call in here began earlier
    is_whole: bool  # every slot is of a sound record, but for the last one's that go on in the next part


@dataclass(slots=True)
class Walked:
    """What is in one raw file."""

    parts: list[Part] = field(default_factory=list)
    control: dict[Shape, list[NDArray[np.void]]] = field(default_factory=dict)
    thread_slots: list[int] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    shapes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(256, np.int64))
    kinds: NDArray[np.int64] = field(default_factory=lambda: np.zeros(UNKNOWN_KIND + 1, np.int64))
    flags: int = 0  # of all calls together
    bad_slots: int = 0
    first_ticks: int = MAX_TICKS
    last_ticks: int = -1

    def of(self, shape: Shape) -> NDArray[np.void]:
        """Control records of one shape."""
        found = self.control.get(shape)
        return np.concatenate(found) if found else np.empty(0, layout.RECORDS[shape])


def walk(raw: RawFile, part_slots: int) -> Walked:
    """All of a file, in parts of at most `part_slots` slots."""
    found = Walked()
    begin, is_plain = raw.first, False
    buffer = slot_buffer(min(part_slots, raw.slots - begin))
    while begin < raw.slots:
        end = min(begin + part_slots, raw.slots)
        slots = read_slots(raw, begin, end, buffer)
        if is_plain and _is_plain((glance := glance_at(slots)).shapes) and is_sound(raw, begin, end, glance):
            _take_plain(found, glance, begin, end)
            begin += glance.next
            continue
        chunk = chunk_of(raw, begin, end, slots)
        _take(found, chunk, begin, end)
        if chunk.next <= begin:
            break
        # What follows is mostly like what was there.
        begin, is_plain = chunk.next, _is_plain(chunk.shapes)
    return found


def _is_plain(shapes: NDArray[np.int64]) -> bool:
    """Nothing has to be kept of such records."""
    return not shapes[_KEPT].any()


def _take_plain(found: Walked, glance: Glance, begin: int, end: int) -> None:
    found.shapes += glance.shapes
    found.first_ticks = min(found.first_ticks, glance.first)
    found.last_ticks = max(found.last_ticks, glance.last)
    found.parts.append(Part(begin, end, found.last_ticks, MAX_TICKS, is_whole=True))


def _take(found: Walked, chunk: Chunk, begin: int, end: int) -> None:
    found.shapes += chunk.shapes
    found.bad_slots += chunk.bad_slots
    first_call = _take_calls(found, chunk) if chunk.shapes[Shape.OP] else MAX_TICKS
    if len(chunk.t_end):
        found.first_ticks = min(found.first_ticks, int(chunk.t_end.min()), max(first_call, 0))
        found.last_ticks = max(found.last_ticks, int(chunk.t_end.max()))
    found.parts.append(Part(begin, end, found.last_ticks, first_call, chunk.bad_slots == 0))
    for shape in CONTROL:
        if chunk.shapes[shape]:
            which = shapes_of(chunk) == shape
            found.control.setdefault(shape, []).append(records(chunk, which, layout.RECORDS[shape]))
            if shape == Shape.THREAD:
                found.thread_slots += (chunk.base + chunk.starts[which]).tolist()
            elif shape == Shape.NAME:
                found.bad_slots += _take_names(found.names, chunk, which)


def _take_calls(found: Walked, chunk: Chunk) -> int:
    """Count libfabric calls; returns when the earliest of them began, in ticks."""
    ops = OpFields(chunk)
    found.kinds += np.bincount(ops.kind, minlength=UNKNOWN_KIND + 1)
    found.bad_slots += ops.damaged_slots
    found.flags |= int(np.bitwise_or.reduce(ops.flags()))
    return int(ops.begin.min()) if len(ops.t_end) else MAX_TICKS


def _take_names(names: dict[int, str], chunk: Chunk, which: NDArray[np.bool_]) -> int:
    """Names not seen before; the slots of those whose text is not what their id says."""
    bad = 0
    heads = records(chunk, which, layout.NAME)
    _, first = np.unique(heads["id"], return_index=True)
    for row in first:
        key, length = int(heads["id"][row]), int(heads["x"][row])
        if key in names:
            continue
        start = int(chunk.starts[which][row]) + 1
        slots = -(-length // layout.SLOT_BYTES)
        text = chunk.slots[start : start + slots].tobytes()[:length]
        if name_id(text) == key:
            names[key] = text.decode("utf-8", "replace")
        else:
            bad += 1 + slots
    return bad
