"""The decode section of an attribution report: the analysis of a run's steps, and what was predicted for them."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.analyzers.by_step import DecodeRows
from efaprof.analyzers.decode import Decode, Host, decode_gathered, gather
from efaprof.analyzers.nic import devices_of
from efaprof.analyzers.replay import STANDARD
from efaprof.analyzers.stamps import Limits
from efaprof.errors import NothingToAnalyse
from efaprof.instrument.dispatch import DispatchOptions
from efaprof.native_wide import give_back_memory, keep_memory
from efaprof.report.job import has_marks, host_clocks, job_survey, missing_ranks, why_no_job
from efaprof.trace import dispatch
from efaprof.trace.marks import read_marks
from efaprof.trace.postings import read_postings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from efaprof.analyzers.annotated import Tokens
    from efaprof.analyzers.by import PathBy
    from efaprof.analyzers.profile import Profile
    from efaprof.analyzers.recorded import Recorded
    from efaprof.analyzers.replay import Change
    from efaprof.analyzers.steps import FoundSteps
    from efaprof.trace.postings import PostTotals
    from efaprof.trace.reader import Tables
    from efaprof.trace.rundir import Run
    from efaprof.trace.steptable import StepTable

COSTS_NAME = "steps.parquet"  # derived: one row per (rank, step)
VERIFIED = "verify.tokens"
MISMATCHED = "verify.mismatches"
_QUEUES = "queues: "
_OVER = 1.1  # of a calibrated ceiling: calibration and run never meet the same machine twice


@dataclass(frozen=True, slots=True)
class HostClocks:
    """How the clocks of the ranks' hosts were put side by side: by the hulls of the messages between them."""

    hosts: int
    error_ns: float  # of a time on one host against one on another
    drift: float  # the largest, ns per ns


@dataclass(frozen=True, slots=True)
class DecodeSection:
    """Decode steps of one job."""

    decode: Decode
    predicted_per_step: float | None  # operations a step and rank, from the run's options
    verified_tokens: int  # compared with a reference computed another way
    mismatches: int
    missing_ranks: tuple[int, ...]  # of the job, recorded by nobody
    found: FoundSteps | None = None  # how the steps of a program without marks were found
    tokens: Tokens | None = None  # that its steps accept
    postings: PostTotals | None = None  # where kernels posted by themselves
    clocks: HostClocks | None = None  # of ranks on several hosts
    proxies: int = 1  # of each rank

    @property
    def is_verified(self) -> bool:
        """Payloads were compared with a reference, and none differed."""
        return self.verified_tokens > 0 and self.mismatches == 0


def decode_section(
    runs: Sequence[tuple[Run, Tables]],
    recorded: Recorded,
    *,
    changes: Sequence[Change] = STANDARD,
    path_by: PathBy | None = None,
    profile: Profile | None = None,
) -> DecodeSection | None:
    """Section for the runs of one job that have marked decode steps, else None.

    The step costs of a single run are kept beside its tables.
    """
    if not has_marks(runs) or why_no_job(runs) is not None:
        return None
    run, tables = runs[0]
    job = job_survey(runs)
    rings = Counter(marks.rank for marks in read_marks(job))
    host = host_facts([one for _, one in runs], recorded, ranks=len(rings))
    if profile is not None:
        _check_profile(run, profile)
    limits = _limits(run, host, profile)
    give_back_memory()
    keep_memory()
    clocks = host_clocks(runs)
    totals = gather(dispatch.chunks(job), limits, changes, path_by)
    give_back_memory()  # of chunks; what follows has its own
    error_ns = clocks.error_ns if clocks is not None else None
    with _kept(totals.costs, tables.folder / COSTS_NAME if len(runs) == 1 else None):
        found = decode_gathered(totals, host, profile=profile, clock_error_ns=error_ns)
    if found is None:
        (tables.folder / COSTS_NAME).unlink(missing_ok=True)
        return None
    _check_rate(found, profile)
    return DecodeSection(
        decode=found,
        predicted_per_step=_predicted(run, found),
        verified_tokens=sum(_last_values(one, VERIFIED) for _, one in runs),
        mismatches=sum(_last_values(one, MISMATCHED) for _, one in runs),
        missing_ranks=missing_ranks(run.manifest, found.split.ranks),
        postings=read_postings(job),
        proxies=max(rings.values()),
        clocks=None if clocks is None else HostClocks(clocks.hosts, clocks.error_ns, clocks.drift),
    )


