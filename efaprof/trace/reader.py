"""Raw files to tables. The tables are kept as parquet in the run directory and made again when a raw file changed."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from efaprof import __version__
from efaprof.errors import NothingToAnalyse, TraceError
from efaprof.trace import events, fabric, schema
from efaprof.trace.ahead import ahead
from efaprof.trace.device import device_work
from efaprof.trace.layers import DispatchPath
from efaprof.trace.merge import windows
from efaprof.trace.outcomes import Outcomes
from efaprof.trace.pairing import Pairing
from efaprof.trace.rows import OpRows
from efaprof.trace.sink import ParquetSink
from efaprof.trace.spans import spans
from efaprof.trace.survey import Losses, Survey, survey

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from efaprof.trace.rundir import Run

STAMP = "tables.json"
TABLES_VERSION = 6  # of what is kept; another number makes the tables anew
EVENT_TABLES: dict[str, dict[str, pl.DataType]] = {
    "ops": schema.OPS, "arrivals": schema.ARRIVALS, "reads": schema.READS, "counters": schema.COUNTERS,
    "spans": schema.SPANS, "device_work": schema.DEVICE_WORK,
}  # fmt: skip
SMALL_TABLES = ("processes", "threads", "objects")
CHUNK_ROWS = 1 << 18
EMULATED = "emulated: "  # begins a note that says what is not the real thing
OPTIONS = "options: "  # begins a note of name=value words


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a probe had to say."""

    text: str
    value: int
    is_degraded: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about a run's records as a whole."""

    records: dict[str, int]  # by shape
    losses: Losses
    unusable: tuple[str, ...]  # one sentence a file that could not be read
    notes: tuple[Note, ...]
    clock_error_ns: int
    first_ns: int
    last_ns: int
    realtime_offset_ns: int | None

    @property
    def is_kernel_posted(self) -> bool:
        """Some process gave a device's queues to a GPU kernel, whose operations no data call shows."""
        return any(note.text == fabric.KERNEL_POSTED for note in self.notes)

    @property
    def path(self) -> DispatchPath | None:
        """The path that the program's own records name, if they do."""
        return next((path for path in DispatchPath if any(one.text == f"path: {path}" for one in self.notes)), None)

    @property
    def options(self) -> dict[str, int | str]:
        """What the program's own records say it was run with."""
        said = [one.text.removeprefix(OPTIONS) for one in self.notes if one.text.startswith(OPTIONS)]
        pairs = [word.partition("=") for text in said for word in text.split()]
        return {name: int(value) if value.isdecimal() else value for name, _, value in pairs}

    @property
    def emulated(self) -> tuple[str, ...]:
        """What of the path the program's own records call emulated."""
        return tuple(one.text.removeprefix(EMULATED) for one in self.notes if one.text.startswith(EMULATED))

    def warnings(self, *, has_recorder_told: bool = False) -> tuple[str, ...]:
        """One sentence for everything that is missing; a recorder that ended in order told of its own losses."""
        lost = self.losses
        said = [
            (lost.dropped * (not has_recorder_told), "records could not be written while the program ran"),
            (lost.discarded_slots * (not has_recorder_told), "slots were given up to stay under --max-size"),
            (lost.bad_slots, "slots of raw files are damaged and were not read"),
            (lost.cut_bytes, "bytes at the ends of raw files are missing"),
            (lost.names_cut, "names were longer than 128 bytes and are cut"),
        ]
        return (*(f"{count:,} {text}" for count, text in said if count), *(f"not read: {why}" for why in self.unusable))


@dataclass(frozen=True)
class Tables:
    """Tables of one run, with the columns of `efaprof.trace.schema`; ops in order of post_ns."""

    folder: Path
    facts: Facts
    ops: pl.LazyFrame
    arrivals: pl.LazyFrame
    reads: pl.LazyFrame
    counters: pl.LazyFrame
    spans: pl.LazyFrame
    device_work: pl.LazyFrame
    processes: pl.DataFrame
    threads: pl.DataFrame
    objects: pl.DataFrame
    surveyed: Survey | None = None  # of the raw files, where these tables were just made from it

    def chunks(self, name: str, columns: list[str] | None = None) -> Iterator[pl.DataFrame]:
        """A table's rows in order, at most CHUNK_ROWS at a time."""
        table: pl.LazyFrame = getattr(self, name)
        rows = int(table.select(pl.len()).collect().item())
        for offset in range(0, rows, CHUNK_ROWS):
            yield table.slice(offset, CHUNK_ROWS).select(columns or pl.all()).collect()


def open_tables(run: Run, *, is_strict: bool = False, part_slots: int | None = None) -> Tables:
    """Tables of a run, made when they are not there yet.

    TraceError when the raw files cannot be used, or, with `is_strict`, when anything is missing from them;
    NothingToAnalyse when there are none.
    """
    if not run.raw_files:
        raise NothingToAnalyse(
            f"{run.path} holds no raw trace files: nothing was recorded", hint="efaprof info RUN lists its probes"
        )
    folder, surveyed = run.path, None
    if not _is_current(run, folder) or part_slots is not None:
        folder = _writable(run.path)
        try:
            surveyed = _make(run, folder, part_slots)
        except BaseException:
            _remove_unless_run(folder, run)
            raise
    tables = replace(_load(folder), surveyed=surveyed)
    weakref.finalize(tables, _remove_unless_run, folder, run)
    if is_strict and not tables.facts.losses.is_lossless:
        raise TraceError(f"{run.path} is incomplete: {'; '.join(tables.facts.warnings())}", hint="leave out --strict")
    return tables


