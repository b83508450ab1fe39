"""Synthetic runs whose contents are known in closed form: what tests, benchmarks and demonstrations read.

Times are given in nanoseconds of CLOCK_MONOTONIC and stored in ticks of the run's clock. A synthetic run says so in its
manifest (`emulated`), so that no report can pass for a measurement.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from efaprof import __version__
from efaprof.trace import layout
from efaprof.trace.layout import CLOSED, AnnotatedStep, Clock, ObjectKind, OpClass, Payload, Shape, Source, Span
from efaprof.trace.manifest import Manifest
from efaprof.trace.rundir import RAW_DIR, RAW_SUFFIX, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

BOOT = (0x1122334455667788, 0x99AABBCCDDEEFF00)
CQ_READ, CQ_READERR = 1, 3


@dataclass(frozen=True, slots=True)
class TickClock:
    """Ticks as a line over CLOCK_MONOTONIC: ticks = offset + ns * num / den."""

    kind: Clock = Clock.MONOTONIC
    num: int = 1
    den: int = 1
    offset: int = 0

    def ticks(self, time_ns: int) -> int:
        """Ticks at a time, rounded down."""
        return self.offset + time_ns * self.num // self.den

    def ticks_of(self, times_ns: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Ticks at many times; whole seconds are split off so that nothing overflows."""
        whole, part = np.divmod(times_ns, 1_000_000_000)
        per_second, rest = divmod(1_000_000_000 * self.num, self.den)
        if rest:
            return np.array([self.ticks(int(t)) for t in times_ns], np.uint64)
        ticks: NDArray[np.int64] = self.offset + whole * per_second + part * self.num // self.den
        return ticks.astype(np.uint64)


TSC_2100 = TickClock(Clock.TSC, 21, 10, 5_000_000_000_000)


def kind_of(shape: Shape, what: int) -> int:
    """The `kind` field of a record."""
    return (int(shape) << 8) | what


def op_what(name: str) -> int:
    """`what` of an OP record, from its name in the tables: "rma.write"."""
    cls, function = name.split(".")
    found = OpClass[cls.upper()]
    return (int(found) << 5) | layout.OP_FUNCTIONS[found].index(function)


@dataclass(frozen=True, slots=True)
class Cqe:
    """One completion-queue entry to write."""

    ctx: int = 0
    flags: int = 0
    len: int = 0
    data: int = 0
    src: int = (1 << 64) - 1
    err: int = 0


