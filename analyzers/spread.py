"""Spread of many durations in bounded memory: counts in narrow buckets, from which percentiles follow.

A bucket holds values that agree in their first 11 significant bits, so a percentile is off by less than 0.05 %; it is
printed as the largest value of its bucket, which is exact where values repeat. Counts of parts add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_MANTISSA_BITS = 52
_KEPT_BITS = 11
QUANTILES = (0.50, 0.90, 0.99)


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles (nearest rank), sum and extremes of durations, in nanoseconds."""

    n: int
    sum_ns: int
    p50_ns: int
    p90_ns: int
    p99_ns: int
    max_ns: int

    @property
    def mean_ns(self) -> float:
        """Arithmetic mean."""
        return self.sum_ns / self.n


def bucket_of(values: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Bucket of each duration (at least 0): exponent and leading bits of its floating-point form."""
    bits = values.astype(np.float64).view(np.uint64) >> np.uint64(_MANTISSA_BITS - _KEPT_BITS)
    return bits.astype(np.uint32)


def bucket_counts(chunk: pl.DataFrame, keys: Sequence[str], column: str) -> pl.DataFrame:
    """One row per (keys, bucket) of a duration column: `n`, `sum`, `max`. Nulls are left out."""
    filled = chunk.filter(pl.col(column).is_not_null()) if chunk[column].null_count() else chunk
    bucket = pl.Series("bucket", bucket_of(filled[column].to_numpy()))
    return (
        filled.select(*keys, column)
        .with_columns(bucket)
        .group_by(*keys, "bucket")
        .agg(n=pl.len().cast(pl.Int64), sum=pl.col(column).sum(), max=pl.col(column).max())
    )


def add_counts(parts: Sequence[pl.DataFrame], keys: Sequence[str]) -> pl.DataFrame:
    """Bucket counts of all parts together, over fewer keys if so wanted."""
    return pl.concat(parts).group_by(*keys, "bucket").agg(pl.sum("n", "sum"), pl.max("max"))


def spreads(counts: pl.DataFrame, keys: Sequence[str]) -> dict[tuple[object, ...], Spread]:
    """Spread of each group of bucket counts."""
    found: dict[tuple[object, ...], Spread] = {}
    for key, group in counts.sort("bucket").group_by(*keys, maintain_order=True):
        below = np.cumsum(group["n"].to_numpy())
        largest = group["max"].to_numpy()
        total = int(below[-1])
        ranks = [math.ceil(quantile * total) for quantile in QUANTILES]
        p50, p90, p99 = (int(largest[np.searchsorted(below, rank)]) for rank in ranks)
        found[key] = Spread(total, int(group["sum"].sum()), p50, p90, p99, int(largest.max()))
    return found