def _fingerprint(run: Run) -> list[list[Any]]:
    """What the tables were made from."""
    return [[path.name, (stat := path.stat()).st_size, stat.st_mtime_ns] for path in run.raw_files]


def _is_current(run: Run, folder: Path) -> bool:
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    same = (stamp.get("version"), stamp.get("efaprof"), stamp.get("raw")) == (
        TABLES_VERSION, __version__, _fingerprint(run),
    )  # fmt: skip
    return same and all((folder / f"{name}.parquet").is_file() for name in (*EVENT_TABLES, *SMALL_TABLES))


def _writable(path: Path) -> Path:
    """The run directory, or a temporary one when nothing can be written there."""
    return path if os.access(path, os.W_OK) else Path(tempfile.mkdtemp(prefix="efaprof-tables-"))


def _remove_unless_run(folder: Path, run: Run) -> None:
    """Remove a temporary folder."""
    if folder != run.path:
        shutil.rmtree(folder, ignore_errors=True)


def _make(run: Run, folder: Path, part_slots: int | None) -> Survey:
    """Write all tables; each appears whole, and the stamp that makes them valid last."""
    fingerprint = _fingerprint(run)
    surveyed = survey(run.raw_files, part_slots=part_slots)
    drafts = {name: folder / f".{name}.parquet.{os.getpid()}" for name in (*EVENT_TABLES, *SMALL_TABLES)}
    try:
        _write_events(surveyed, folder, drafts)
        events.processes(surveyed, run.manifest.rank).write_parquet(drafts["processes"])
        events.threads(surveyed).write_parquet(drafts["threads"])
        surveyed.objects.table.write_parquet(drafts["objects"])
        (folder / STAMP).unlink(missing_ok=True)
        for name, draft in drafts.items():
            draft.replace(folder / f"{name}.parquet")
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)
    stamp = {
        "version": TABLES_VERSION, "efaprof": __version__, "raw": fingerprint, "facts": asdict(_facts(surveyed)),
    }  # fmt: skip
    draft = folder / f".{STAMP}.{os.getpid()}"
    draft.write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")
    draft.replace(folder / STAMP)
    return surveyed


def _write_events(surveyed: Survey, folder: Path, drafts: Mapping[str, Path]) -> None:
    with Outcomes(surveyed.operations, folder) as outcomes:
        sinks = {name: ParquetSink(drafts[name], EVENT_TABLES[name]) for name in EVENT_TABLES if name != "ops"}
        with ExitStack() as closing:
            for sink in sinks.values():
                closing.callback(sink.close)
            pairing = Pairing(surveyed, outcomes)
            for window, prepared in ahead((w, pairing.prepare(w)) for w in windows(surveyed.event_rings)):
                sinks["arrivals"].write(events.arrivals(pairing.settle(prepared), surveyed))
                sinks["reads"].write(events.reads(window, surveyed))
                sinks["counters"].write(events.counters(window, surveyed))
                sinks["spans"].write(spans(window, surveyed))
                sinks["device_work"].write(device_work(window, surveyed))
            pairing.finish()
        rows = OpRows(surveyed, outcomes)
        with ExitStack() as closing:
            ops = ParquetSink(drafts["ops"], schema.OPS)
            closing.callback(ops.close)
            for calls, settled_ns in ahead(rows.prepare(w) for w in windows(surveyed.event_rings)):
                for made in rows.take(calls, settled_ns):
                    ops.write(made)
            for made in rows.finish():
                ops.write(made)


def _facts(surveyed: Survey) -> Facts:
    return Facts(
        records={shape.name.lower(): count for shape, count in surveyed.records.items()},
        losses=surveyed.losses,
        unusable=tuple(one.reason for one in surveyed.unusable),
        notes=tuple(Note(*note) for note in surveyed.notes),
        clock_error_ns=surveyed.clock_error_ns,
        first_ns=surveyed.first_ns,
        last_ns=surveyed.last_ns,
        realtime_offset_ns=surveyed.realtime_offset_ns,
    )


def _load(folder: Path) -> Tables:
    kept = json.loads((folder / STAMP).read_text(encoding="utf-8"))["facts"]
    facts = Facts(
        **{
            **kept,
            "losses": Losses(**kept["losses"]),
            "unusable": tuple(kept["unusable"]),
            "notes": tuple(Note(**note) for note in kept["notes"]),
        }
    )
    scan = {name: pl.scan_parquet(folder / f"{name}.parquet") for name in EVENT_TABLES}
    read = {name: pl.read_parquet(folder / f"{name}.parquet") for name in SMALL_TABLES}
    return Tables(
        folder=folder, facts=facts, ops=scan["ops"], arrivals=scan["arrivals"], reads=scan["reads"],
        counters=scan["counters"], spans=scan["spans"], device_work=scan["device_work"],
        processes=read["processes"], threads=read["threads"], objects=read["objects"],
    )  # fmt: skip
