from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest

from efaprof.errors import NothingToAnalyse, TraceError
from efaprof.ingest import synth
from efaprof.ingest.aiperf import read_records
from efaprof.ingest.lines import Quiet
from efaprof.trace.layers import Provenance

REQUESTS = synth.waves([50.0, 52.0, 51.0], concurrency=4, tokens=64)


def read(tmp_path, values, config=None):
    return read_records(synth.write_lines(tmp_path / "profile_export.jsonl", values), config, Quiet())


def test_itl_is_decode_time_over_tokens_less_one(tmp_path):
    cell = read(tmp_path, synth.records(REQUESTS))
    assert cell.requests.itl_ms.tolist() == pytest.approx([50.0] * 4 + [52.0] * 4 + [51.0] * 4)
    assert cell.requests.ttft_ms.tolist() == [160.0] * 12
    assert (cell.key.concurrency, cell.key.isl, cell.key.osl) == (4, 120, 64)
    assert cell.session_ns == synth.EPOCH_NS


def test_rows_are_in_order_of_start_whatever_the_order_of_lines(tmp_path):
    backwards = [synth.aiperf_record(one) for one in reversed(REQUESTS)]
    cell = read(tmp_path, backwards)
    assert (np.diff(cell.requests.start_ns) >= 0).all()
    assert cell.requests.itl_ms[0] == pytest.approx(50.0)


def test_every_record_is_accounted_for(tmp_path):
    lost = synth.aiperf_record(REQUESTS[0])
    del lost["metrics"]["time_to_first_token"]
    single = synth.aiperf_record(synth.Scripted(synth.EPOCH_NS, 160.0, ()))
    backwards = synth.aiperf_record(REQUESTS[0])
    backwards["metrics"]["request_latency"]["value"] = 1.0
    values = [
        *synth.records(REQUESTS),
        synth.aiperf_record(REQUESTS[0], phase="warmup"),
        synth.aiperf_failure(REQUESTS[0]),
        synth.aiperf_failure(REQUESTS[1]),
        synth.aiperf_failure(REQUESTS[2], cancelled=True),
        lost,
        backwards,
        single,
        '{"metadata": {',
        {"something": "else"},
    ]
    counts = read(tmp_path, values).counts
    assert (counts.used, counts.warmup, counts.failed, counts.cancelled) == (12, 1, 2, 1)
    assert (counts.partial, counts.single_token, counts.malformed) == (2, 1, 2)
    named = ("used", "warmup", "failed", "cancelled", "partial", "single_token")
    assert counts.read == sum(getattr(counts, name) for name in named)


def test_malformed_lines_are_named_in_the_warnings(tmp_path):
    cell = read(tmp_path, [synth.aiperf_record(REQUESTS[0]), "{nonsense", synth.aiperf_record(REQUESTS[1])])
    assert "profile_export.jsonl:2" in cell.warnings[0]
    assert cell.counts.used == 2


@pytest.mark.parametrize(("unit", "factor"), [("s", 1e-3), ("us", 1e3), ("ns", 1e6)])
def test_units_are_read_not_assumed(tmp_path, unit, factor):
    values = list(synth.records(REQUESTS))
    for value in values:
        for name in ("time_to_first_token", "request_latency"):
            value["metrics"][name]["value"] *= factor
            value["metrics"][name]["unit"] = unit
    assert read(tmp_path, values).requests.itl_ms[0] == pytest.approx(50.0)


def test_a_time_in_tokens_is_malformed(tmp_path):
    bad = synth.aiperf_record(REQUESTS[0])
    bad["metrics"]["request_latency"]["unit"] = "tokens"
    cell = read(tmp_path, [bad, synth.aiperf_record(REQUESTS[1])])
    assert cell.counts.malformed == 1
    assert "not a unit of time" in cell.warnings[0]


@pytest.mark.parametrize("gaps", [{"value": "x", "unit": "ms"}, {"value": [-1.0], "unit": "ms"}, [1.0], 3])
def test_gaps_that_are_none_make_the_line_malformed(tmp_path, gaps):
    bad = synth.aiperf_record(REQUESTS[0])
    bad["metrics"]["inter_chunk_latency"] = gaps
    assert read(tmp_path, [bad, synth.aiperf_record(REQUESTS[1])]).counts.malformed == 1


def test_concurrency_is_the_configured_one_else_the_most_in_flight(tmp_path):
    config = synth.aiperf_summary(REQUESTS, concurrency=7, start_time="2026-06-23T00:30:37")
    asked, counted = read(tmp_path, synth.records(REQUESTS), config), read(tmp_path, synth.records(REQUESTS))
    assert (asked.key.concurrency, asked.concurrency_provenance) == (7, Provenance.MEASURED)
    assert (counted.key.concurrency, counted.concurrency_provenance) == (4, Provenance.DERIVED)
    assert asked.model == "a-model"


def test_coalesced_chunks_are_found(tmp_path):
    request = synth.Scripted(synth.EPOCH_NS, 160.0, (50.0,) * 20 + (150.0,), {20: 3})
    cell = read(tmp_path, [synth.aiperf_record(request)] * 2)
    assert request.tokens == 24
    assert (cell.chunks.coalesced_chunks, cell.chunks.coalesced_tokens, cell.chunks.unplaced_tokens) == (2, 4, 0)


def test_an_itl_of_another_meaning_is_warned_of(tmp_path):
    odd = synth.aiperf_record(REQUESTS[0])
    odd["metrics"]["inter_token_latency"]["value"] *= 1.5
    assert any("own ITL differs" in text for text in read(tmp_path, [odd]).warnings)


def test_a_cancelled_benchmark_is_warned_of(tmp_path):
    config = synth.aiperf_summary(REQUESTS, concurrency=4, start_time="2026-06-23T00:30:37") | {"was_cancelled": True}
    assert any("cancelled" in text for text in read(tmp_path, synth.records(REQUESTS), config).warnings)


def test_nothing_but_failures_is_nothing_to_analyse(tmp_path):
    with pytest.raises(NothingToAnalyse, match="2 failed"):
        read(tmp_path, [synth.aiperf_failure(REQUESTS[0])] * 2)


def test_nothing_but_broken_lines_is_an_unusable_file(tmp_path):
    with pytest.raises(TraceError, match=r"profile_export\.jsonl:1"):
        read(tmp_path, ["{broken", "{broken"])


def test_memory_grows_with_the_requests_not_with_the_bytes(tmp_path):
    requests = synth.waves([50.0] * 75, concurrency=20)
    path = synth.write_lines(tmp_path / "profile_export.jsonl", synth.records(requests))
    tracemalloc.start()
    read_records(path, None, Quiet())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < path.stat().st_size / 3
    assert peak < 400 * len(requests)


def test_a_record_survives_json_of_any_shape(tmp_path):
    shapes = [
        json.dumps(one) for one in (None, 3, "x", [], {"metadata": 1, "metrics": {}}, {"metadata": {}, "metrics": []})
    ]
    cell = read(tmp_path, [*shapes, synth.aiperf_record(REQUESTS[0])])
    assert (cell.counts.malformed, cell.counts.used) == (6, 1)
