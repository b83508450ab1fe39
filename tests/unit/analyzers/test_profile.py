"""Ceilings from loops: a rate is one only where the issuer waited."""

from __future__ import annotations

from dataclasses import replace

import pytest

from efaprof.analyzers.profile import LoopRow, profile_of
from efaprof.errors import NothingToAnalyse

SECOND = 1_000_000_000


def loop(size, window, operations_s, idle):
    return LoopRow(size, window, operations_s, SECOND, round(idle * SECOND))


ROWS = [
    loop(64, 1, 50_000, 0.9),
    loop(64, 64, 400_000, 0.5),
    loop(65_536, 1, 20_000, 0.9),
    loop(65_536, 64, 90_000, 0.1),
]


def test_the_largest_rates_are_found_and_only_one_with_a_waiting_issuer_is_a_ceiling():
    found = profile_of(ROWS, {"provider": "tcp"})
    assert (found.rate_ops_s.value, found.rate_ops_s.is_ceiling) == (400_000, True)
    assert (found.peak_bytes_s.value, found.peak_bytes_s.is_ceiling) == (90_000 * 65_536, False)
    assert found.latency_us == 20
    assert found.fabric.gap_us == pytest.approx(2.5)


def test_several_threads_may_reach_more_and_latency_is_of_one_alone():
    together = replace(loop(64, 64, 900_000, 0.4), threads=4)
    busy_pair = replace(loop(64, 1, 90_000, 0.9), threads=2)
    found = profile_of([*ROWS, together, busy_pair], {"provider": "tcp"})
    assert (found.rate_ops_s.value, found.rate_ops_s.is_ceiling) == (900_000, True)
    assert found.latency_us == 20


def test_loops_that_completed_nothing_are_no_profile():
    with pytest.raises(NothingToAnalyse, match="no write completed"):
        profile_of([LoopRow(64, 1, 0, SECOND, SECOND)], {})
