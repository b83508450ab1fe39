"""Several run directories as one job: which of them belong together, and whether their clocks can be compared."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from efaprof.trace.hostclocks import align
from efaprof.trace.marks import read_marks
from efaprof.trace.survey import survey

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from efaprof.trace.hostclocks import Alignment
    from efaprof.trace.manifest import Manifest
    from efaprof.trace.reader import Tables
    from efaprof.trace.rundir import Run
    from efaprof.trace.survey import Survey


def has_marks(runs: Sequence[tuple[Run, Tables]]) -> bool:
    """Every run holds marked steps."""
    return all(tables.facts.records.get("mark") for _, tables in runs)


def job_survey(runs: Sequence[tuple[Run, Tables]]) -> Survey:
    """Survey of all raw files, by one clock."""
    if len(runs) == 1 and (surveyed := runs[0][1].surveyed) is not None:
        return surveyed
    found = host_clocks(runs)
    return found.survey if found is not None else survey(_raw_files(runs))


def host_clocks(runs: Sequence[tuple[Run, Tables]]) -> Alignment | None:
    """How the clocks of the runs' hosts were aligned; None where all are of one host, or it could not be done."""
    found = _aligned(_raw_files(runs)) if _are_of_several_hosts([run.manifest for run, _ in runs]) else None
    return None if isinstance(found, str) else found


@lru_cache(maxsize=1)
def _aligned(paths: tuple[Path, ...]) -> Alignment | str:
    return align(survey(paths))


def _raw_files(runs: Sequence[tuple[Run, Tables]]) -> tuple[Path, ...]:
    return tuple(path for run, _ in runs for path in run.raw_files)


def _are_of_several_hosts(manifests: Sequence[Manifest]) -> bool:
    return len({(one.host, one.boot_id) for one in manifests}) > 1


def why_no_job(runs: Sequence[tuple[Run, Tables]]) -> str | None:
    """Why the steps of these runs cannot be analysed together; None when they can."""
    manifests = [run.manifest for run, _ in runs]
    if len(manifests) == 1:
        return None
    first = manifests[0]
    if any(one.job_id != first.job_id for one in manifests):
        return "they are of several jobs"
    if first.job_id is None and not _overlap(manifests):
        return "they were not recorded at the same time"
    ranks = [marks.rank for run, _ in runs for marks in read_marks(survey(run.raw_files)) if marks.is_first]
    twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    if twice:
        return f"rank {twice[0]} stands in several of them"
    found = _aligned(_raw_files(runs)) if _are_of_several_hosts(manifests) else None
    return f"they are of several hosts: {found}" if isinstance(found, str) else None


def _overlap(manifests: Sequence[Manifest]) -> bool:
    ends = [one.ended_realtime_ns for one in manifests if one.ended_realtime_ns is not None]
    return max(one.started_realtime_ns for one in manifests) <= min(ends, default=0)


def missing_ranks(manifest: Manifest, found: Sequence[int]) -> tuple[int, ...]:
    """Ranks that the run's options ask for and nobody recorded."""
    asked = manifest.fingerprint.get("ranks")
    return tuple(rank for rank in range(asked) if rank not in found) if isinstance(asked, int) else ()
