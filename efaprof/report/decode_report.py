"""The decode section of an attribution report: the analysis of a run's steps, and what was predicted for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from efaprof.analyzers.decode import Decode, Host, decode
from efaprof.analyzers.replay import STANDARD
from efaprof.analyzers.stamps import Limits
from efaprof.instrument.dispatch import DispatchOptions
from efaprof.trace import dispatch
from efaprof.trace.survey import survey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from efaprof.analyzers.by import PathBy
    from efaprof.analyzers.recorded import Recorded
    from efaprof.analyzers.replay import Change
    from efaprof.trace.reader import Tables
    from efaprof.trace.rundir import Run

COSTS_NAME = "steps.parquet"  # derived: one row per (rank, step)
VERIFIED = "verify.tokens"
MISMATCHED = "verify.mismatches"


@dataclass(frozen=True, slots=True)
class DecodeSection:
    """Decode steps of one run."""

    decode: Decode
    predicted_per_step: float | None  # operations a step and rank, from the run's options
    verified_tokens: int  # compared with a reference computed another way
    mismatches: int

    @property
    def is_verified(self) -> bool:
        """Payloads were compared with a reference, and none differed."""
        return self.verified_tokens > 0 and self.mismatches == 0


def decode_section(
    run: Run,
    tables: Tables,
    recorded: Recorded,
    *,
    changes: Sequence[Change] = STANDARD,
    path_by: PathBy | None = None,
) -> DecodeSection | None:
    """Section for a run that has marked decode steps, else None; keeps the step costs beside the run's tables."""
    if not tables.facts.records.get("mark"):
        return None
    host = _host(tables, recorded)
    found = decode(
        dispatch.chunks(survey(run.raw_files)), host, limits=_limits(run, host), changes=changes, path_by=path_by
    )
    if found is None:
        return None
    found.step_costs.write_parquet(tables.folder / COSTS_NAME)
    return DecodeSection(
        decode=found,
        predicted_per_step=_predicted(run, found),
        verified_tokens=_last_values(tables, VERIFIED),
        mismatches=_last_values(tables, MISMATCHED),
    )


def _host(tables: Tables, recorded: Recorded) -> Host:
    records = sum(tables.facts.records.values())
    dropped = tables.facts.losses.dropped
    moved = recorded.movement
    return Host(
        lost=dropped / (records + dropped) if records + dropped else 0.0,
        unexplained=sum(recorded.unexplained.values()) / recorded.count if recorded.count else 0.0,
        run_delay=recorded.host.run_delay,
        throttled=recorded.host.throttled,
        line_rate_bytes_s=moved.line_rate_bytes_s if moved else None,
    )


def _limits(run: Run, host: Host) -> Limits:
    """What bounded the operations of this run, as far as it is known."""
    options = DispatchOptions.from_fingerprint(run.manifest.fingerprint)
    return Limits(
        ring=options.ring if options else None,
        window=options.window if options else None,
        line_rate_bytes_s=host.line_rate_bytes_s,
    )


def _predicted(run: Run, found: Decode) -> float | None:
    """Operations that the run's own options ask for, mean over its decode steps and ranks."""
    options = DispatchOptions.from_fingerprint(run.manifest.fingerprint)
    if options is None:
        return None
    steps = found.step_costs.filter(pl.col("kind") == "decode")["step"].unique().to_list()
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
