"""First pass over a run's raw files: who wrote them, what is in them, what was lost, and how ticks become nanoseconds.

Everything that later passes need beforehand is found here: control records (names, threads, objects, bindings, clock
samples), and for each part of each ring how far it reaches in time.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from efaprof.errors import TraceError
from efaprof.trace import clocks, fabric, layout, objects
from efaprof.trace.decode import UNKNOWN_KIND, OpFields, records, shapes_of
from efaprof.trace.layout import Clock, Shape, name_id
from efaprof.trace.rawfile import MAX_TICKS, RawFile, open_raw, read_chunk
from efaprof.trace.schema import OP_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from efaprof.trace.clocks import ClockMap
    from efaprof.trace.objects import Objects, Timed
    from efaprof.trace.rawfile import Chunk, Identity

# Raw bytes that all rings together hold in memory at a time, and the least that one ring gets.
WINDOW_SLOTS = 1 << 18
LEAST_SLOTS = 1 << 11
LONGEST_RECORD = 1 + layout.CQ_MAX
WALKERS = 2  # files walked at a time
# Names and objects out of the front of a file that was given up (--max-size) stand in a file beside it.
KEPT_SUFFIX = ".kept.efr"
_CONTROL = (Shape.NAME, Shape.THREAD, Shape.OBJECT, Shape.BIND, Shape.CLOCK, Shape.NOTE, Shape.MARK)


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of one ring that is read at once."""

    begin: int  # slots
    end: int
    last_ticks: int  # no record up to here is later
    first_call_ticks: int  # no libfabric call in here began earlier


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the run."""

    identity: Identity
    comm: str
    producer: str


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread of the run."""

    process: int
    tid: int
    comm: str


@dataclass(frozen=True, slots=True)
class Ring:
    """One raw file, surveyed."""

    raw: RawFile
    process: int
    clock: ClockMap
    parts: tuple[Part, ...]
    thread_slots: NDArray[np.int64]  # from this slot on the ring was written by …
    thread_rows: NDArray[np.int64]  # … this thread


@dataclass(frozen=True, slots=True)
class Unusable:
    """A raw file that could not be read at all."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Losses:
    """What was recorded in vain, or not at all."""

    dropped: int = 0  # records that producers could not write
    names_cut: int = 0
    bad_slots: int = 0  # slots that hold no sound record
    cut_bytes: int = 0  # ends of files that are missing
    discarded_slots: int = 0  # given up to stay under --max-size
    unusable_files: int = 0

    @property
    def is_lossless(self) -> bool:
        """Nothing is missing (names cut short are not data)."""
        return not (self.dropped or self.bad_slots or self.cut_bytes or self.discarded_slots or self.unusable_files)


@dataclass(frozen=True, slots=True)
class Survey:
    """What a run's raw files hold."""

    rings: tuple[Ring, ...]
    processes: tuple[Process, ...]
    threads: tuple[Thread, ...]
    names: dict[int, str]
    objects: Objects
    notes: tuple[tuple[str, int, bool], ...]  # text, value, says that a probe is degraded
    facts: dict[tuple[int, str], int]  # (process, text of a note) → its value
    marks: Timed  # where steps and their phases begin, in our own dispatch paths
    records: dict[Shape, int]
    op_kinds: dict[str, int]
    has_deferred: bool  # some call was made with FI_MORE
    losses: Losses
    unusable: tuple[Unusable, ...]
    clock_error_ns: int
    first_ns: int
    last_ns: int
    realtime_offset_ns: int | None  # CLOCK_REALTIME less CLOCK_MONOTONIC, of the first boot; None: not sampled

    @property
    def shortened(self) -> tuple[int, ...]:
        """Processes whose oldest records were given up: completions may end posts that are gone."""
        return tuple({ring.process for ring in self.rings if ring.raw.first})

    @property
    def operations(self) -> int:
        """OP records of known kinds."""
        return sum(self.op_kinds.values())


@dataclass(slots=True)
class _Found:
    """What the survey of one ring collects."""

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


def is_kept(raw: RawFile) -> bool:
    """The file holds what was saved of another file's front."""
    return raw.path.name.endswith(KEPT_SUFFIX)


