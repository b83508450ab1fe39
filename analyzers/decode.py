"""Decode steps of a dispatch run: their split into layers, latencies of operations, features, defects, verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from efaprof.analyzers.attribution import NS_PER_US, DecodeSplit, decode_split
from efaprof.analyzers.by import PathBy
from efaprof.analyzers.counts import step_counts
from efaprof.analyzers.critical import WALKED, CriticalPath
from efaprof.analyzers.features import run_features
from efaprof.analyzers.layers import IS_POSTED, OPERATION_SPANS, LayerSplitter
from efaprof.analyzers.outstanding import step_outstanding
from efaprof.analyzers.quality import Failed, RunFacts, failed_tests
from efaprof.analyzers.replay import STANDARD
from efaprof.analyzers.spread import Spread, add_counts, bucket_counts, spreads
from efaprof.analyzers.stamps import Limits
from efaprof.analyzers.verdict import Verdict, decide
from efaprof.trace.layers import Layer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from efaprof.analyzers.profile import Profile
    from efaprof.analyzers.replay import Change
    from efaprof.analyzers.rules import Feature
    from efaprof.trace.widerow import DispatchChunk

_STAGES = ("publish_ns", "seen_ns", "call_ns", "return_ns", "done_ns", "told_ns")
_POSTED_STAGES = ("publish_ns", "return_ns", "done_ns")
_LACKS_STAGES = (
    pl.when(IS_POSTED)
    .then(pl.any_horizontal(pl.col(_POSTED_STAGES).is_null()))
    .otherwise(pl.any_horizontal(pl.col(_STAGES).is_null()))
)
# The sum of bucket counts is folded now and then, so that it does not grow with the run.
_FOLD = 16


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
    step_costs: pl.DataFrame  # one row per (rank, step), of every kind
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


@dataclass(slots=True)
class _Totals:
    """What accumulates over chunks."""

    critical: CriticalPath
    splitter: LayerSplitter = field(default_factory=LayerSplitter)
    is_walked: bool | None = None  # decided by the first chunk: there are waits
    windows: list[pl.DataFrame] = field(default_factory=list)
    job: list[pl.DataFrame] = field(default_factory=list)
    path_by: PathBy | None = None
    groups: list[pl.DataFrame] = field(default_factory=list)
    costs: list[pl.DataFrame] = field(default_factory=list)
    buckets: list[pl.DataFrame] = field(default_factory=list)
    kinds: list[pl.DataFrame] = field(default_factory=list)
    operations: int = 0
    stamped: int = 0

    def add(self, chunk: DispatchChunk) -> None:
        """Count one chunk of steps."""
        if self.is_walked is None:
            self.is_walked = len(chunk.waits) > 0
        costs = self._walked(chunk) if self.is_walked else self.splitter.split(chunk)
        in_flight = step_outstanding(chunk, self.critical.limits.window)
        in_flight = in_flight.with_columns(pl.col(name).cast(costs.schema[name]) for name in ("rank", "step"))
        self.costs.append(costs.join(in_flight, on=["rank", "step"], how="left", maintain_order="left"))
        steps = chunk.steps.filter(pl.col("kind") == "decode")["step"].unique()
        own = chunk.operations
        if not len(steps):
            return
        if len(steps) < chunk.steps["step"].n_unique():
            own = own.filter(pl.col("step").is_in(steps.implode()))
        self.operations += len(own)
        self.stamped += len(own) - int(own.select(_LACKS_STAGES.sum()).item())
        self.kinds.append(own.group_by("kind").agg(count=pl.len().cast(pl.Int64), bytes=pl.sum("bytes").cast(pl.Int64)))
        spans = own.select(
            **{layer.value: (end - begin).clip(lower_bound=0) for layer, (begin, end) in OPERATION_SPANS.items()}
        )
        self.buckets += [
            bucket_counts(spans.select(pl.lit(layer.value).alias("layer"), ns=layer.value), ["layer"], "ns")
            for layer in OPERATION_SPANS
        ]
        if len(self.buckets) > _FOLD * len(OPERATION_SPANS):
            self.buckets = [add_counts(self.buckets, ["layer"])]

    def _walked(self, chunk: DispatchChunk) -> pl.DataFrame:
        found, windows, job = self.critical.split(chunk)
        decode = chunk.steps.filter(pl.col("kind") == "decode").select(pl.col("rank", "step").cast(pl.Int64))
        windows = windows.join(decode, on=["rank", "step"], how="semi")
        if self.path_by is not None:
            sums = pl.sum("wall_ns", *(f"{layer}_ns" for layer in WALKED))
            grouped = windows.group_by(pl.col(self.path_by.value).alias("key")).agg(sums, windows=pl.len())
            self.groups.append(grouped.with_columns(pl.col("windows").cast(pl.Int64)))
        late = windows.filter(pl.col("late_rank").is_not_null())
        self.windows.append(late.group_by("rank", "late_rank").agg(pl.sum("skew_ns", "true_skew_ns")))
        self.job.append(job.filter(pl.col("step").is_in(decode["step"].unique().implode())))
        counts = step_counts(chunk)
        return counts.join(
            found.with_columns(pl.col(name).cast(counts.schema[name]) for name in ("rank", "step")),
            on=["rank", "step"],
            how="left",
        )


def decode(
    chunks: Iterable[DispatchChunk],
    host: Host,
    *,
    limits: Limits | None = None,
    changes: Sequence[Change] = STANDARD,
    path_by: PathBy | None = None,
    profile: Profile | None = None,
) -> Decode | None:
    """Analysis of the decode steps in these chunks, read once and in order; None when there are none.

    With waits the steps are walked and `changes` replayed under `limits`; without, the exclusive sweep splits them.
    """
    limits = limits or Limits()
    totals = _Totals(CriticalPath(limits, changes), path_by=path_by)
    for chunk in chunks:
        totals.add(chunk)
    if not totals.costs:
        return None
    costs = pl.concat(totals.costs, how="diagonal").with_columns(pl.selectors.ends_with("_ns").fill_null(0))
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
    failed = failed_tests(_facts(split, features, host))
    found = spreads(add_counts(totals.buckets, ["layer"]), ["layer"])
    return Decode(
        split=split,
        step_costs=costs,
        latencies={layer: found[layer.value,] for layer in OPERATION_SPANS if (layer.value,) in found},
        kinds=_kinds(totals.kinds),
        stamped=totals.stamped / totals.operations,
        features=features,
        failed=failed,
        verdict=decide(features, defects=tuple(one.defect.value for one in failed)),
        skew_by=_skew_by(totals.windows, costs),
        job=_job(totals.job),
        is_upper_bound=limits.rate_ops_s is None,
        cut_edges=totals.critical.cut_edges,
        path_by=path_by,
        groups=_groups(totals.groups, path_by, costs),
    )


def _groups(parts: list[pl.DataFrame], by: PathBy | None, costs: pl.DataFrame) -> tuple[PathGroup, ...]:
    if not parts:
        return ()
    rows = len(costs.filter(pl.col("kind") == "decode"))
    # A rank has its steps, a step its ranks; everything else is a part of all of them.
    shares = {PathBy.RANK: costs["rank"].n_unique(), PathBy.STEP: rows / max(costs["rank"].n_unique(), 1)}
    per = rows / (shares.get(by, 1) if by else 1) * NS_PER_US
    total = pl.concat(parts).group_by("key").agg(pl.all().sum())
    in_order = by in {PathBy.STEP, PathBy.LAYER, PathBy.RANK}
    total = total.sort("key", nulls_last=True) if in_order else total.sort("wall_ns", descending=True)
    return tuple(
        PathGroup(
            key=None if row["key"] is None else str(row["key"]),
            windows=row["windows"],
            us=row["wall_ns"] / per,
            layers={layer: row[f"{layer}_ns"] / per for layer in WALKED},
        )
        for row in total.to_dicts()
    )


def _skew_by(parts: list[pl.DataFrame], costs: pl.DataFrame) -> tuple[LateRank, ...]:
    if not parts:
        return ()
    steps = costs.filter(pl.col("kind") == "decode").group_by(pl.col("rank").cast(pl.Int64)).agg(steps=pl.len())
    total = (
        pl.concat(parts)
        .group_by("rank", "late_rank")
        .agg(pl.sum("skew_ns", "true_skew_ns"))
        .join(steps, on="rank")
        .sort("skew_ns", "rank", "late_rank", descending=[True, False, False])
    )
    return tuple(
        LateRank(row["rank"], row["late_rank"], row["skew_ns"] / row["steps"] / NS_PER_US,
                 row["true_skew_ns"] / row["steps"] / NS_PER_US)
        for row in total.to_dicts()
    )  # fmt: skip


def _job(parts: list[pl.DataFrame]) -> dict[Layer, float]:
    whole = pl.concat(parts) if parts else pl.DataFrame()
    if whole.is_empty():
        return {}
    return {layer: float(whole[f"{layer}_ns"].mean()) / NS_PER_US for layer in WALKED if layer is not Layer.SKEW}  # type: ignore[arg-type]


def _facts(split: DecodeSplit, features: dict[str, Feature], host: Host) -> RunFacts:
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


def _kinds(parts: list[pl.DataFrame]) -> tuple[KindCount, ...]:
    total = pl.concat(parts).group_by("kind").agg(pl.sum("count", "bytes")).sort("count", "kind", descending=True)
    return tuple(KindCount(str(kind), int(count), int(size)) for kind, count, size in total.iter_rows())
