"""First pass over a run's raw files: who wrote them, what is in them, what was lost, and how ticks become nanoseconds.

Everything that later passes need beforehand is found here: control records (names, threads, objects, bindings, clock
samples), and for each part of each ring how far it reaches in time.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from efaprof.errors import TraceError
from efaprof.trace import clocks, fabric, layout, objects
from efaprof.trace.decode import UNKNOWN_KIND
from efaprof.trace.layout import Clock, Shape
from efaprof.trace.marks import find_marks
from efaprof.trace.rawfile import RawFile, open_raw
from efaprof.trace.schema import OP_KINDS
from efaprof.trace.walk import CONTROL, Part, Walked, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from efaprof.trace.clocks import ClockMap
    from efaprof.trace.marks import Marks
    from efaprof.trace.objects import Objects, Timed
    from efaprof.trace.rawfile import Identity

# Raw bytes that all rings together hold in memory at a time, and the least that one ring gets.
WINDOW_SLOTS = 1 << 18
LEAST_SLOTS = 1 << 11
LONGEST_RECORD = 1 + layout.CQ_MAX
MOST_WALKERS = 4  # files walked at a time
# Records of no table of events: those of dispatch paths, and those that the survey keeps whole.
_OF_PATHS = frozenset({Shape.STAGE, Shape.POST, Shape.RX, Shape.WAIT, Shape.MARK, *CONTROL})
# Names and objects out of the front of a file that was given up (--max-size) stand in a file beside it.
KEPT_SUFFIX = ".kept.efr"
DEVICE_CLOCK_ERROR = "gpu.clock_error_ns"  # NOTE: how far a GPU's times may be off from its host's


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
    shapes: frozenset[int]  # of its records


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
    marks: tuple[Marks, ...]  # where steps and their phases begin, in our own dispatch paths
    records: dict[Shape, int]
    op_kinds: dict[str, int]
    has_deferred: bool  # some call was made with FI_MORE
    losses: Losses
    unusable: tuple[Unusable, ...]
    clock_error_ns: int
    first_ns: int
    last_ns: int
    realtime_offset_ns: int | None  # CLOCK_REALTIME less CLOCK_MONOTONIC, of the first boot; None: not sampled
    realtime_of: dict[tuple[int, int], int]  # the same of each boot in which it was sampled

    @property
    def event_rings(self) -> tuple[Ring, ...]:
        """Rings that hold more than what our own dispatch paths say of their operations and steps."""
        return tuple(ring for ring in self.rings if ring.shapes - _OF_PATHS)

    @property
    def shortened(self) -> tuple[int, ...]:
        """Processes whose oldest records were given up: completions may end posts that are gone."""
        return tuple({ring.process for ring in self.rings if ring.raw.first})

    @property
    def operations(self) -> int:
        """OP records of known kinds."""
        return sum(self.op_kinds.values())


def is_kept(raw: RawFile) -> bool:
    """The file holds what was saved of another file's front."""
    return raw.path.name.endswith(KEPT_SUFFIX)


