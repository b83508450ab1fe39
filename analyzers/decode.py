"""Decode steps of a dispatch run: their split into layers, latencies of operations, features, defects, verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from efaprof.analyzers.attribution import DecodeSplit, decode_split
from efaprof.analyzers.features import run_features
from efaprof.analyzers.layers import OPERATION_SPANS, LayerSplitter
from efaprof.analyzers.quality import Failed, RunFacts, failed_tests
from efaprof.analyzers.spread import Spread, add_counts, bucket_counts, spreads
from efaprof.analyzers.verdict import Verdict, decide
from efaprof.trace.layers import Layer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from efaprof.analyzers.rules import Feature
    from efaprof.trace.widerow import DispatchChunk

_STAGES = ("publish_ns", "seen_ns", "call_ns", "return_ns", "done_ns", "told_ns")
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
    line_rate_bytes_s: float | None


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


@dataclass(slots=True)
class _Totals:
    """What accumulates over chunks."""

    splitter: LayerSplitter = field(default_factory=LayerSplitter)
    costs: list[pl.DataFrame] = field(default_factory=list)
    buckets: list[pl.DataFrame] = field(default_factory=list)
    kinds: list[pl.DataFrame] = field(default_factory=list)
    operations: int = 0
    stamped: int = 0

    def add(self, chunk: DispatchChunk) -> None:
        """Count one chunk of steps."""
        self.costs.append(self.splitter.split(chunk))
        steps = chunk.steps.filter(pl.col("kind") == "decode")["step"].unique()
        own = chunk.operations
        if not len(steps):
            return
        if len(steps) < chunk.steps["step"].n_unique():
            own = own.filter(pl.col("step").is_in(steps.implode()))
        self.operations += len(own)
        self.stamped += len(own) - int(own.select(pl.any_horizontal(pl.col(_STAGES).is_null()).sum()).item())
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


def decode(chunks: Iterable[DispatchChunk], host: Host) -> Decode | None:
    """Analysis of the decode steps in these chunks, read once and in order; None when there are none."""
    totals = _Totals()
    for chunk in chunks:
        totals.add(chunk)
    if not totals.costs:
        return None
    costs = pl.concat(totals.costs, how="diagonal").with_columns(pl.selectors.ends_with("_ns").fill_null(0))
    split = decode_split(costs)
    if split is None:
        return None
    features = run_features(costs, split.batching, line_rate_bytes_s=host.line_rate_bytes_s)
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
    )


def _facts(split: DecodeSplit, features: dict[str, Feature], host: Host) -> RunFacts:
    """Delays are measured over the run; that all of them fell into communication is the harder assumption."""
    share = features["communication_share"].value if "communication_share" in features else 1.0

    def of_communication(part: float | None) -> float | None:
        return part / share if part is not None and share > 0 else part

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