@dataclass(slots=True)
class SynthRing:
    """One ring of a synthetic run; records are appended in the order of the calls."""

    path: Path
    clock: TickClock
    header: NDArray[np.void]
    slots: int = 0
    _pending: list[bytes] = field(default_factory=list)
    _names: set[int] = field(default_factory=set)

    def put(
        self, dtype: np.dtype[np.void], kind: int, end_ns: int, *, dur_ns: int = 0, x: int = 0, **fields: Any
    ) -> None:
        """Append one record of a fixed layout."""
        record = np.zeros((), dtype)
        end = self.clock.ticks(end_ns)
        record["t_end"] = end
        record["dur"] = min(end - self.clock.ticks(end_ns - dur_ns), 0xFFFFFFFF)
        record["kind"] = kind
        record["x"] = x & 0xFFFF
        for name, value in fields.items():
            record[name] = value
        self.raw(record.tobytes())

    def raw(self, slots: bytes) -> None:
        """Append slots as they are."""
        if len(slots) % layout.SLOT_BYTES:
            msg = f"{len(slots)} bytes are not whole slots"
            raise ValueError(msg)
        self._pending.append(slots)
        self.slots += len(slots) // layout.SLOT_BYTES

    def name(self, text: str, at_ns: int = 0) -> int:
        """Id of a name; its NAME record is written at first sight."""
        kept = text.encode()[: layout.NAME_MAX]
        found = layout.name_id(kept)
        if kept and found not in self._names:
            self._names.add(found)
            self.put(layout.NAME, kind_of(Shape.NAME, 0), at_ns, x=len(kept), id=found)
            padded = kept + bytes(-len(kept) % layout.SLOT_BYTES)
            self.raw(padded)
        return found if kept else 0

    def thread(self, tid: int, comm: str, at_ns: int = 0) -> None:
        """From here on the ring is written by that thread."""
        head = self.header
        self.put(
            layout.THREAD, kind_of(Shape.THREAD, 0), at_ns,
            pid=head["pid"], tid=tid, process_start=head["process_start"], comm=comm.encode(),
        )  # fmt: skip

    def open(
        self,
        kind: ObjectKind,
        fid: int,
        at_ns: int = 0,
        *,
        provider: str = "",
        detail: str = "",
        nest: int = 0,
        **fields: Any,
    ) -> None:
        """A libfabric object opened."""
        name, own = self.name(provider, at_ns), self.name(detail, at_ns)
        self.put(layout.OBJECT, kind_of(Shape.OBJECT, kind), at_ns, x=nest, fid=fid, name=name, detail=own, **fields)

    def close(self, kind: ObjectKind, fid: int, at_ns: int) -> None:
        """A libfabric object closed."""
        self.put(layout.OBJECT, kind_of(Shape.OBJECT, kind | CLOSED), at_ns, fid=fid)

    def bind(self, fid: int, bound_kind: ObjectKind, bound: int, flags: int, at_ns: int = 0) -> None:
        """An endpoint bound to a queue, counter or address vector."""
        self.put(layout.BIND, kind_of(Shape.BIND, bound_kind), at_ns, fid=fid, bound=bound, flags=flags)

    def op(self, name: str, begin_ns: int, end_ns: int, *, ret: int = 0, **fields: Any) -> None:
        """One libfabric call."""
        self.put(layout.OP, kind_of(Shape.OP, op_what(name)), end_ns, dur_ns=end_ns - begin_ns, x=ret, **fields)

    def cq(
        self, cq: int, begin_ns: int, end_ns: int, entries: Sequence[Cqe] = (), *,
        what: int = CQ_READ, empties: int = 0, cq_format: int = 3, nest: int = 0,
    ) -> None:  # fmt: skip
        """One completion-queue read that returned entries."""
        self.put(
            layout.CQ, kind_of(Shape.CQ, what), end_ns, dur_ns=end_ns - begin_ns, x=len(entries),
            cq=cq, empties=empties, flags=cq_format | nest << 8,
        )  # fmt: skip
        body = np.zeros(len(entries), layout.CQE)
        for i, entry in enumerate(entries):
            body[i] = (entry.ctx, entry.src, entry.data, entry.flags, entry.len, 1 if entry.err else 0, entry.err)
        self.raw(body.tobytes())

    def clock_sample(self, at_ns: int, *, realtime_ns: int = 0, bracket_ns: int = 20) -> None:
        """One reading of the clocks, exact up to the rounding of ticks."""
        self.put(
            layout.CLOCK, kind_of(Shape.CLOCK, 0), at_ns, dur_ns=bracket_ns, monotonic_ns=at_ns, realtime_ns=realtime_ns
        )

    def counter(self, name: str, at_ns: int, value: int, *, is_monotone: bool = True) -> None:
        """One sampled counter value."""
        self.put(
            layout.COUNTER,
            kind_of(Shape.COUNTER, 1 if is_monotone else 2),
            at_ns,
            name=self.name(name, at_ns),
            value=value,
        )

    def span(
        self, name: str, begin_ns: int, end_ns: int, *, depth: int = 0, is_step: bool = False, payload: int = 0
    ) -> None:
        """One named stretch of host time."""
        found = self.name(name, end_ns)
        self.put(
            layout.SPAN, kind_of(Shape.SPAN, 3 if is_step else 1), end_ns,
            dur_ns=end_ns - begin_ns, x=depth, name=found, payload=payload,
        )  # fmt: skip

    def named_range(
        self,
        name: str,
        begin_ns: int,
        end_ns: int,
        *,
        what: Span = Span.RANGE,
        source: Source = Source.NVTX,
        domain: str | None = None,
        **fields: int,
    ) -> None:
        """One named stretch of host time, with more fields of its record."""
        named = {"name": self.name(name, end_ns), "domain": self.name(domain or "", end_ns)}
        self.put(
            layout.RANGE, kind_of(Shape.RANGE, what), end_ns, dur_ns=end_ns - begin_ns, **named,
            t_begin=self.clock.ticks(begin_ns), source=source, **fields,
        )  # fmt: skip

    def step(
        self,
        begin_ns: int,
        end_ns: int,
        *,
        kind: AnnotatedStep = AnnotatedStep.DECODE,
        tokens: int = layout.UNSAID_COUNT,
        batch: int = layout.UNSAID_COUNT,
        name: str = "step",
    ) -> None:
        """One annotated step, and that it began."""
        self.put(layout.SPAN, kind_of(Shape.SPAN, Span.STEP_BEGAN), begin_ns, name=self.name(name, begin_ns))
        self.named_range(
            name, begin_ns, end_ns, what=Span.STEP, source=Source.ANNOTATION, category=kind,
            payload_type=Payload.STEP, payload=batch << 32 | tokens,
        )  # fmt: skip

    def flush(self) -> None:
        """Write what is pending to the file, and the header that covers it."""
        with self.path.open("ab") as file:
            for part in self._pending:
                file.write(part)
        self._pending.clear()
        for name in ("head", "tail"):
            self.header[name] = self.slots
        with self.path.open("r+b") as file:
            file.write(self.header.tobytes())


