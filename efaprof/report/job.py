"""Several run directories as one job: which of them belong together, and whether their clocks can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from efaprof.trace.marks import read_marks
from efaprof.trace.survey import survey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from efaprof.trace.manifest import Manifest
    from efaprof.trace.reader import Tables
    from efaprof.trace.rundir import Run
    from efaprof.trace.survey import Survey


def has_marks(runs: Sequence[tuple[Run, Tables]]) -> bool:
    """Every run holds marked steps."""
    return all(tables.facts.records.get("mark") for _, tables in runs)


def job_survey(runs: Sequence[tuple[Run, Tables]]) -> Survey:
    """Survey of all raw files."""
    if len(runs) == 1 and (surveyed := runs[0][1].surveyed) is not None:
        return surveyed
    return survey([path for run, _ in runs for path in run.raw_files])


def why_no_job(runs: Sequence[tuple[Run, Tables]]) -> str | None:
    """Why the steps of these runs cannot be analysed together; None when they can."""
    manifests = [run.manifest for run, _ in runs]
    if len(manifests) == 1:
        return None
    first = manifests[0]
    if any((one.host, one.boot_id) != (first.host, first.boot_id) for one in manifests):
        return "they are of several hosts, whose clocks are not aligned"
    if any(one.job_id != first.job_id for one in manifests):
        return "they are of several jobs"
    if first.job_id is None and not _overlap(manifests):
        return "they were not recorded at the same time"
    ranks = [marks.rank for run, _ in runs for marks in read_marks(survey(run.raw_files))]
    twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    if twice:
        return f"rank {twice[0]} stands in several of them"
    return None


def _overlap(manifests: Sequence[Manifest]) -> bool:
    ends = [one.ended_realtime_ns for one in manifests if one.ended_realtime_ns is not None]
    return max(one.started_realtime_ns for one in manifests) <= min(ends, default=0)


def missing_ranks(manifest: Manifest, found: Sequence[int]) -> tuple[int, ...]:
    """Ranks that the run's options ask for and nobody recorded."""
    asked = manifest.fingerprint.get("ranks")
    return tuple(rank for rank in range(asked) if rank not in found) if isinstance(asked, int) else ()
