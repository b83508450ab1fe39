"""What `efaprof export` does: a run, a format and a stretch of it in; files and remarks out."""

from __future__ import annotations

import shlex
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from efaprof.errors import UsageError
from efaprof.export.formats import Format
from efaprof.export.source import RunTables, Window, expected_slices, first_slices, seconds_window

if TYPE_CHECKING:
    from efaprof.export.timeline_file import TimelineFile
    from efaprof.trace.rundir import Run

MANY_SLICES = 2_000_000
_BROWSER_BYTES = 630  # that a viewer takes per slice with its arguments and its flow (measured: UI v52)


@dataclass(frozen=True, slots=True)
class Request:
    """One call of `efaprof export`."""

    run: Run
    format: Format = Format.PERFETTO
    output: Path | None = None
    force: bool = False
    window: str | None = None  # "A:B" in seconds from the start
    max_slices: int | None = None
    span_ns: tuple[int, int] | None = None  # the same on the run's own clock, instead of `window`


@dataclass(frozen=True, slots=True)
class Outcome:
    """Files that were written, and what the user should know about them."""

    paths: tuple[Path, ...]
    remarks: tuple[str, ...]


def export_run(request: Request) -> Outcome:
    """Write what was asked for; UsageError, TraceError or NothingToAnalyse when it cannot be."""
    if request.format in {Format.PARQUET, Format.CSV}:
        if request.max_slices is not None:
            raise UsageError(
                f"--max-events counts slices of a timeline, and {request.format} has none",
                hint="narrow tables with --window A:B",
            )
        return _export_tables(request)
    return _export_timeline(request)


def _narrowed(request: Request) -> RunTables:
    from efaprof.export.run_tables import load

    tables = load(request.run)
    if request.span_ns is not None:
        return replace(tables, window=Window(*request.span_ns))
    window = seconds_window(tables, request.window) if request.window is not None else tables.extent()
    return replace(tables, window=window)


def is_large(run: Run) -> bool:
    """The whole run is more than a browser takes easily."""
    from efaprof.export.run_tables import load

    return expected_slices(load(run)) > MANY_SLICES


def _export_tables(request: Request) -> Outcome:
    from efaprof.export.tables import kept_tables, write_tables

    if request.format is Format.PARQUET and request.output is None:
        if request.window is not None:
            raise UsageError("a part of a run does not replace its own tables", hint="give a folder: -o FOLDER")
        return Outcome(kept_tables(request.run), ())
    tables = _narrowed(request)
    folder = request.output or request.run.path
    return Outcome(write_tables(tables, folder, suffix=request.format.value, force=request.force), ())


def _export_timeline(request: Request) -> Outcome:
    from efaprof.export.timeline_file import write_timeline

    tables = _narrowed(request)
    expected = expected_slices(tables)
    remarks = []
    if request.max_slices is not None and expected > request.max_slices:
        tables = replace(tables, window=first_slices(tables, request.max_slices))
        remarks.append(_cut_remark(tables, request.max_slices, expected))
        expected = request.max_slices
    if expected > MANY_SLICES:
        remarks.append(_size_remark(request, tables, expected))
    is_chrome = request.format is Format.CHROME
    path = request.output or request.run.path / ("trace.json" if is_chrome else "trace.pftrace")
    made = write_timeline(tables, path, is_chrome=is_chrome, may_compress=request.output is None, force=request.force)
    return Outcome((made.path,), (*remarks, *_picture_remarks(made)))


def _cut_remark(tables: RunTables, limit: int, expected: int) -> str:
    extent, window = tables.extent(), tables.window or tables.extent()
    end_s = (window.end_ns - extent.start_ns) / 1e9
    return f"kept the first {limit:,} of {expected:,} slices, which end {end_s:.6f} s after the start"


def _size_remark(request: Request, tables: RunTables, expected: int) -> str:
    window, origin_ns = first_slices(tables, MANY_SLICES), tables.extent().start_ns
    stretch = ":".join(f"{(time - origin_ns) / 1e9:.9f}".rstrip("0").rstrip(".") for time in astuple(window))
    command = f"efaprof export {shlex.quote(str(request.run.path))} -f --window {stretch}"
    return (
        f"warning: {expected:,} slices make a viewer take about {expected * _BROWSER_BYTES / 1e9:.1f} GB;"
        f" for a part of them: {command}, or --max-events {MANY_SLICES}"
    )


def _picture_remarks(made: TimelineFile) -> list[str]:
    written, drawn = made.written, made.drawn
    size = f"{written.slices:,} slices and {written.counter_points:,} counter points on {written.tracks:,} tracks"
    remarks = [f"{size}, {made.path.stat().st_size / 1e6:.1f} MB"]
    remarks += [
        f"{count:,} slices of {line} found no free lane and are not drawn; its counter includes them"
        for line, count in drawn.not_drawn.items()
    ]
    if drawn.early_done:
        remarks.append(f"{drawn.early_done:,} completions were read before their post returned: drawn with no length")
    if drawn.missing_stamps:
        remarks.append(f"{drawn.missing_stamps:,} stages of operations have no record and are not drawn")
    if drawn.counters.resets:
        remarks.append(f"{drawn.counters.resets:,} times a counter went back: its rate there is drawn as 0")
    return remarks
