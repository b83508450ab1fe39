"""Decode steps of real programs, analysed: their split by the exclusive sweep, features, defects and verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from efaprof.analyzers.attribution import decode_split
from efaprof.analyzers.decode import Decode, Host, KindCount, run_facts
from efaprof.analyzers.features import run_features
from efaprof.analyzers.quality import MIN_COVERAGE, failed_tests
from efaprof.analyzers.verdict import decide
from efaprof.trace.layers import Provenance

if TYPE_CHECKING:
    from efaprof.analyzers.profile import Profile
    from efaprof.analyzers.step_costs import StepCosts

LEAST_STEPS = 2  # a step lasts until the next one begins


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens that a decode step accepts."""

    per_sequence: float  # by which the time of a step is divided: what one sequence advances by
    provenance: Provenance
    tokens: float | None  # of all sequences, mean; None: the program did not say
    batch: float | None  # sequences, mean


def tokens_of(step_costs: pl.DataFrame) -> Tokens:
    """Tokens of the decode steps; where not every step says them one token is assumed, and else one sequence."""
    decode = step_costs.filter(pl.col("kind") == "decode")
    means = {name: None if decode[name].has_nulls() else decode[name].mean() for name in ("tokens", "batch")}
    tokens, batch = (float(value) if isinstance(value, float) else None for value in means.values())
    if tokens and batch:
        return Tokens(tokens / batch, Provenance.MEASURED, tokens, batch)
    if tokens:
        return Tokens(tokens, Provenance.ASSUMED, tokens, batch)
    return Tokens(1.0, Provenance.ASSUMED, tokens, batch)


def annotated_decode(costs: StepCosts, host: Host, *, profile: Profile | None = None) -> Decode | None:
    """Analysis of the decode steps; None when there are fewer than two that every rank has."""
    split = decode_split(costs.frame) if _common(costs.frame) >= LEAST_STEPS else None
    if split is None:
        return None
    features = run_features(costs.frame, split.batching, line_rate_bytes_s=host.line_rate_bytes_s, profile=profile)
    if split.coverage < MIN_COVERAGE:
        # What is not compute or launch is communication only where it is known.
        features.pop("communication_share", None)
    failed = failed_tests(run_facts(split, features, host))
    return Decode(
        split=split,
        step_costs=costs.frame,
        latencies=costs.latencies,
        kinds=tuple(KindCount(kind, count, size) for kind, (count, size) in costs.kinds.items()),
        stamped=costs.stamped if costs.stamped is not None else 1.0,
        features=features,
        failed=failed,
        verdict=decide(features, defects=tuple(one.defect.value for one in failed)),
        skew_by=(),
        job={},
        is_upper_bound=True,
        cut_edges=0,
        path_by=None,
        groups=(),
    )


def _common(step_costs: pl.DataFrame) -> int:
    """Decode steps that are there on every rank that has any."""
    decode = step_costs.filter(pl.col("kind") == "decode")
    return int((decode.group_by("step").len()["len"] == decode["rank"].n_unique()).sum())
