"""Decode steps of a dispatch run: their split into layers, latencies of operations, features, defects, verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.analyzers.attribution import NS_PER_US, DecodeSplit, decode_split
from efaprof.analyzers.by import PathBy
from efaprof.analyzers.by_step import Costs, DecodeRows
from efaprof.analyzers.critical import WALKED
from efaprof.analyzers.features import run_features
from efaprof.analyzers.quality import Failed, RunFacts, failed_tests
from efaprof.analyzers.replay import STANDARD
from efaprof.analyzers.spread import Spread, spread_of
from efaprof.analyzers.stamps import Limits
from efaprof.analyzers.totals import Asked, Totals, added
from efaprof.analyzers.verdict import Verdict, decide
from efaprof.trace import schema
from efaprof.trace.layers import Layer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from efaprof.analyzers.profile import Profile
    from efaprof.analyzers.replay import Change
    from efaprof.analyzers.rules import Feature
    from efaprof.trace.steptable import StepTable
    from efaprof.trace.widerow import DispatchChunk


ACROSS = (Layer.NIC, Layer.RX, Layer.SKEW)  # from one rank's clock to another's
MOST_ERROR = 0.10  # of the median time in the NIC, up to which these are told apart


@dataclass(frozen=True, slots=True)
class KindCount:
    """Operations of one kind in decode steps, over all ranks."""

    kind: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Host:
    """What was measured beside the operations; None where nothing was."""

    lost: float  # dropped records over records
    unexplained: float  # operations without an explanation over operations
    run_delay: float | None  # worst thread's wait for a core, over the run
    throttled: float | None  # over the run
    line_rate_bytes_s: float | None  # of one rank


@dataclass(frozen=True, slots=True)
class LateRank:
    """For whom a rank waited, mean over its decode steps."""

    rank: int
    late_rank: int
    us: float
    true_us: float  # of it: the late rank computed


@dataclass(frozen=True, slots=True)
class PathGroup:
    """The part of the critical path of decode steps that belongs to one key."""

    key: str | None  # None: after a step's last gate, or a gate that nobody let go
    windows: int  # gates, and stretches after a last gate
    us: float  # a step and rank; of a step or a rank its own mean
    layers: dict[Layer, float]  # µs, which sum to `us`


@dataclass(frozen=True, slots=True)
class Decode:
    """Everything said about the decode steps of a run."""

    split: DecodeSplit
    step_costs: Costs  # one row per (rank, step), of every kind
    latencies: dict[Layer, Spread]  # of one operation in each layer of its path
    kinds: tuple[KindCount, ...]
    stamped: float  # operations with every stage of their path, over operations
    features: dict[str, Feature]
    failed: tuple[Failed, ...]
    verdict: Verdict
    skew_by: tuple[LateRank, ...]  # empty without walks
    job: dict[Layer, float]  # µs a step along the job's critical path: no skew; empty without walks
    is_upper_bound: bool  # what replays save is: the NIC's ceiling is not known
    cut_edges: int  # contradictions among stamps that replays had to leave out
    path_by: PathBy | None
    groups: tuple[PathGroup, ...]  # by `path_by`, the largest first; steps and layers in their order
    is_merged: bool = False  # nic, rx and skew are one layer: the ranks' clocks differ by more than that


def decode(
    chunks: Iterable[DispatchChunk],
    host: Host,
    *,
    limits: Limits | None = None,
    changes: Sequence[Change] = STANDARD,
    path_by: PathBy | None = None,
    profile: Profile | None = None,
    clock_error_ns: float | None = None,
) -> Decode | None:
    """Analysis of the decode steps in these chunks, read once and in order; None when there are none.

    `clock_error_ns`: of times of one rank against those of another, where they are of several hosts.

    With waits the steps are walked and `changes` replayed under `limits`; without, the exclusive sweep splits them.
    """
    totals = gather(chunks, limits or Limits(), changes, path_by)
    return decode_gathered(totals, host, profile=profile, clock_error_ns=clock_error_ns)


def gather(
    chunks: Iterable[DispatchChunk], limits: Limits, changes: Sequence[Change] = STANDARD, path_by: PathBy | None = None
) -> Totals:
    """What `decode` says something about: the chunks walked, or split by the exclusive sweep."""
    totals = Totals(Asked(limits, changes, path_by))
    totals.take(chunks)
    return totals


def decode_gathered(
    totals: Totals, host: Host, *, profile: Profile | None = None, clock_error_ns: float | None = None
) -> Decode | None:
    """As `decode`, of what was gathered."""
    limits, path_by = totals.asked.limits, totals.asked.path_by
    costs = totals.costs
    if not len(costs):
        return None
    latencies = {layer: spread for layer, one in totals.spreads.items() if (spread := spread_of(one.counts()))}
    is_merged = _is_too_coarse(clock_error_ns, latencies.get(Layer.NIC))
    if is_merged:
        _merge(costs)
        latencies = {layer: one for layer, one in latencies.items() if layer not in ACROSS}
    split = decode_split(costs)
    if split is None:
        return None
    features = run_features(
        costs,
        split.batching,
        line_rate_bytes_s=host.line_rate_bytes_s,
        has_ceiling=limits.rate_ops_s is not None,
        profile=profile,
    )
    failed = failed_tests(run_facts(split, features, host))
    return Decode(
        split=split,
        step_costs=costs,
        latencies=latencies,
        kinds=_kinds(totals.kinds),
        stamped=totals.stamped / totals.operations,
        features=features,
        failed=failed,
        verdict=decide(features, defects=tuple(one.defect.value for one in failed)),
        skew_by=() if is_merged else _skew_by(totals.late, costs),
        job=_together(_job(totals)) if is_merged else _job(totals),
        is_upper_bound=limits.rate_ops_s is None,
        cut_edges=totals.cut_edges,
        path_by=path_by,
        groups=_groups(totals.groups, path_by, costs, is_merged=is_merged),
        is_merged=is_merged,
    )


def _groups(parts: list[pl.DataFrame], by: PathBy | None, costs: Costs, *, is_merged: bool) -> tuple[PathGroup, ...]:
    if not parts:
        return ()
    rows, ranks = DecodeRows(costs).count, costs["rank"].n_unique()
    # A rank has its steps, a step its ranks; everything else is a part of all of them.
    shares = {PathBy.RANK: ranks, PathBy.STEP: rows / max(ranks, 1)}
    per = rows / (shares.get(by, 1) if by else 1) * NS_PER_US
    total = added(parts, ["key"])
    in_order = by in {PathBy.STEP, PathBy.LAYER, PathBy.RANK}
    total = total.sort("key", nulls_last=True) if in_order else total.sort("wall_ns", descending=True)
    return tuple(
        PathGroup(
            key=None if row["key"] is None else str(row["key"]),
            windows=row["windows"],
            us=row["wall_ns"] / per,
            layers=_together(layers) if is_merged else layers,
        )
        for row in total.to_dicts()
        for layers in [{layer: row[f"{layer}_ns"] / per for layer in WALKED}]
    )


def _is_too_coarse(clock_error_ns: float | None, nic: Spread | None) -> bool:
    return clock_error_ns is not None and nic is not None and clock_error_ns > MOST_ERROR * nic.p50_ns


def _merge(costs: StepTable) -> None:
    """One layer for what only both hosts' clocks together could tell apart; what is said of each of its parts goes."""
    said = [f"{layer}{what}" for layer in ACROSS for what in ("_overlapped_ns", "_recoverable_ns", "_walked")]
    costs.merge(f"{Layer.NIC_SKEW}_ns", [f"{layer}_ns" for layer in ACROSS], hidden=[*said, "true_skew_ns"])


