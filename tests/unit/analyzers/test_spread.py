"""Percentiles from bucket counts."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from efaprof.analyzers.spread import SpreadTotals, add_counts, bucket_counts, bucket_of, code_counts, spreads

DURATIONS = st.lists(st.integers(0, 2**40), min_size=1, max_size=200)


def spread_of(parts):
    frames = [
        pl.DataFrame({"k": ["a"] * len(part), "ns": part}, schema={"k": pl.String, "ns": pl.Int64}) for part in parts
    ]
    return spreads(add_counts([bucket_counts(frame, ["k"], "ns") for frame in frames], ["k"]), ["k"])["a",]


@given(DURATIONS)
def test_percentiles_are_nearest_rank_within_a_bucket_and_sums_exact(values):
    found = spread_of([values])
    ordered = sorted(values)
    assert (found.n, found.sum_ns, found.max_ns) == (len(values), sum(values), ordered[-1])
    for quantile, got in ((0.5, found.p50_ns), (0.9, found.p90_ns), (0.99, found.p99_ns)):
        exact = ordered[math.ceil(quantile * len(values)) - 1]
        assert abs(got - exact) <= exact * 2**-11 + 1


@given(DURATIONS, st.integers(0, 200))
def test_parts_add_up_to_the_whole(values, cut):
    assert spread_of([values[:cut] or values[:1], values[cut:]] if 0 < cut < len(values) else [values]) == spread_of(
        [values]
    )


def test_buckets_keep_the_order_of_durations():
    values = np.unique(np.concatenate([np.arange(5000), np.geomspace(1, 2**60, 5000).astype(np.int64)]))
    assert (np.diff(bucket_of(values).astype(np.int64)) >= 0).all()


def test_repeated_values_are_printed_exactly():
    found = spread_of([[1_000_003] * 99 + [5]])
    assert (found.p50_ns, found.p99_ns) == (1_000_003, 1_000_003)


def test_nulls_are_left_out():
    frame = pl.DataFrame({"k": ["a", "a"], "ns": [7, None]})
    assert spreads(bucket_counts(frame, ["k"], "ns"), ["k"])["a",].n == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**40)), min_size=1, max_size=200))
def test_counts_by_number_are_those_by_name(rows):
    frame = pl.DataFrame(rows, schema={"code": pl.UInt32, "ns": pl.Int64}, orient="row")
    by_name = spreads(bucket_counts(frame, ["code"], "ns"), ["code"])
    by_number = spreads(code_counts(frame["code"].to_numpy(), frame["ns"].to_numpy()), ["code"])
    assert by_name == by_number


@given(st.lists(st.integers(0, 2**62), max_size=200), st.integers(-(2**40), 2**40))
def test_counts_kept_in_place_are_those_of_the_table(values, begin):
    totals, ns = SpreadTotals(), np.array(values, np.int64)
    began = np.full(len(ns), begin)
    for part in (slice(0, 7), slice(7, None)):
        totals.add(began[part], (began + ns)[part])
    frame = pl.DataFrame({"k": ["a"] * len(ns), "ns": ns}, schema={"k": pl.String, "ns": pl.Int64})
    expected = bucket_counts(frame, ["k"], "ns").drop("k").sort("bucket")
    assert totals.counts().to_dicts() == expected.select("bucket", "n", "sum", "max").to_dicts()


def test_what_ended_early_counts_as_nothing_and_what_has_no_time_not_at_all():
    totals, none = SpreadTotals(), np.iinfo(np.int64).min
    totals.add(np.array([10, none, 10, 10]), np.array([7, 20, none, 12]))
    assert totals.counts().select("n", "sum", "max").rows() == [(1, 0, 0), (1, 2, 2)]
