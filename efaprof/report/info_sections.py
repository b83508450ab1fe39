"""What is known about a run, as tables and notes."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from efaprof.report import units
from efaprof.report.gpu_times import times_lines
from efaprof.report.sections import Notes, Section, Table
from efaprof.trace.layout import HEADER_BYTES, SLOT_BYTES

if TYPE_CHECKING:
    from efaprof.report.info_report import InfoReport
    from efaprof.trace.manifest import Manifest
    from efaprof.trace.rawfile import RawFile
    from efaprof.trace.reader import Facts

_MOST_RINGS = 10


def info_heading(report: InfoReport) -> str:
    """First line of the report."""
    manifest = report.run.manifest
    return f"efaprof info · {report.run.path.resolve().name} · {shlex.join(manifest.command)}"


def info_sections(report: InfoReport) -> list[Section]:
    """What the report says, in order."""
    sections: list[Section] = [_run(report), _probes(report.run.manifest)]
    if report.facts is not None:
        sections += [_records(report.facts), _rings(report), _outcomes(report)]
        if report.gpu_times:
            sections.append(Notes("times of GPUs", times_lines(report.gpu_times)))
        if report.facts.notes:
            sections.append(Notes("notes", tuple(f"{note.text} ({note.value})" for note in report.facts.notes)))
    if report.warnings:
        sections.append(Notes("warnings", report.warnings))
    return sections


def _run(report: InfoReport) -> Notes:
    manifest = report.run.manifest
    started = datetime.fromtimestamp(manifest.started_realtime_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    lines = [
        f"started {started} on {manifest.host or units.NONE} ({manifest.cpus} CPUs, {manifest.cpu_model or '?'})",
        f"ended {_ending(manifest)}; recorded by efaprof {manifest.efaprof_version}, format {manifest.format_version}",
        f"raw {units.size(report.raw_bytes)}, derived {units.size(report.derived_bytes)}",
    ]
    if report.facts is not None:
        length = units.duration(report.facts.last_ns - report.facts.first_ns)
        lines.append(f"{length} on clock {manifest.clock or '?'}, error ±{units.duration(report.facts.clock_error_ns)}")
    if manifest.emulated:
        lines.append(f"emulated: {', '.join(manifest.emulated)}")
    return Notes("run", tuple(lines))


def _ending(manifest: Manifest) -> str:
    if not manifest.is_closed:
        return "unknown: the recorder did not end in order"
    if manifest.signal is not None:
        return f"by signal {manifest.signal}"
    return "unknown" if manifest.exit_code is None else f"with exit code {manifest.exit_code}"


def _probes(manifest: Manifest) -> Table:
    rows = tuple((probe.name, probe.state.value, probe.reason, probe.hint) for probe in manifest.probes)
    columns = ("probe", "state", "why", "hint")
    return Table("probe", columns, rows, frozenset(columns))


def _records(facts: Facts) -> Notes:
    counted = ", ".join(f"{shape} {units.whole(count)}" for shape, count in facts.records.items())
    return Notes("records", (counted or units.NONE, f"dropped {units.whole(facts.losses.dropped)}"))


def _rings(report: InfoReport) -> Table:
    by_size = sorted(report.rings, key=lambda ring: ring.first - ring.slots)
    rows = [_ring(ring) for ring in by_size[:_MOST_RINGS]]
    if len(by_size) > _MOST_RINGS:
        rest = by_size[_MOST_RINGS:]
        size = sum(ring.slots - ring.first for ring in rest) * SLOT_BYTES
        rows.append((f"{len(rest)} more", "", "", units.size(size), units.whole(sum(_lost(ring) for ring in rest))))
    columns = ("ring of", "thread", "by", "size", "dropped")
    return Table("ring of", columns, tuple(rows), frozenset({"ring of", "thread", "by"}))


def _ring(ring: RawFile) -> tuple[str, ...]:
    return (
        f"{ring.identity.host}[{ring.identity.pid}]",
        f"{ring.comm}/{ring.tid}",
        ring.producer,
        units.size(HEADER_BYTES + (ring.slots - ring.first) * SLOT_BYTES),
        units.whole(_lost(ring)),
    )


def _lost(ring: RawFile) -> int:
    return ring.dropped + ring.nested + ring.failed


def _outcomes(report: InfoReport) -> Notes:
    found = report.outcomes
    parts = [f"{match.value} {units.whole(count)}" for match, count in found.by_match.items()]
    unmatched = ", ".join(f"{kind} {units.whole(count)}" for kind, count in found.unmatched.items()) or "none"
    return Notes(
        "operations",
        (f"{units.whole(found.operations)}" + (f": {', '.join(parts)}" if parts else ""), f"unmatched: {unmatched}"),
    )