@dataclass(slots=True)
class SynthRun:
    """Builder of a run directory: add rings, put records into them, `finish`."""

    path: Path
    clock: TickClock = field(default_factory=TickClock)
    host: str = "synth"
    boot: tuple[int, int] = BOOT
    rings: list[SynthRing] = field(default_factory=list)

    def ring(
        self, *, pid: int = 100, tid: int | None = None, comm: str = "main", producer: str = "fi",
        process_start: int = 1, start_ns: int = 0, dropped: int = 0, first: int = 0,
    ) -> SynthRing:  # fmt: skip
        """A new ring, and its raw file."""
        raw = self.path / RAW_DIR
        raw.mkdir(parents=True, exist_ok=True)
        header = np.zeros((), layout.HEADER)
        tid = pid if tid is None else tid
        values = {
            "magic": layout.MAGIC, "version": layout.FORMAT_VERSION, "slot_bytes": layout.SLOT_BYTES,
            "clock": int(self.clock.kind), "capacity": 1 << 17, "boot_id": self.boot, "pid_ns": 4026531836, "pid": pid,
            "tid": tid, "start_ticks": self.clock.ticks(start_ns), "process_start": process_start,
            "host": self.host.encode(), "comm": comm.encode(), "producer": producer.encode(), "state": 1,
            "dropped": dropped, "first": first,
        }  # fmt: skip
        for name, value in values.items():
            header[name] = value
        path = raw / f"{self.host}.4026531836.{pid}.{tid}.{len(self.rings):04x}{RAW_SUFFIX}"
        path.write_bytes(header.tobytes())
        made = SynthRing(path, self.clock, header)
        self.rings.append(made)
        return made

    def finish(self, **changes: Any) -> Run:
        """Write everything; the run is ready to be read."""
        (self.path / RAW_DIR).mkdir(parents=True, exist_ok=True)
        for ring in self.rings:
            ring.flush()
        values: dict[str, Any] = {
            "program": "synth", "command": ["synth"], "efaprof_version": __version__, "started_realtime_ns": 0,
            "ended_realtime_ns": 1, "exit_code": 0, "host": self.host, "clock": self.clock.kind.name.lower(),
            "emulated": ["synth"],
        }  # fmt: skip
        manifest = Manifest(**{**values, **changes})
        manifest.write(self.path)
        return Run(self.path, manifest)
