"""One raw file: its header, and its records in chunks of bounded size. Damage is counted, never fatal past the header.

A raw file is read with pread, not mapped: a file that shrinks under a mapping kills the reader with SIGBUS, and mapped
pages would count as this process's memory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from efaprof.errors import TraceError
from efaprof.native import record_heads
from efaprof.trace import layout
from efaprof.trace.layout import FORMAT_VERSION, HEADER_BYTES, OLDEST_READABLE, SLOT_BYTES, Clock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from efaprof.native import Glance

# A record that lies this far beyond both neighbours, which agree with each other, is damage: 2^36 ticks are half a
# minute at 2 GHz, and a thread's own records are never out of order by more than one call.
SPIKE_TICKS = 1 << 36
# The last record of a file has no successor to agree with; a longer silence than this before it is damage.
LAST_TICKS = 1 << 45
MAX_TICKS = 1 << 60


@dataclass(frozen=True, slots=True)
class Identity:
    """Which process of which boot of which host wrote a ring."""

    host: str
    boot: tuple[int, int]
    pid_ns: int
    pid: int
    process_start: int


@dataclass(frozen=True, slots=True)
class RawFile:
    """Header of a raw file, and how much of it there is."""

    path: Path
    identity: Identity
    clock: Clock
    tid: int
    comm: str
    producer: str
    start_ticks: int
    first: int  # slots before this one were given up by the recorder (--max-size)
    slots: int  # whole slots in the file
    cut_bytes: int  # promised by the header, or half a slot, and not there
    dropped: int
    nested: int
    names_cut: int
    failed: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive whole records of one file."""

    base: int  # slot in the file of the first slot here
    slots: NDArray[np.uint64]  # n x 4 words
    starts: NDArray[np.int64]  # slot of each record, from `base`; no PAD records
    kinds: NDArray[np.uint16]
    t_end: NDArray[np.int64]  # ticks
    next: int  # slot in the file where the next chunk begins
    bad_slots: int  # not records: from the first one that is none to the end of the file, and records with no sane time
    shapes: NDArray[np.int64]  # records of each of the 256


def _text(value: bytes) -> str:
    return value.split(b"\0", 1)[0].decode("utf-8", "replace")