def survey(paths: Sequence[Path], *, part_slots: int | None = None) -> Survey:
    """Survey of raw files; TraceError when none can be used or ticks cannot become nanoseconds."""
    raws, unusable = _open_all(paths)
    if part_slots is None:
        part_slots = max(WINDOW_SLOTS // max(len(raws), 1), LEAST_SLOTS)
    size = max(part_slots, LONGEST_RECORD)
    walkers = min(MOST_WALKERS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(walkers) as pool:
        found = list(pool.map(lambda raw: walk(raw, size), raws))
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
    facts = _facts(rings, found, names)
    realtime_of = _realtime_of(raws, found)
    shapes = sum((one.shapes for one in found), np.zeros(256, np.int64))
    kinds = sum((one.kinds for one in found), np.zeros(UNKNOWN_KIND + 1, np.int64))
    return Survey(
        rings=rings,
        processes=processes,
        threads=threads,
        names=names,
        objects=objects.build(_timed(rings, found, Shape.OBJECT), _timed(rings, found, Shape.BIND), names),
        notes=_notes(found, names),
        facts=facts,
        marks=find_marks(rings, [one.of(Shape.MARK) for one in found], facts),
        records={shape: int(shapes[shape]) for shape in Shape if shapes[shape]},
        op_kinds={kind: int(kinds[row]) for row, kind in enumerate(OP_KINDS) if kinds[row]},
        has_deferred=any(one.flags & fabric.FI_MORE for one in found),
        losses=_losses(raws, found, unusable),
        unusable=unusable,
        clock_error_ns=max((error for _, error in spans), default=0) + _device_error_ns(facts),
        first_ns=min((int(ends[0]) for ends, _ in spans), default=0),
        last_ns=max((int(ends[1]) for ends, _ in spans), default=0),
        realtime_offset_ns=next(iter(realtime_of.values()), None),
        realtime_of=realtime_of,
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


def _clock_maps(raws: Sequence[RawFile], found: Sequence[Walked]) -> dict[Path, ClockMap]:
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


def _realtime_of(raws: Sequence[RawFile], found: Sequence[Walked]) -> dict[tuple[int, int], int]:
    offsets: dict[tuple[int, int], int] = {}
    for raw, one in zip(raws, found, strict=True):
        rows = one.of(Shape.CLOCK)
        if len(rows):
            offsets.setdefault(raw.identity.boot, int(np.median(rows["realtime_ns"] - rows["monotonic_ns"])))
    return offsets


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
    raws: Sequence[RawFile], found: Sequence[Walked], process_of: dict[Identity, int], maps: dict[Path, ClockMap]
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
            frozenset(np.flatnonzero(one.shapes).tolist()),
        )
        for raw, one, turns in zip(raws, found, written, strict=True)
    )  # fmt: skip
    return threads, rings


def _timed(rings: Sequence[Ring], found: Sequence[Walked], shape: Shape) -> Timed:
    bodies = [one.of(shape) for one in found]
    body = np.concatenate(bodies) if bodies else np.empty(0, layout.RECORDS[shape])
    process = np.repeat([ring.process for ring in rings], [len(part) for part in bodies]).astype(np.int64)
    times = [ring.clock.to_ns(part["t_end"].astype(np.int64)) for ring, part in zip(rings, bodies, strict=True)]
    time_ns = np.concatenate(times) if times else np.empty(0, np.int64)
    order = np.argsort(time_ns, kind="stable")
    return objects.Timed(process[order], time_ns[order], body[order])


def _notes(found: Sequence[Walked], names: dict[int, str]) -> tuple[tuple[str, int, bool], ...]:
    rows = [record for one in found for record in one.of(Shape.NOTE)]
    said = [
        (names.get(int(row["name"]), "(name lost)"), int(row["value"]), int(row["kind"]) & 0xFF == 2) for row in rows
    ]
    return tuple(dict.fromkeys(said))


def _facts(rings: Sequence[Ring], found: Sequence[Walked], names: dict[int, str]) -> dict[tuple[int, str], int]:
    return {
        (ring.process, names.get(int(row["name"]), "(name lost)")): int(row["value"])
        for ring, one in zip(rings, found, strict=True)
        for row in one.of(Shape.NOTE)
    }


def _device_error_ns(facts: dict[tuple[int, str], int]) -> int:
    """What a GPU's times may be off by beside that: the bound that its process found when it fitted the clocks."""
    return max((value for (_, name), value in facts.items() if name == DEVICE_CLOCK_ERROR), default=0)


def _losses(raws: Iterable[RawFile], found: Iterable[Walked], unusable: Sequence[Unusable]) -> Losses:
    raws = list(raws)
    return Losses(
        dropped=sum(raw.dropped + raw.nested + raw.failed for raw in raws),
        names_cut=sum(raw.names_cut for raw in raws),
        bad_slots=sum(one.bad_slots for one in found),
        cut_bytes=sum(raw.cut_bytes for raw in raws),
        discarded_slots=sum(-raw.slots if is_kept(raw) else raw.first for raw in raws),
        unusable_files=len(unusable),
    )
