from __future__ import annotations

import numpy as np
import pytest

from efaprof.analyzers.chunks import ChunkStats, Stalls
from efaprof.analyzers.load_points import Unit, load_points
from efaprof.analyzers.serving import Cell, CellKey, Format, RequestCounts, Requests, Summary
from efaprof.trace.layers import Provenance

COUNTS = RequestCounts(read=9, used=8, failed=1)


def cell(wave_means=(50.0, 51.0), *, concurrency=4, source="a", lengths=(120, 128), chunks=None) -> Cell:
    count = len(wave_means)
    start = np.repeat(np.arange(count) * 1_000_000_000, concurrency)
    itl = np.repeat(np.array(wave_means, float), concurrency)
    rows = Requests(itl, np.full(len(itl), 100.0), np.full(len(itl), 101), start, start + 990_000_000)
    summary = Summary(float(itl.mean()), float(itl.std()), len(itl))
    return Cell(
        CellKey(concurrency, *lengths), source, Format.AIPERF_RECORDS, summary, COUNTS, requests=rows, chunks=chunks
    )


def summary(mean, std, requests, *, concurrency=4) -> Cell:
    return Cell(CellKey(concurrency, 120, 128), "s", Format.AIPERF_SUMMARY, Summary(mean, std, requests))


def test_a_summary_has_as_many_clusters_as_waves_would_fit():
    point = load_points([summary(51.9, 0.2434, 41)])[0]
    assert (point.units, point.unit, point.icc) == (11, Unit.ASSUMED_WAVE, 1.0)
    assert point.icc_provenance is Provenance.ASSUMED
    assert point.mean.error == pytest.approx(0.2434 * np.sqrt(41 / 40 / 11))


def test_speed_is_the_mean_of_rates_where_requests_are_known():
    point = load_points([cell((40.0, 60.0))])[0]
    assert point.per_user_tok_s == pytest.approx((1000 / 40 + 1000 / 60) / 2)
    assert point.per_user_tok_s != pytest.approx(1000 / point.mean.value)
    assert load_points([summary(50.0, 1.0, 40)])[0].per_user_provenance is Provenance.DERIVED


def test_cells_of_one_load_are_runs_of_it():
    means = [(50.0, 50.2), (51.0, 51.2), (49.0, 49.2)]
    point = load_points([cell(wave, source=str(number)) for number, wave in enumerate(means)])[0]
    assert (point.unit, point.units, point.runs) == (Unit.RUN, 3, 3)
    assert point.mean.value == pytest.approx(50.1)
    assert point.mean.error == pytest.approx(1.0 / np.sqrt(3))
    assert point.counts == RequestCounts(read=27, used=24, failed=3)


def test_loads_are_in_order_and_lengths_of_two_percent_are_the_same():
    points = load_points(
        [cell(concurrency=32), cell(concurrency=4), cell(concurrency=4, lengths=(121, 128)), cell(lengths=(512, 128))]
    )
    assert [(point.key.concurrency, point.key.isl, point.runs) for point in points] == [
        (4, 120, 2),
        (4, 512, 1),
        (32, 120, 1),
    ]


def test_warm_up_can_be_set_by_hand():
    cells = [cell((90.0, 50.0, 50.0, 50.0, 50.0, 50.0))]
    detected, kept, dropped = (load_points(cells, warmup_waves=count)[0] for count in (None, 0, 2))
    assert (detected.warmup_waves, kept.warmup_waves, dropped.warmup_waves) == (1, 0, 2)
    assert (detected.units, kept.units, dropped.units) == (5, 6, 4)
    assert detected.mean.value == 50.0
    assert kept.mean.value > 56


def test_more_warm_up_than_waves_leaves_one():
    assert load_points([cell((50.0, 51.0))], warmup_waves=9)[0].units == 1


def test_what_stalls_add_is_split_out():
    chunks = ChunkStats(100, 0, 0, 0, 0, 50.0, 50.0, 2, Stalls(1, 2, 1600.0, 0), 0)
    point = load_points([cell((50.0, 51.0), chunks=chunks)])[0]
    assert point.stall_ms_per_token == pytest.approx(1600.0 / (8 * 100))


def test_drifting_waves_are_warned_of():
    point = load_points([cell(np.linspace(50, 52, 12))])[0]
    assert any("too narrow" in warning for warning in point.warnings)


def test_our_own_run_keeps_its_interval():
    own = Cell(CellKey(4), "run", Format.EFAPROF, Summary(12.0, None, 300, lo_itl_ms=11.8, hi_itl_ms=12.2, batches=10))
    point = load_points([own])[0]
    interval = point.mean.interval()
    assert (point.unit, interval.lo, interval.hi) == (Unit.BATCH, pytest.approx(11.8), pytest.approx(12.2))
