"""A run as one timeline file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from efaprof.export.chrome import ChromeWriter
from efaprof.export.draw import Drawn, draw
from efaprof.export.output import OutputFile
from efaprof.export.perfetto.writer import PerfettoWriter

if TYPE_CHECKING:
    from pathlib import Path

    from efaprof.export.source import RunTables
    from efaprof.export.timeline import Written


@dataclass(frozen=True, slots=True)
class TimelineFile:
    """A finished file and what is in it."""

    path: Path
    written: Written
    drawn: Drawn


def write_timeline(
    tables: RunTables, path: Path, *, is_chrome: bool = False, may_compress: bool = False, force: bool = False
) -> TimelineFile:
    """Write the run as a Perfetto trace, or as Chrome JSON; with `may_compress` a large file gets the suffix .gz."""
    with OutputFile(path, may_compress=may_compress, force=force) as out:
        if is_chrome:
            chrome = ChromeWriter(out)
            drawn, written = draw(tables, chrome), chrome.written
            chrome.close()
        else:
            perfetto = PerfettoWriter(out, clocks=tables.clocks)
            drawn, written = draw(tables, perfetto), perfetto.written
    return TimelineFile(out.path, written, drawn)