def _together(layers: dict[Layer, float]) -> dict[Layer, float]:
    """The same of layers that were added up already."""
    across = sum(us for layer, us in layers.items() if layer in ACROSS)
    return {layer: us for layer, us in layers.items() if layer not in ACROSS} | {Layer.NIC_SKEW: across}


def _skew_by(parts: list[pl.DataFrame], costs: Costs) -> tuple[LateRank, ...]:
    if not parts:
        return ()
    ranks = pl.DataFrame({"rank": DecodeRows(costs)["rank"].astype(np.int64)})
    steps = ranks.group_by("rank").agg(steps=pl.len())
    total = (
        added(parts, ["rank", "late_rank"])
        .join(steps, on="rank")
        .sort("skew_ns", "rank", "late_rank", descending=[True, False, False])
    )
    return tuple(
        LateRank(row["rank"], row["late_rank"], row["skew_ns"] / row["steps"] / NS_PER_US,
                 row["true_skew_ns"] / row["steps"] / NS_PER_US)
        for row in total.to_dicts()
    )  # fmt: skip


def _job(totals: Totals) -> dict[Layer, float]:
    steps = totals.job_steps * NS_PER_US
    return {layer: ns / steps for layer, ns in totals.job.items() if layer is not Layer.SKEW} if steps else {}


def run_facts(split: DecodeSplit, features: dict[str, Feature], host: Host) -> RunFacts:
    """Delays are measured over the run; that all of them fell into communication is the harder assumption."""
    share = features["communication_share"].value if "communication_share" in features else 1.0

    def of_communication(part: float | None) -> float | None:
        return min(part / share, 1.0) if part is not None and share > 0 else part

    return RunFacts(
        coverage=split.coverage,
        batching=split.batching,
        drift=split.drift,
        lost=host.lost,
        unexplained=host.unexplained,
        run_delay=of_communication(host.run_delay),
        throttled=of_communication(host.throttled),
    )


def _kinds(counted: NDArray[np.int64]) -> tuple[KindCount, ...]:
    """Those that there are, the most frequent first."""
    rows = zip(schema.CommandKind.categories.to_list(), *counted.tolist(), strict=True)
    found = [KindCount(kind, count, size) for kind, count, size in rows if count]
    return tuple(sorted(found, key=lambda one: (one.count, one.kind), reverse=True))
