"""A run directory as the tables and facts that an export draws."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import polars as pl

from efaprof.export.dispatch import DispatchSource
from efaprof.export.perfetto.tracks import ClockReading
from efaprof.export.source import RunTables, Window
from efaprof.trace import dispatch
from efaprof.trace.manifest import ProbeState
from efaprof.trace.marks import read_marks
from efaprof.trace.reader import Tables, open_tables
from efaprof.trace.survey import survey

if TYPE_CHECKING:
    from efaprof.export.timeline import Fact
    from efaprof.trace.manifest import Manifest
    from efaprof.trace.rundir import Run


def load(run: Run) -> RunTables:
    """Tables of a run, made when they are not there yet."""
    tables = open_tables(run)
    facts = tables.facts
    clocks = None
    if facts.realtime_offset_ns is not None:
        clocks = ClockReading(facts.first_ns, facts.first_ns + facts.realtime_offset_ns)
    manifest = run.manifest
    surveyed = survey(run.raw_files)
    rank_of = {marks.process: marks.rank for marks in read_marks(surveyed)}
    stages = None
    if rank_of:
        extent = Window(facts.first_ns, facts.last_ns + 1)
        stages = DispatchSource(frozenset(rank_of), extent, chunks=lambda: dispatch.chunks(surveyed))
    told = pl.col("process").replace_strict(rank_of, default=None, return_dtype=pl.Int32)
    return RunTables(
        ops=tables.ops,
        arrivals=tables.arrivals,
        reads=tables.reads,
        counters=tables.counters,
        spans=tables.spans,
        processes=tables.processes.with_columns(rank=pl.coalesce("rank", told)),
        threads=tables.threads,
        objects=tables.objects,
        clocks=clocks or ClockReading(facts.first_ns),
        facts=_facts(manifest, tables),
        identity=f"{manifest.host} {manifest.boot_id} {manifest.pid} {manifest.started_realtime_ns}",
        keep_alive=tables,
        dispatch=stages,
    )


def _facts(manifest: Manifest, tables: Tables) -> dict[str, Fact]:
    """What a viewer shows about the run; empty ones are left out."""
    losses = tables.facts.losses
    facts: dict[str, Fact] = {
        "program": manifest.program,
        "command": shlex.join(manifest.command),
        "host": manifest.host,
        "cpu": manifest.cpu_model,
        "rank": "" if manifest.rank is None else manifest.rank,
        "job": manifest.job_id or "",
        "efaprof": manifest.efaprof_version,
        "emulated": ", ".join(manifest.emulated),
        "probes off": ", ".join(probe.name for probe in manifest.probes if probe.state is not ProbeState.ON),
        "warnings": "; ".join((*manifest.warnings, *tables.facts.warnings())),
        "clock error (ns)": tables.facts.clock_error_ns,
        "records dropped": losses.dropped,
    }
    return {name: value for name, value in facts.items() if value != ""}