def survey(paths: Sequence[Path], *, part_slots: int | None = None) -> Survey:
    """Survey of raw files; TraceError when none can be used or ticks cannot become nanoseconds."""
    raws, unusable = _open_all(paths)
    if part_slots is None:
        part_slots = max(WINDOW_SLOTS // max(len(raws), 1), LEAST_SLOTS)
    size = max(part_slots, LONGEST_RECORD)
    with ThreadPoolExecutor(WALKERS) as pool:
        found = list(pool.map(lambda raw: _walk(raw, size), raws))
    maps = _clock_maps(raws, found)
    names = {key: text for one in found for key, text in one.names.items()}
    processes, process_of = _processes(raws)
    threads, rings = _rings(raws, found, process_of, maps)
    spans = [
        (
            maps[raw.path].to_ns(np.array([one.first_ticks, one.last_ticks])),
            maps[raw.path].error_ns(one.first_ticks, one.last_ticks),
        )
        for raw, one in zip(raws, found, strict=True)
        if one.last_ticks >= 0 and not is_kept(raw)
    ]
    shapes = sum((one.shapes for one in found), np.zeros(256, np.int64))
    kinds = sum((one.kinds for one in found), np.zeros(UNKNOWN_KIND + 1, np.int64))
    return Survey(
        rings=rings,
        processes=processes,
        threads=threads,
        names=names,
        objects=objects.build(_timed(rings, found, Shape.OBJECT), _timed(rings, found, Shape.BIND), names),
        notes=_notes(found, names),
        facts=_facts(rings, found, names),
        marks=_timed(rings, found, Shape.MARK),
        records={shape: int(shapes[shape]) for shape in Shape if shapes[shape]},
        op_kinds={kind: int(kinds[row]) for row, kind in enumerate(OP_KINDS) if kinds[row]},
        has_deferred=any(one.flags & fabric.FI_MORE for one in found),
        losses=_losses(raws, found, unusable),
        unusable=unusable,
        clock_error_ns=max((error for _, error in spans), default=0),
        first_ns=min((int(ends[0]) for ends, _ in spans), default=0),
        last_ns=max((int(ends[1]) for ends, _ in spans), default=0),
        realtime_offset_ns=_realtime_offset(found),
    )


def _open_all(paths: Sequence[Path]) -> tuple[list[RawFile], tuple[Unusable, ...]]:
    raws, unusable, last = [], [], None
    for path in paths:
        try:
            raws.append(open_raw(path))
        except TraceError as error:
            unusable.append(Unusable(path, error.message))
            last = error
    if last is not None and not raws:
        raise last
    return raws, tuple(unusable)


def _walk(raw: RawFile, part_slots: int) -> _Found:
    found = _Found()
    begin = raw.first
    while begin < raw.slots:
        end = min(begin + part_slots, raw.slots)
        chunk = read_chunk(raw, begin, end)
        _take(found, chunk, begin, end)
        if chunk.next <= begin:
            break
        begin = chunk.next
    return found


def _take(found: _Found, chunk: Chunk, begin: int, end: int) -> None:
    shapes = shapes_of(chunk)
    counts = np.bincount(shapes, minlength=256)
    found.shapes += counts
    found.bad_slots += chunk.bad_slots
    ops = OpFields(chunk)
    found.kinds += np.bincount(ops.kind, minlength=UNKNOWN_KIND + 1)
    found.bad_slots += ops.damaged_slots
    found.flags |= int(np.bitwise_or.reduce(ops.flags()))
    first_call = int(ops.begin.min()) if len(ops.t_end) else MAX_TICKS
    if len(chunk.t_end):
        found.first_ticks = min(found.first_ticks, int(chunk.t_end.min()), max(first_call, 0))
        found.last_ticks = max(found.last_ticks, int(chunk.t_end.max()))
    found.parts.append(Part(begin, end, found.last_ticks, first_call))
    for shape in _CONTROL:
        if counts[shape]:
            which = shapes == shape
            found.control.setdefault(shape, []).append(records(chunk, which, layout.RECORDS[shape]))
            if shape == Shape.THREAD:
                found.thread_slots += (chunk.base + chunk.starts[which]).tolist()
            elif shape == Shape.NAME:
                found.bad_slots += _take_names(found.names, chunk, which)


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


def _clock_maps(raws: Sequence[RawFile], found: Sequence[_Found]) -> dict[Path, ClockMap]:
    """Each file's map, from the samples of its boot."""
    samples: dict[tuple[int, int], list[NDArray[np.void]]] = {}
    for raw, one in zip(raws, found, strict=True):
        samples.setdefault(raw.identity.boot, []).append(one.of(Shape.CLOCK))
    fitted: dict[tuple[int, int], ClockMap] = {}
    maps = {}
    for raw, one in zip(raws, found, strict=True):
        if raw.clock == Clock.MONOTONIC or one.last_ticks < 0:
            maps[raw.path] = clocks.IDENTITY
            continue
        boot = raw.identity.boot
        if boot not in fitted:
            rows = np.concatenate(samples[boot])
            fitted[boot] = clocks.fit(
                clocks.ClockSamples(
                    ticks=rows["t_end"].astype(np.int64),
                    bracket_ticks=rows["dur"].astype(np.int64),
                    monotonic_ns=rows["monotonic_ns"],
                    realtime_ns=rows["realtime_ns"],
                ),
                str(raw.path.parent),
            )
        maps[raw.path] = fitted[boot]
    return maps


def _realtime_offset(found: Sequence[_Found]) -> int | None:
    rows = next((one.of(Shape.CLOCK) for one in found if len(one.of(Shape.CLOCK))), None)
    return None if rows is None else int(np.median(rows["realtime_ns"] - rows["monotonic_ns"]))


def _processes(raws: Iterable[RawFile]) -> tuple[tuple[Process, ...], dict[Identity, int]]:
    by_identity: dict[Identity, list[RawFile]] = {}
    for raw in raws:
        by_identity.setdefault(raw.identity, []).append(raw)
    made = []
    for identity, files in by_identity.items():
        main = next((raw for raw in files if raw.tid == identity.pid), files[0])
        made.append(Process(identity, main.comm, ",".join(sorted({raw.producer for raw in files}))))
    return tuple(made), {identity: row for row, identity in enumerate(by_identity)}


def _rings(
    raws: Sequence[RawFile], found: Sequence[_Found], process_of: dict[Identity, int], maps: dict[Path, ClockMap]
) -> tuple[tuple[Thread, ...], tuple[Ring, ...]]:
    comms: dict[tuple[int, int], str] = {}
    written: list[list[tuple[int, int]]] = []  # per ring: slot, tid
    for raw, one in zip(raws, found, strict=True):
        process = process_of[raw.identity]
        comms.setdefault((process, raw.tid), raw.comm)
        turns = [(0, raw.tid)]
        for slot, record in zip(one.thread_slots, one.of(Shape.THREAD), strict=True):
            comms[process, int(record["tid"])] = bytes(record["comm"]).split(b"\0")[0].decode("utf-8", "replace")
            turns.append((slot, int(record["tid"])))
        written.append(turns)
    rows = {key: row for row, key in enumerate(comms)}
    threads = tuple(Thread(process, tid, comm) for (process, tid), comm in comms.items())
    rings = tuple(
        Ring(
            raw, process_of[raw.identity], maps[raw.path], tuple(one.parts),
            np.array([slot for slot, _ in turns]), np.array([rows[process_of[raw.identity], tid] for _, tid in turns]),
        )
        for raw, one, turns in zip(raws, found, written, strict=True)
    )  # fmt: skip
    return threads, rings


def _timed(rings: Sequence[Ring], found: Sequence[_Found], shape: Shape) -> Timed:
    bodies = [one.of(shape) for one in found]
    body = np.concatenate(bodies) if bodies else np.empty(0, layout.RECORDS[shape])
    process = np.repeat([ring.process for ring in rings], [len(part) for part in bodies]).astype(np.int64)
    times = [ring.clock.to_ns(part["t_end"].astype(np.int64)) for ring, part in zip(rings, bodies, strict=True)]
    time_ns = np.concatenate(times) if times else np.empty(0, np.int64)
    order = np.argsort(time_ns, kind="stable")
    return objects.Timed(process[order], time_ns[order], body[order])


def _notes(found: Sequence[_Found], names: dict[int, str]) -> tuple[tuple[str, int, bool], ...]:
    rows = [record for one in found for record in one.of(Shape.NOTE)]
    said = [
        (names.get(int(row["name"]), "(name lost)"), int(row["value"]), int(row["kind"]) & 0xFF == 2) for row in rows
    ]
    return tuple(dict.fromkeys(said))


def _facts(rings: Sequence[Ring], found: Sequence[_Found], names: dict[int, str]) -> dict[tuple[int, str], int]:
    return {
        (ring.process, names.get(int(row["name"]), "(name lost)")): int(row["value"])
        for ring, one in zip(rings, found, strict=True)
        for row in one.of(Shape.NOTE)
    }


def _losses(raws: Iterable[RawFile], found: Iterable[_Found], unusable: Sequence[Unusable]) -> Losses:
    raws = list(raws)
    return Losses(
        dropped=sum(raw.dropped + raw.nested + raw.failed for raw in raws),
        names_cut=sum(raw.names_cut for raw in raws),
        bad_slots=sum(one.bad_slots for one in found),
        cut_bytes=sum(raw.cut_bytes for raw in raws),
        discarded_slots=sum(-raw.slots if is_kept(raw) else raw.first for raw in raws),
        unusable_files=len(unusable),
    )
