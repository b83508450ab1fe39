from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from efaprof.analyzers import chunks
from efaprof.analyzers.chunks import ChunkLog, group_stalls, unfold

STEP = 50.0


def log_of(*requests: tuple[list[float], int], first_token_ns: int | None = 0) -> ChunkLog:
    log = ChunkLog()
    for number, (gaps, tokens) in enumerate(requests):
        log.add(
            request=number,
            first_token_ns=first_token_ns,
            gaps_ms=np.array(gaps),
            tokens=tokens,
            itl_ms=sum(gaps) / (tokens - 1),
        )
    return log


def test_a_twofold_gap_is_unfolded_when_a_token_is_missing():
    assert unfold(np.array([50.0, 100.0, 50.0]), STEP, missing_tokens=1).tolist() == [1, 2, 1]


def test_a_long_gap_stays_one_token_when_none_is_missing():
    assert unfold(np.array([50.0, 500.0, 50.0]), STEP, missing_tokens=0).tolist() == [1, 1, 1]


def test_the_longest_gap_takes_the_missing_tokens_first():
    assert unfold(np.array([100.0, 150.0, 50.0]), STEP, missing_tokens=2).tolist() == [1, 3, 1]


@given(
    folds=st.lists(st.integers(1, 6), min_size=1, max_size=60),
    step=st.floats(0.5, 200),
    extra=st.integers(0, 20),
)
def test_unfolding_never_places_more_than_is_missing(folds, step, extra):
    gaps = np.array(folds) * step
    missing = sum(folds) - len(folds)
    assert unfold(gaps, step, missing).tolist() == folds
    assert unfold(gaps, step, missing + extra).sum() <= sum(folds)
    assert unfold(gaps, step, missing // 2).sum() == len(folds) + missing // 2


def test_percentiles_are_of_unfolded_gaps():
    # Every second chunk holds two tokens: the raw median would say 100 ms.
    gaps = [50.0, 100.0] * 40 + [100.0]
    found = log_of((gaps, 1 + 40 + 2 * 41)).finish()
    assert found is not None
    assert found.p50_ms == pytest.approx(50.0, rel=0.005)
    assert found.p99_ms == pytest.approx(50.0, rel=0.005)
    assert (found.coalesced_chunks, found.coalesced_tokens, found.unplaced_tokens) == (41, 41, 0)


def test_tokens_that_no_gap_explains_are_counted():
    found = log_of(([50.0] * 10, 14)).finish()
    assert found is not None
    assert (found.coalesced_chunks, found.unplaced_tokens) == (0, 3)


def test_chunks_without_a_token_are_counted():
    found = log_of(([50.0] * 10, 10)).finish()
    assert found is not None
    assert (found.surplus_chunks, found.unplaced_tokens, found.coalesced_chunks) == (1, 0, 0)


def test_a_pause_of_two_requests_is_a_stall_and_of_one_a_lone_gap():
    together = [50.0] * 10 + [550.0] + [50.0] * 10
    alone = [50.0] * 3 + [800.0] + [50.0] * 17
    found = log_of((together, 22), (together, 22), (alone, 22)).finish()
    assert found is not None
    assert found.stalls is not None
    assert (found.stalls.events, found.stalls.hits, found.stalls.lone_gaps) == (1, 2, 1)
    assert found.stalls.excess_ms == pytest.approx(2 * 500.0)


def test_two_pauses_apart_are_two_stalls():
    gaps = [50.0] * 5 + [400.0] + [50.0] * 20 + [400.0] + [50.0] * 5
    found = log_of((gaps, 33), (gaps, 33)).finish()
    assert found is not None
    assert found.stalls is not None
    assert found.stalls.events == 2


def test_without_times_long_gaps_are_counted_and_stalls_are_unknown():
    found = log_of(([50.0] * 10 + [500.0], 12), first_token_ns=None).finish()
    assert found is not None
    assert (found.long_gaps, found.stalls) == (1, None)


def test_candidates_beyond_the_limit_are_counted(monkeypatch):
    monkeypatch.setattr(chunks, "MAX_CANDIDATES", 3)
    gaps = ([50.0] * 9 + [500.0]) * 2
    found = log_of(*((gaps, 21) for _ in range(4))).finish()
    assert found is not None
    assert (found.long_gaps, found.candidates_not_kept) == (8, 5)


def test_no_gaps_give_no_statistics():
    assert ChunkLog().finish() is None


def test_one_request_hit_twice_within_a_step_is_no_stall():
    found = group_stalls(np.array([0, 10]), np.array([400.0, 400.0]), np.array([7, 7]), step_ns=50)
    assert (found.events, found.lone_gaps) == (0, 2)