def open_raw(path: Path) -> RawFile:
    """Checked header of a raw file; TraceError names the file and what is wrong with it."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(HEADER_BYTES)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}", hint="check its permissions") from error
    if len(head) < HEADER_BYTES:
        raise TraceError(f"{path} is cut inside its header ({len(head)} bytes)", hint="record again")
    header = np.frombuffer(head, layout.HEADER)[0]
    _check(path, header)
    first, promised = int(header["first"]), int(header["tail"])
    slots, rest = divmod(size - HEADER_BYTES, SLOT_BYTES)
    missing = max(promised - slots, 0) * SLOT_BYTES - rest if promised > slots else rest
    boot = header["boot_id"]
    return RawFile(
        path=path,
        identity=Identity(
            host=_text(header["host"]),
            boot=(int(boot[0]), int(boot[1])),
            pid_ns=int(header["pid_ns"]),
            pid=int(header["pid"]),
            process_start=int(header["process_start"]),
        ),
        clock=Clock(int(header["clock"])),
        tid=int(header["tid"]),
        comm=_text(header["comm"]),
        producer=_text(header["producer"]),
        start_ticks=int(header["start_ticks"]),
        first=min(first, slots),
        slots=slots,
        cut_bytes=missing,
        dropped=int(header["dropped"]),
        nested=int(header["nested"]),
        names_cut=int(header["names_cut"]),
        failed=int(header["failed"]),
    )


def _check(path: Path, header: np.void) -> None:
    again = "record again, or restore the file"
    if int(header["magic"]) != layout.MAGIC:
        raise TraceError(f"{path} is not a raw trace file (it begins with {int(header['magic']):#010x})", hint=again)
    version = int(header["version"])
    if not OLDEST_READABLE <= version <= FORMAT_VERSION:
        raise TraceError(
            f"{path} is trace format {version}, this efaprof reads {OLDEST_READABLE}-{FORMAT_VERSION}",
            hint="use the efaprof version named in manifest.json, or record again",
        )
    if int(header["slot_bytes"]) != SLOT_BYTES:
        raise TraceError(f"{path} has slots of {int(header['slot_bytes'])} bytes, not {SLOT_BYTES}", hint=again)
    if int(header["clock"]) not in set(Clock):
        raise TraceError(f"{path} names an unknown clock ({int(header['clock'])})", hint=again)


def slot_buffer(slots: int) -> NDArray[np.uint64]:
    """Room for so many slots."""
    return np.empty((max(slots, 0), SLOT_BYTES // 8), np.uint64)


def read_slots(raw: RawFile, begin: int, end: int, buffer: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
    """Slots [begin, end) of a file, as rows of four words; fewer when the file has shrunk since.

    They stand in `buffer`, where there is one and it is large enough: until it is used again.
    """
    if buffer is None or len(buffer) < end - begin:
        buffer = slot_buffer(end - begin)
    buffer = buffer[: end - begin]
    view = memoryview(buffer.view(np.uint8).reshape(-1))  # type: ignore[arg-type]  # numpy arrays are buffers at run time
    done = 0
    with raw.path.open("rb", buffering=0) as file:
        while done < len(view):
            got = os.preadv(file.fileno(), [view[done:]], HEADER_BYTES + begin * SLOT_BYTES + done)
            if got == 0:
                break
            done += got
    return buffer[: done // SLOT_BYTES]


def chunks(raw: RawFile, chunk_slots: int) -> Iterator[Chunk]:
    """All whole records before the damage, if any, in chunks of at most `chunk_slots` slots."""
    begin = raw.first
    while begin < raw.slots:
        chunk = read_chunk(raw, begin, min(begin + chunk_slots, raw.slots))
        yield chunk
        if chunk.next <= begin:
            return
        begin = chunk.next


def read_chunk(raw: RawFile, begin: int, end: int, buffer: NDArray[np.uint64] | None = None) -> Chunk:
    """The whole records that begin in slots [begin, end), as `read_slots` reads them."""
    return chunk_of(raw, begin, end, read_slots(raw, begin, end, buffer))


def chunk_of(raw: RawFile, begin: int, end: int, slots: NDArray[np.uint64]) -> Chunk:
    """The same, of slots that were read."""
    heads = record_heads(slots)
    glance = heads.glance
    stop = begin + glance.next
    is_last = end >= raw.slots or glance.bad_slots > 0
    bad = raw.slots - stop if is_last and stop < raw.slots else 0
    starts, kinds, t_end, shapes = heads.starts, heads.kinds, heads.t_end, glance.shapes
    if not _are_sane(glance, raw.start_ticks):
        sane = _sane(t_end, raw.start_ticks, is_last=is_last)
        lengths = np.diff(np.append(starts, glance.next))
        bad += int(lengths[~sane].sum())
        starts, kinds, t_end = starts[sane], kinds[sane], t_end[sane]
        shapes = np.bincount(kinds >> 8, minlength=256)
    return Chunk(begin, slots, starts, kinds, t_end, raw.slots if is_last else stop, bad, shapes)


def is_sound(raw: RawFile, begin: int, end: int, glance: Glance) -> bool:
    """Whether all slots [begin, end) are of records that can be true, at a glance."""
    is_whole = begin + glance.next == raw.slots or end < raw.slots
    return glance.bad_slots == 0 and is_whole and _are_sane(glance, raw.start_ticks)


def _are_sane(glance: Glance, start_ticks: int) -> bool:
    """Whether all times can be true, at a glance."""
    if glance.records < 2:
        return False
    lowest = min(start_ticks, MAX_TICKS) - SPIKE_TICKS
    return (
        glance.least_step >= -SPIKE_TICKS
        and glance.begin >= lowest
        and glance.end <= min(glance.before_end + LAST_TICKS, MAX_TICKS)
    )


def _sane(t_end: NDArray[np.int64], start_ticks: int, *, is_last: bool) -> NDArray[np.bool_]:
    """Which times can be true: a flipped bit must not throw one record, and with it the merge, years away."""
    lowest = min(start_ticks, MAX_TICKS) - SPIKE_TICKS
    sane: NDArray[np.bool_] = (t_end >= lowest) & (t_end < MAX_TICKS)
    if len(t_end) > 2:
        before, here, after = t_end[:-2], t_end[1:-1], t_end[2:]
        agree = (before <= after + SPIKE_TICKS) & sane[:-2] & sane[2:]
        is_spike = (here > np.maximum(before, after) + SPIKE_TICKS) | (here < np.minimum(before, after) - SPIKE_TICKS)
        sane[1:-1] &= ~(agree & is_spike)
    if len(t_end) > 1:
        if sane[1]:
            sane[0] &= t_end[0] <= t_end[1] + SPIKE_TICKS
        if is_last and sane[-2]:
            sane[-1] &= t_end[-2] - SPIKE_TICKS <= t_end[-1] <= t_end[-2] + LAST_TICKS
    return sane
