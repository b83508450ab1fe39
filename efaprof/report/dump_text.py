"""Raw records as text, one a line: `slot t_end +dur shape what field=value …`; times are ticks, as in the file."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from efaprof.errors import UsageError
from efaprof.trace.decode import OP_KIND, UNKNOWN_KIND, records, shapes_of
from efaprof.trace.fabric import FI_ADDR_UNSPEC
from efaprof.trace.layout import CLOSED, CQE, RECORDS, Device, ObjectKind, Phase, Shape, Span, Stage, WaitKind
from efaprof.trace.rawfile import chunks
from efaprof.trace.schema import OP_KINDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from efaprof.trace.rawfile import Chunk, RawFile

CHUNK_SLOTS = 1 << 14
_HEAD = ("t_end", "dur", "kind", "x")
_HEX = frozenset({
    "ep", "ctx", "raddr", "cq", "fid", "parent", "caps", "mode", "msg_order", "flags", "av", "bound", "cntr", "imm",
    "data", "op", "extra", "addr",
})  # fmt: skip
_ADDRESS = frozenset({"fi_addr", "src"})
_NAMED = frozenset({"name", "detail", "domain"})
_SPANS = {int(kind): kind.name.lower().replace("_", " ") for kind in Span}
_WHAT: dict[Shape, dict[int, str]] = {
    Shape.CQ: {1: "read", 2: "readfrom", 3: "readerr", 4: "sread", 5: "sreadfrom", 6: "idle"},
    Shape.SPAN: _SPANS,
    Shape.RANGE: _SPANS,
    Shape.DEVICE: {int(kind): kind.name.lower() for kind in Device},
    Shape.AV: {1: "insert", 2: "remove"},
    Shape.COUNTER: {1: "count", 2: "gauge"},
    Shape.NOTE: {1: "info", 2: "degraded"},
    Shape.BIND: {int(kind): kind.name.lower() for kind in ObjectKind},
    Shape.STAGE: {int(stage): stage.name.lower() for stage in Stage},
    Shape.WAIT: {int(kind): kind.name.lower() for kind in WaitKind},
    Shape.OBJECT: {
        **{int(kind): f"open {kind.name.lower()}" for kind in ObjectKind},
        **{int(kind) | CLOSED: f"close {kind.name.lower()}" for kind in ObjectKind},
    },
}
SHAPES = tuple(shape.name.lower() for shape in Shape if shape is not Shape.PAD)


def shapes_named(names: Collection[str]) -> frozenset[Shape]:
    """Shapes of these names, all when there is none; UsageError for a name that is none."""
    for name in names:
        if name not in SHAPES:
            raise UsageError(f"--kind {name} is no kind of record", hint=f"one of {', '.join(SHAPES)}")
    return frozenset(Shape[name.upper()] for name in names or SHAPES)


def dump_lines(raw: RawFile, shapes: frozenset[Shape]) -> Iterator[str]:
    """The file's header in a line, then its records in order; a last line for what could not be read."""
    identity = raw.identity
    yield (
        f"# {raw.path.name}: {identity.host}[{identity.pid}] {raw.comm}/{raw.tid} by {raw.producer},"
        f" clock {raw.clock.name.lower()}, started {raw.start_ticks}, slots {raw.first}-{raw.slots},"
        f" dropped {raw.dropped}, nested {raw.nested}, failed {raw.failed}"
    )
    names: dict[int, str] = {}
    bad_slots = 0
    for chunk in chunks(raw, CHUNK_SLOTS):
        bad_slots += chunk.bad_slots
        yield from _chunk_lines(chunk, shapes, names)
    if bad_slots or raw.cut_bytes:
        yield f"# {bad_slots} damaged slots and {raw.cut_bytes} missing bytes were not read"


def _chunk_lines(chunk: Chunk, shapes: frozenset[Shape], names: dict[int, str]) -> Iterator[str]:
    found = shapes_of(chunk)
    rows = {Shape(shape): iter(records(chunk, found == shape, RECORDS[Shape(shape)])) for shape in np.unique(found)}
    for start, number in zip(chunk.starts, found, strict=True):
        shape = Shape(number)
        record = next(rows[shape])
        if shape is Shape.NAME:
            names[int(record["id"])] = _text(chunk, int(start), int(record["x"]))
        if shape in shapes:
            entries = _entries(chunk, int(start), int(record["x"])) if shape is Shape.CQ else ""
            head = f"{chunk.base + int(start):>8} {int(record['t_end'])} +{int(record['dur'])} {shape.name.lower()}"
            yield f"{head}{_what(shape, record)}{_body(shape, record, names)}{entries}"


def _text(chunk: Chunk, start: int, length: int) -> str:
    return chunk.slots[start + 1 :].reshape(-1).view(np.uint8)[:length].tobytes().decode("utf-8", "replace")


def _what(shape: Shape, record: np.void) -> str:
    what = int(record["kind"]) & 0xFF
    if shape is Shape.OP:
        kind = int(OP_KIND[what])
        return f" {OP_KINDS[kind] if kind != UNKNOWN_KIND else what}"
    words = _WHAT.get(shape)
    return f" {words.get(what, str(what))}" if words else ""


def _body(shape: Shape, record: np.void, names: dict[int, str]) -> str:
    x = int(record["x"])
    if shape is Shape.NAME:
        key = int(record["id"])
        return f" id={key:#x} {names[key]!r}"
    if shape is Shape.OP:
        parts = [f"ret={x - (1 << 16) if x >= 1 << 15 else x}"]
    else:
        parts = [f"n={x}"] if shape is Shape.CQ else [f"x={x}"] if x else []
    fields = record.dtype.names or ()
    parts += [_field(name, record[name], names) for name in fields if name not in _HEAD and name != "reserved"]
    return "".join(f" {part}" for part in parts)


def _field(name: str, value: np.generic | NDArray[np.uint8], names: dict[int, str]) -> str:
    if isinstance(value, np.ndarray):
        as_int = int.from_bytes(value.tobytes(), "little")
        return f"{name}={value.tobytes().hex()}" if name == "addr" else f"{name}={as_int}"
    if isinstance(value, bytes):
        return f"{name}={value.decode('utf-8', 'replace')!r}"
    number = int(value)
    if name in _NAMED:
        return f"{name}={names.get(number, hex(number))!r}" if number else f"{name}=-"
    if name in _ADDRESS and number == FI_ADDR_UNSPEC:
        return f"{name}=-"
    if name == "phase" and number in set(Phase):
        return f"phase={Phase(number).name.lower()}"
    return f"{name}={number:#x}" if name in _HEX else f"{name}={number}"


def _entries(chunk: Chunk, start: int, entries: int) -> str:
    body = chunk.slots[start + 1 : start + 1 + entries].reshape(-1).view(CQE)
    fields = [[_field(name, entry[name], {}) for name in CQE.names or ()] for entry in body]
    return "".join(f" [{' '.join(parts)}]" for parts in fields)


def limited(lines: Iterator[str], limit: int | None) -> Iterator[str]:
    """The first `limit` lines of records; comment lines do not count."""
    left = count() if limit is None else iter(range(limit))
    for line in lines:
        if not line.startswith("#") and next(left, None) is None:
            return
        yield line
