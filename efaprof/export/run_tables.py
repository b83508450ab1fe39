"""A run directory as the tables and facts that an export draws."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import polars as pl

from efaprof.analyzers.device_clock import device_clocks
from efaprof.analyzers.steps import asked_pattern, find_steps
from efaprof.export.dispatch import DispatchSource
from efaprof.export.perfetto.tracks import ClockReading
from efaprof.export.source import STACKS, RunTables, Window
from efaprof.trace import dispatch
from efaprof.trace.manifest import ProbeState
from efaprof.trace.marks import read_marks
from efaprof.trace.python_stacks import read_stacks
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
    processes = tables.processes.with_columns(rank=pl.coalesce("rank", told))
    stacks = read_stacks(run)
    frames, processes = _placed(None if stacks is None else stacks.frames, processes, manifest.host)
    return RunTables(
        ops=tables.ops,
        arrivals=tables.arrivals,
        reads=tables.reads,
        counters=tables.counters,
        spans=tables.spans,
        device_work=tables.device_work,
        processes=processes,
        threads=tables.threads,
        objects=tables.objects,
        clocks=clocks or ClockReading(facts.first_ns),
        facts=_facts(manifest, tables),
        identity=f"{manifest.host} {manifest.boot_id} {manifest.pid} {manifest.started_realtime_ns}",
        keep_alive=tables,
        dispatch=stages,
        stacks=frames.lazy(),
        stacks_hz=stacks.rate_hz if stacks is not None else 0.0,
        steps=find_steps(tables.spans, asked_pattern(manifest.options)),
    )


def _placed(frames: pl.DataFrame | None, processes: pl.DataFrame, host: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Frames with their processes, and the processes with those of which nothing but stacks was recorded."""
    if frames is None or frames.is_empty():
        return pl.DataFrame(schema=STACKS), processes
    known = processes.filter(pl.col("producer") != "parent").unique("pid", keep="first", maintain_order=True)
    unknown = frames.select(pl.col("pid").unique().sort()).join(known, on="pid", how="anti")
    first = int(processes["process"].max() or 0) + 1  # type: ignore[arg-type]
    added = unknown.select(
        process=pl.int_range(first, first + pl.len(), dtype=pl.UInt32),
        host=pl.lit(host),
        pid="pid",
        rank=pl.lit(None, pl.Int32),
        comm=pl.lit("python"),
        producer=pl.lit("py-spy"),
    ).select(processes.columns)
    everyone = pl.concat([known, added])
    placed = frames.join(everyone.select("pid", "process"), on="pid", how="left", maintain_order="left")
    return placed.select(*STACKS), pl.concat([processes, added])


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
        **_times_of_gpus(tables),
        "records dropped": losses.dropped,
    }
    return {name: value for name, value in facts.items() if value != ""}


def _times_of_gpus(tables: Tables) -> dict[str, Fact]:
    """How far they may be off: what could be added to all of them, by what launched and what waited."""
    pids = dict(tables.processes.select("process", "pid").rows())
    return {
        f"shift of times of GPU {one.device} in {pids[one.process]} (ns)": " to ".join(
            "?" if bound is None else str(bound) for bound in (one.bounds.lowest_ns, one.bounds.highest_ns)
        )
        for one in device_clocks(tables)
    }
