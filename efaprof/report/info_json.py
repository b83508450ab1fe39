"""What is known about a run as JSON, schema efaprof.info/1 (efaprof/report/schemas/efaprof.info.1.json)."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from efaprof.report.gpu_times import times_document
from efaprof.trace.layout import HEADER_BYTES, SLOT_BYTES

if TYPE_CHECKING:
    from efaprof.report.info_report import InfoReport
    from efaprof.trace.rawfile import RawFile

SCHEMA = "efaprof.info/1"


def info_document(report: InfoReport) -> dict[str, Any]:
    """The whole report. `unmatched` leaves out what was in flight when the recording ended."""
    manifest, facts = report.run.manifest, report.facts
    run = asdict(manifest)
    del run["schema"], run["warnings"]
    return {
        "schema": SCHEMA,
        "run": {**run, "name": report.run.path.resolve().name, "is_closed": manifest.is_closed},
        "processes": [{"comm": comm, "pid": pid, "producer": producer} for comm, pid, producer in report.processes],
        "threads": report.threads,
        "rings": [_ring(ring) for ring in report.rings],
        "records": facts.records if facts else {},
        "operations": {
            "count": report.outcomes.operations,
            "outcomes": {match.value: count for match, count in report.outcomes.by_match.items()},
        },
        "unmatched": report.outcomes.unmatched,
        "kernel_posted": facts.is_kernel_posted if facts else False,
        "drops": facts.losses.dropped if facts else 0,
        "losses": asdict(facts.losses) if facts else None,
        "clock_error_ns": facts.clock_error_ns if facts else None,
        "gpu_times": times_document(report.gpu_times),
        "length_ns": facts.last_ns - facts.first_ns if facts else None,
        "sizes": {"raw_bytes": report.raw_bytes, "derived_bytes": report.derived_bytes},
        "notes": [asdict(note) for note in facts.notes] if facts else [],
        "warnings": list(report.warnings),
    }


def _ring(ring: RawFile) -> dict[str, Any]:
    identity = ring.identity
    return {
        "file": ring.path.name,
        "host": identity.host,
        "pid": identity.pid,
        "tid": ring.tid,
        "comm": ring.comm,
        "producer": ring.producer,
        "clock": ring.clock.name.lower(),
        "bytes": HEADER_BYTES + (ring.slots - ring.first) * SLOT_BYTES,
        "first_slot": ring.first,
        "dropped": ring.dropped,
        "nested": ring.nested,
        "names_cut": ring.names_cut,
        "failed": ring.failed,
        "cut_bytes": ring.cut_bytes,
    }
