"""Spread of many durations in bounded memory: counts in narrow buckets, from which percentiles follow.

A bucket holds values that agree in their first 11 significant bits, so a percentile is off by less than 0.05 %; it is
printed as the mean of its bucket, which is exact where values repeat. Counts of parts add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof import native
from efaprof.native_graph import address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_MANTISSA_BITS = 52
_KEPT_BITS = 11
QUANTILES = (0.50, 0.90, 0.99)
ROWS = 1 + (64 << _KEPT_BITS)  # of struct efaprof_spread
_FIRST_BUCKET = 1023 << _KEPT_BITS  # that of 1
_FEW_CELLS = 1 << 22  # up to here buckets are counted in an array, above they are sorted
_HIGHEST = np.iinfo(np.uint32).max


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


def code_counts(code: NDArray[np.uint32], values: NDArray[np.int64]) -> pl.DataFrame:
    """The same for small group numbers: one row per (code, bucket), `max` being exact in a group's last bucket."""
    if not len(code):
        code, values = np.zeros(0, np.uint32), np.zeros(0, np.int64)
    bucket = bucket_of(values)
    lowest = int(bucket.min(initial=_HIGHEST))
    width = int(bucket.max(initial=0)) - lowest + 1 if len(bucket) else 1
    cell = code.astype(np.int64) * width + (bucket - np.uint32(lowest)).astype(np.int64)
    if int(cell.max(initial=0)) < _FEW_CELLS:
        counted = np.bincount(cell)
        found = np.flatnonzero(counted)
        n, total = counted[found], np.bincount(cell, values)[found]
    else:
        found, cell = np.unique(cell, return_inverse=True)
        n, total = np.bincount(cell), np.bincount(cell, values)
    largest = np.zeros(int(code.max(initial=0)) + 1, np.int64)
    np.maximum.at(largest, code, values)
    owner, mean = found // width, np.ceil(total / np.maximum(n, 1)).astype(np.int64)
    is_last = np.append(owner[1:] != owner[:-1], True)[: len(owner)]
    return pl.DataFrame(
        {
            "code": owner.astype(np.uint32),
            "bucket": (found % width + lowest).astype(np.uint32),
            "n": n.astype(np.int64),
            "sum": np.rint(total).astype(np.int64),
            "max": np.where(is_last, largest[owner], mean),
        }
    )


class SpreadTotals:
    """Bucket counts of one kind of duration, added up in place."""

    def __init__(self) -> None:
        self._rows = np.zeros((3, ROWS), np.int64)  # n, sum, max
        self._native = native.ffi().new("struct efaprof_spread *")
        for name, values in zip(("n", "sum", "max"), self._rows, strict=True):
            setattr(self._native, name, address(values, "int64_t *"))

    def add(self, begin: NDArray[np.int64], end: NDArray[np.int64]) -> None:
        """Durations from begin to end, at least 0; where one of them is NO_TIME there is none."""
        begin, end = np.ascontiguousarray(begin), np.ascontiguousarray(end)
        native.library().efaprof_spread_add(
            self._native, address(begin, "int64_t *"), address(end, "int64_t *"), len(begin)
        )

    def counts(self) -> pl.DataFrame:
        """One row per bucket that is not empty: `bucket`, `n`, `sum`, `max`."""
        row = np.flatnonzero(self._rows[0])
        bucket = np.where(row == 0, 0, row - 1 + _FIRST_BUCKET).astype(np.uint32)
        columns = zip(("n", "sum", "max"), self._rows[:, row], strict=True)
        return pl.DataFrame({"bucket": bucket, **dict(columns)})


def add_counts(parts: Sequence[pl.DataFrame], keys: Sequence[str]) -> pl.DataFrame:
    """Bucket counts of all parts together, over fewer keys if so wanted."""
    return pl.concat(parts).group_by(*keys, "bucket").agg(pl.sum("n", "sum"), pl.max("max"))


def spreads(counts: pl.DataFrame, keys: Sequence[str]) -> dict[tuple[object, ...], Spread]:
    """Spread of each group of bucket counts."""
    groups = counts.sort("bucket").group_by(*keys, maintain_order=True)
    return {key: found for key, group in groups if (found := spread_of(group)) is not None}


def spread_of(counts: pl.DataFrame) -> Spread | None:
    """Spread of bucket counts, in order of bucket; None where nothing was counted."""
    if not len(counts):
        return None
    below = np.cumsum(counts["n"].to_numpy())
    mean = np.rint(counts["sum"].to_numpy() / counts["n"].to_numpy())
    total = int(below[-1])
    ranks = [math.ceil(quantile * total) for quantile in QUANTILES]
    p50, p90, p99 = (int(mean[np.searchsorted(below, rank)]) for rank in ranks)
    return Spread(total, int(counts["sum"].sum()), p50, p90, p99, int(counts["max"].to_numpy().max()))
