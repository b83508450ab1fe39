from __future__ import annotations

from efaprof.ingest.requests import RequestLog


def log_of(*starts_ms: float, latency_ms: float = 100.0) -> RequestLog:
    log = RequestLog()
    for start in starts_ms:
        log.add(ttft_ms=10.0, latency_ms=latency_ms, tokens=10, prompt=None, start_ns=round(start * 1e6), gaps_ms=None)
    return log


def test_a_request_that_starts_as_another_ends_takes_its_slot():
    assert log_of(0, 0, 100, 100, 200).most_in_flight() == 2


def test_the_most_in_flight_is_counted():
    assert log_of(0, 10, 50, 120).most_in_flight() == 3


def test_without_starts_nothing_is_said_of_what_was_in_flight():
    log = log_of(0, 10)
    log.add(ttft_ms=10.0, latency_ms=100.0, tokens=10, prompt=None, start_ns=None, gaps_ms=None)
    assert log.most_in_flight() is None
    assert log.requests().start_ns is None
    assert log.mean_prompt() is None
