from __future__ import annotations

import pytest

from efaprof.analyzers.serving import Format
from efaprof.errors import NothingToAnalyse
from efaprof.ingest import synth
from efaprof.ingest.bench_serving import is_result, read_result
from efaprof.ingest.times import unix_ns
from efaprof.trace.layers import Provenance

REQUESTS = synth.waves([50.0, 52.0, 51.0], concurrency=4, tokens=64)
DATE = "20260623-003200"


def vllm(**changes):
    return synth.vllm_result(REQUESTS, concurrency=4, date=DATE) | changes


def test_a_detailed_vllm_result_gives_requests_with_times():
    cell = read_result("x.json", vllm())
    assert cell.format is Format.VLLM
    assert cell.requests.itl_ms.tolist() == pytest.approx([50.0] * 4 + [52.0] * 4 + [51.0] * 4)
    assert cell.requests.start_ns is not None
    assert (cell.key.concurrency, cell.key.isl, cell.key.osl) == (4, 120, 64)
    assert cell.warnings == ()


def test_the_session_starts_a_run_before_its_date():
    value = vllm()
    assert read_result("x.json", value).session_ns == unix_ns(DATE) - int(value["duration"] * 1e9)


def test_latencies_are_used_where_the_tool_writes_them():
    value = vllm(latencies=[0.160 + 63 * 0.040] * 12)
    cell = read_result("x.json", value)
    assert cell.requests.itl_ms[0] == pytest.approx(40.0)
    assert any("mean_tpot_ms" in text for text in cell.warnings)


def test_a_vllm_result_without_detail_is_a_summary():
    cell = read_result("x.json", synth.vllm_result(REQUESTS, concurrency=4, date=DATE, is_detailed=False, failed=2))
    assert cell.requests is None
    assert cell.summary.mean_itl_ms == pytest.approx(51.0)
    assert cell.summary.std_itl_ms == pytest.approx((2 / 3) ** 0.5)
    assert (cell.counts.used, cell.counts.failed, cell.key.osl) == (12, 2, 64)


def test_failed_requests_of_a_detailed_result_are_counted():
    cell = read_result("x.json", synth.vllm_result(REQUESTS, concurrency=4, date=DATE, failed=3))
    assert (cell.counts.used, cell.counts.failed, cell.counts.read) == (12, 3, 15)


def test_sglang_has_no_times_and_waves_follow_submission():
    cell = read_result("x.jsonl:1", synth.sglang_result(REQUESTS, concurrency=4))
    assert cell.format is Format.SGLANG
    assert (cell.requests.start_ns, cell.session_ns) == (None, None)
    assert cell.summary.mean_itl_ms == pytest.approx(51.0)


def test_concurrency_falls_back_to_what_was_in_flight_then_to_littles_law():
    counted = read_result("x", vllm(max_concurrency=None))
    assert (counted.key.concurrency, counted.concurrency_provenance) == (4, Provenance.DERIVED)
    summed = synth.sglang_result(REQUESTS, concurrency=None, is_detailed=False)
    assert read_result("x", summed).key.concurrency == 4
    assert read_result("x", summed | {"concurrency": 6.4}).key.concurrency == 6
    del summed["mean_e2el_ms"]
    with pytest.raises(NothingToAnalyse, match="concurrency"):
        read_result("x", summed)


def test_lists_of_unequal_length_do_not_break_reading():
    cell = read_result("x", vllm(ttfts=[0.16], itls=[[0.05] * 63], input_lens=[1], start_times=[]))
    assert (cell.counts.used, cell.counts.partial) == (1, 11)


def test_a_run_in_which_nothing_completed_is_refused():
    with pytest.raises(NothingToAnalyse, match="0 completed"):
        read_result("x", {"completed": 0, "mean_tpot_ms": 0.0, "max_concurrency": 4})


@pytest.mark.parametrize("value", [None, 3, [], {}, {"completed": 3}, {"mean_tpot_ms": 3}])
def test_other_objects_are_no_result(value):
    assert not is_result(value)
