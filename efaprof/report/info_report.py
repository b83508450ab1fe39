"""What `efaprof info` says about a run, as one value for its renderings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from efaprof.analyzers.outcomes import Outcomes, outcomes
from efaprof.errors import TraceError
from efaprof.report.attribution_report import run_warnings
from efaprof.report.gpu_times import GpuTimes, gpu_times, times_warnings
from efaprof.trace.rawfile import RawFile, open_raw
from efaprof.trace.survey import is_kept

if TYPE_CHECKING:
    from pathlib import Path

    from efaprof.trace.reader import Facts, Tables
    from efaprof.trace.rundir import Run

EMPTY = Outcomes(0, {}, {})


@dataclass(frozen=True, slots=True)
class InfoReport:
    """One run."""

    run: Run
    rings: tuple[RawFile, ...]
    raw_bytes: int
    derived_bytes: int  # tables, timelines and reports: can be made again
    processes: tuple[tuple[str, int, str], ...]  # comm, pid, producer
    threads: int
    facts: Facts | None  # None: nothing was recorded
    outcomes: Outcomes
    gpu_times: tuple[GpuTimes, ...]
    warnings: tuple[str, ...]


def info_on(run: Run, tables: Tables | None) -> InfoReport:
    """Report on a run; `tables` is None when it has no raw files."""
    files = [path for path in run.path.iterdir() if path.is_file() and not path.name.startswith(".")]
    derived = [path for path in files if path.suffix in {".parquet", ".pftrace", ".gz"} or path.name in _DERIVED]
    facts = tables.facts if tables is not None else None
    times = gpu_times(tables) if tables is not None else ()
    nothing = [] if facts is not None else ["nothing was recorded"]
    warnings = [*run_warnings(run.manifest, facts), *times_warnings(times), *nothing]
    processes = tables.processes.select("comm", "pid", "producer").rows() if tables is not None else []
    return InfoReport(
        run=run,
        rings=_rings(run),
        raw_bytes=sum(_on_disk(path) for path in run.raw_files),
        derived_bytes=sum(_on_disk(path) for path in derived),
        processes=tuple(processes),
        threads=tables.threads.height if tables is not None else 0,
        facts=facts,
        outcomes=outcomes(tables) if tables is not None else EMPTY,
        gpu_times=times,
        warnings=tuple(warnings),
    )


_DERIVED = frozenset({"tables.json", "attribution.json"})


def _on_disk(path: Path) -> int:
    """Bytes of a file without its holes: what was given up takes no room."""
    stat = path.stat()
    return min(stat.st_size, stat.st_blocks * 512)


def _rings(run: Run) -> tuple[RawFile, ...]:
    found = []
    for path in run.raw_files:
        try:
            raw = open_raw(path)
        except TraceError:
            continue  # Facts.unusable names it
        if not is_kept(raw):
            found.append(raw)
    return tuple(found)
