"""What the host was doing, by sampled Python stacks: for the terminal and for the attribution document."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from efaprof.analyzers.gaps import StepGaps
from efaprof.analyzers.host_time import GAPS, RECORDING, STEPS, HostTime, driving_threads, host_time
from efaprof.analyzers.intervals import IntervalSet, covering, merge, union
from efaprof.analyzers.step_costs import step_gaps
from efaprof.report import units
from efaprof.report.sections import Notes, Section, Table
from efaprof.report.units import DERIVED, MEASURED
from efaprof.trace import dispatch
from efaprof.trace.layers import Provenance
from efaprof.trace.marks import read_marks
from efaprof.trace.python_stacks import Stacks, read_stacks
from efaprof.trace.survey import survey

if TYPE_CHECKING:
    from efaprof.analyzers.steps import FoundSteps
    from efaprof.trace.reader import Tables
    from efaprof.trace.rundir import Run

_MOST_FUNCTIONS = 8
_NS_PER_US = 1e3


@dataclass(frozen=True, slots=True)
class HostSection:
    """Sampled stacks of one run."""

    stacks: Stacks
    time: HostTime | None  # None: nothing was sampled

    @property
    def cores(self) -> float:
        """Part of a core that py-spy took, mean over the time that it ran for each process."""
        return self.stacks.cpu_s / self.stacks.length_s if self.stacks.length_s > 0 else 0.0


def host_section(run: Run, tables: Tables, found: FoundSteps | None = None) -> HostSection | None:
    """What the threads that drive the steps did in launch and idle gaps; None when Python was not sampled.

    `found`: steps of a program that says where they are, instead of marks.
    """
    stacks = read_stacks(run)
    if stacks is None:
        return None
    if stacks.frames.is_empty():
        return HostSection(stacks, None)
    threads = driving_threads(stacks.frames, _marking_threads(tables))
    chosen, window, note = _stretches(run, tables, stacks, found)
    threads = {pid: tid for pid, tid in threads.items() if pid in chosen}
    return HostSection(stacks, host_time(stacks.frames, chosen, threads, window=window, note=note))


def _marking_threads(tables: Tables) -> dict[int, list[int]]:
    """Threads that opened step spans, by process id."""
    steps = tables.spans.filter(pl.col("is_step")).select(pl.col("thread").unique()).collect()
    threads = tables.threads.join(steps, on="thread").join(tables.processes.select("process", "pid"), on="process")
    found: dict[int, list[int]] = {}
    for row in threads.to_dicts():
        found.setdefault(row["pid"], []).append(row["tid"])
    return found


def _stretches(
    run: Run, tables: Tables, stacks: Stacks, found: FoundSteps | None
) -> tuple[dict[int, IntervalSet], str, str]:
    """Gaps of the steps, else steps, else everything: by process id, what they are, and why not the gaps."""
    steps: dict[int, IntervalSet] = {}
    gaps: dict[int, IntervalSet] = {}
    if found is not None:
        steps, gaps = _annotated(tables, found)
    elif tables.facts.records.get("mark"):
        steps, gaps = _marked(run, tables)
    if gaps:
        total = sum(one.covered_ns for one in gaps.values())
        resolved = {pid: _at_least(one, stacks.clock_error_ns) for pid, one in gaps.items()}
        if total and 2 * sum(one.covered_ns for one in resolved.values()) >= total:
            return resolved, GAPS, ""
        error = units.duration(stacks.clock_error_ns)
        why = f"most gaps are shorter than samples are sure in time (±{error})" if total else "there are no gaps"
        return steps, STEPS, why
    first, last = int(stacks.frames["begin_ns"].min()), int(stacks.frames["end_ns"].max())  # type: ignore[arg-type]
    return (
        {pid: covering(first, last) for pid in stacks.frames["pid"].unique()},
        RECORDING,
        "there are no steps on record",
    )


def _at_least(stretches: IntervalSet, length_ns: int) -> IntervalSet:
    keep = stretches.end - stretches.begin >= length_ns
    return union(stretches.begin[keep], stretches.end[keep])


def _marked(run: Run, tables: Tables) -> tuple[dict[int, IntervalSet], dict[int, IntervalSet]]:
    """Decode steps and the gaps in them, by process id; ranks that share a process share both."""
    surveyed = survey(run.raw_files)
    found = StepGaps()
    for chunk in dispatch.chunks(surveyed):
        found.add(chunk)
    pid_of = dict(tables.processes.select("process", "pid").iter_rows())
    pids = {marks.rank: pid_of[marks.process] for marks in read_marks(surveyed)}
    return _by_process(found.steps, pids), _by_process(found.gaps, pids)


def _by_process(stretches: dict[int, IntervalSet], pids: dict[int, int]) -> dict[int, IntervalSet]:
    found: dict[int, IntervalSet] = {}
    for rank, one in stretches.items():
        pid = pids[rank]
        found[pid] = merge(found[pid], one) if pid in found else one
    return found


def _annotated(tables: Tables, found: FoundSteps) -> tuple[dict[int, IntervalSet], dict[int, IntervalSet]]:
    """Decode steps that the program named and the gaps in them, by process id."""
    pid_of = dict(tables.processes.select("process", "pid").iter_rows())
    both = {pid_of[process]: pair for process, pair in step_gaps(tables, found).items()}
    return {pid: steps for pid, (steps, _) in both.items()}, {pid: gaps for pid, (_, gaps) in both.items()}


def host_sections(section: HostSection) -> list[Section]:
    """A table of functions, and what stands behind it."""
    found, stacks = section.time, section.stacks
    if found is None:
        return [Notes("host", ("Python was to be sampled, and no stack was", *stacks.warnings))]
    columns = (
        f"host in {found.window}", f"share {MEASURED}", f"time {DERIVED}", "called by", "file",
    )  # fmt: skip
    rows = tuple(
        (one.function, units.percent(one.share), units.duration(one.ns), one.caller or units.NONE, _short(one.file))
        for one in found.functions[:_MOST_FUNCTIONS]
    )
    how = f"sampled {stacks.rate_hz:g} times a second by py-spy" + (
        ", which stopped the program for each sample" if stacks.is_native else ""
    )
    covered = found.sampled_ns / found.window_ns if found.window_ns else 0.0
    cost = f"it took {units.percent(section.cores)} {MEASURED} of a core"
    names = [f"{number} × {name}" if number > 1 else name for name, number in Counter(found.threads).items()]
    error = f"±{units.duration(stacks.clock_error_ns)} {DERIVED}"
    where = f"{', '.join(names) or 'no thread of a process with steps'}: {how}, {error}"
    lines = [
        f"{where}; {cost}; stacks for {units.percent(covered)} of the time",
        *((f"not of launch and idle gaps: {found.note}",) if found.note else ()),
        *stacks.warnings,
    ]
    return [
        Table(columns[0], columns, rows, frozenset({columns[0], "called by", "file"})),
        Notes("host", tuple(lines)),
    ]


def _short(path: str) -> str:
    """The file and its folder: enough to tell two apart, and to fit."""
    return "/".join(path.rsplit("/", 2)[-2:])


def host_document(section: HostSection | None) -> dict[str, Any] | None:
    """The same for the document."""
    if section is None:
        return None
    found, stacks = section.time, section.stacks
    return {
        "window": found.window if found else None,
        "note": found.note if found else "",
        "window_us": found.window_ns / _NS_PER_US if found else 0.0,
        "sampled_us": found.sampled_ns / _NS_PER_US if found else 0.0,
        "threads": list(found.threads) if found else [],
        "rate_hz": stacks.rate_hz,
        "samples": stacks.samples,
        "native": stacks.is_native,
        "cores": section.cores,
        "clock_error_ns": stacks.clock_error_ns,
        "functions": [
            {
                "function": one.function,
                "file": one.file,
                "caller": one.caller or None,
                "us": one.ns / _NS_PER_US,
                "share": one.share,
            }
            for one in (found.functions if found else ())
        ],
        "provenance": Provenance.MEASURED.value,
    }