@contextmanager
def _kept(costs: StepTable, path: Path | None) -> Iterator[None]:
    """Costs of steps are written while they are looked at; TraceError where that failed."""
    if path is None or not len(costs):
        yield
        return
    with ThreadPoolExecutor(1, "keep steps") as pool:
        written = pool.submit(costs.write_parquet, path)
        yield
        written.result()


def host_facts(tables: Sequence[Tables], recorded: Recorded, *, ranks: int) -> Host:
    """What was measured beside the operations of these ranks."""
    records = sum(sum(one.facts.records.values()) for one in tables)
    dropped = sum(one.facts.losses.dropped for one in tables)
    moved = recorded.movement
    # Of all NICs that these ranks share out among them.
    line = (moved.line_rate_bytes_s if moved else None) or _posted_line_rate(tables)
    return Host(
        lost=dropped / (records + dropped) if records + dropped else 0.0,
        unexplained=sum(recorded.unexplained.values()) / recorded.count if recorded.count else 0.0,
        run_delay=recorded.host.run_delay,
        throttled=recorded.host.throttled,
        line_rate_bytes_s=line / ranks if line is not None and ranks else None,
    )


def _posted_line_rate(tables: Sequence[Tables]) -> int | None:
    """Rate of the NICs to which kernels posted by themselves: no libfabric object names them, notes of the run do."""
    notes = [note.text for one in tables for note in one.facts.notes if note.text.startswith(_QUEUES)]
    names = {text.rpartition(" on ")[2] for text in notes}
    rates = {device.name: device.line_rate_bytes_s for one in tables for device in devices_of(one.counters)}
    found = [rate for name in names if (rate := rates.get(name)) is not None]
    return sum(found) if found and len(found) == len(names) else None


def _check_profile(run: Run, profile: Profile) -> None:
    """A profile is of the fabric that the run used, or it says nothing about it."""
    manifest = run.manifest
    used = str(manifest.fingerprint.get("provider"))
    measured = str(profile.fingerprint.get("provider"))
    if used != measured:
        raise NothingToAnalyse(
            f"the profile is of provider {measured}, the run used {used}",
            hint=f"efaprof calibrate --provider {used}",
        )
    devices = [label for label in manifest.emulated if label.startswith("device:")]
    if devices != list(profile.emulated):
        words = "; ".join(profile.emulated) or "nothing emulated", "; ".join(devices) or "nothing emulated"
        raise NothingToAnalyse(
            f"the profile is of {words[0]}, the run of {words[1]}", hint="calibrate on what the run used"
        )


def _check_rate(found: Decode, profile: Profile | None) -> None:
    """More than the ceiling was done: then it is none, and nothing that rests on it holds."""
    rate = found.features.get("message_rate")
    if profile is not None and profile.rate_ops_s.is_ceiling and rate is not None and rate.lo > _OVER:
        raise NothingToAnalyse(
            f"the run did {rate.value:.2f} times the operations per second that the profile calls the ceiling",
            hint="calibrate again, with the machine as quiet as in the run",
        )


def _limits(run: Run, host: Host, profile: Profile | None) -> Limits:
    """What bounded the operations of this run, as far as it is known."""
    options = DispatchOptions.from_fingerprint(run.manifest.fingerprint)
    return Limits(
        ring=options.ring if options and not options.is_posted else None,
        window=options.window if options else None,
        rate_ops_s=profile.rate_ops_s.value if profile is not None and profile.rate_ops_s.is_ceiling else None,
        line_rate_bytes_s=host.line_rate_bytes_s,
    )


def _predicted(run: Run, found: Decode) -> float | None:
    """Operations that the run's own options ask for, mean over its decode steps and ranks."""
    options = DispatchOptions.from_fingerprint(run.manifest.fingerprint)
    if options is None:
        return None
    steps = np.unique(DecodeRows(found.step_costs)["step"]).tolist()
    totals = [counts.total for step in steps for counts in options.step_counts(step)]
    return sum(totals) / len(totals)


def _last_values(tables: Tables, name: str) -> int:
    """Last value of a counter in each process, added up."""
    last = (
        tables.counters.filter(pl.col("name").cast(pl.String) == name)
        .group_by("process")
        .agg(pl.col("value").sort_by("time_ns").last())
        .collect()
    )
    return int(last["value"].sum())
