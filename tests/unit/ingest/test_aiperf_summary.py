from __future__ import annotations

import pytest

from efaprof.errors import NothingToAnalyse, TraceError
from efaprof.ingest import synth
from efaprof.ingest.aiperf_summary import configured_concurrency, read_csv, read_summary
from efaprof.trace.layers import Provenance

REQUESTS = synth.waves([50.0, 52.0, 51.0], concurrency=4, tokens=64)
START = "2026-06-23T00:30:37.665045"


def summary(**changes):
    return synth.aiperf_summary(REQUESTS, concurrency=4, start_time=START) | changes


def test_the_summary_gives_mean_spread_and_cell(tmp_path):
    cell = read_summary(tmp_path / "x.json", summary())
    assert cell.summary.mean_itl_ms == pytest.approx(51.0)
    assert cell.summary.std_itl_ms == pytest.approx((2 / 3) ** 0.5)
    assert cell.summary.per_user_tok_s == pytest.approx((1000 / 50 + 1000 / 52 + 1000 / 51) / 3)
    assert (cell.key.concurrency, cell.key.isl, cell.key.osl) == (4, 120, 64)
    assert (cell.counts.read, cell.counts.used, cell.counts.failed) == (12, 12, 0)


def test_an_absent_error_count_is_zero_and_a_present_one_counts(tmp_path):
    errors = synth.aiperf_summary(REQUESTS, concurrency=4, start_time=START, errors=3)
    cell = read_summary(tmp_path / "x.json", errors)
    assert (cell.counts.read, cell.counts.failed) == (15, 3)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {
                "input_config": {
                    "phases": [{"name": "warmup", "concurrency": 2}, {"name": "profiling", "concurrency": 8}]
                }
            },
            8,
        ),
        ({"input_config": {"loadgen": {"concurrency": 16}}}, 16),
        ({"run_info": {"cli_command": "aiperf profile --streaming --concurrency 32 --request-count 9"}}, 32),
        ({"run_info": {"cli_command": "aiperf profile --concurrency='5'"}}, 5),
        ({"input_config": {"phases": [{"name": "profiling", "rate": 3.0}]}}, None),
        ({}, None),
    ],
)
def test_concurrency_is_found_where_versions_put_it(config, expected):
    assert configured_concurrency(config) == expected


def test_without_a_configured_concurrency_it_is_littles_law(tmp_path):
    value = synth.aiperf_summary(REQUESTS, concurrency=None, start_time=START)
    cell = read_summary(tmp_path / "x.json", value)
    assert (cell.key.concurrency, cell.concurrency_provenance) == (4, Provenance.DERIVED)


def test_a_benchmark_that_did_not_stream_has_nothing_to_analyse(tmp_path):
    with pytest.raises(NothingToAnalyse, match="streaming"):
        read_summary(tmp_path / "x.json", {"aiperf_version": "0.10.0", "request_count": {"avg": 3}})


def test_an_unknown_unit_is_refused(tmp_path):
    with pytest.raises(TraceError, match="furlongs"):
        read_summary(tmp_path / "x.json", summary(inter_token_latency={"avg": 3.0, "unit": "furlongs"}))


def test_the_csv_gives_the_same_cell_to_two_decimals(tmp_path):
    path = tmp_path / "profile_export_aiperf.csv"
    path.write_text(synth.aiperf_csv(summary()))
    cell = read_csv(path)
    assert cell.summary.mean_itl_ms == pytest.approx(51.0, abs=0.005)
    assert cell.summary.std_itl_ms == pytest.approx((2 / 3) ** 0.5, abs=0.005)
    assert (cell.summary.requests, cell.key.concurrency, cell.key.osl) == (12, 4, 64)
    assert cell.session_ns is None
    assert any("throughput × latency" in text for text in cell.warnings)


def test_the_older_csv_has_thousands_separators_and_no_spread(tmp_path):
    path = tmp_path / "profile_export_genai_perf.csv"
    path.write_text(
        "Metric,avg,min,max,p99\n"
        "Inter Token Latency (ms),159.59,121.85,257.25,239.76\n"
        'Request Latency (ms),"71,107.96","31,121.97","102,848.43","101,001.72"\n'
        'Input Sequence Length (tokens),"4,000.03",3999,4001,4001\n\n'
        "Metric,Value\nRequest Throughput (per sec),1.70\nRequest Count (count),353.00\n"
    )
    cell = read_csv(path)
    assert (cell.summary.std_itl_ms, cell.summary.requests, cell.key.isl) == (None, 353, 4000)
    assert cell.key.concurrency == round(1.7 * 71.10796)


def test_telemetry_rows_of_the_csv_are_not_metrics(tmp_path):
    path = tmp_path / "profile_export_aiperf.csv"
    telemetry = (
        "\r\n\r\nEndpoint,GPU_Index,GPU_Name,GPU_UUID,Metric,avg\r\nlocalhost,0,H200,GPU-1,GPU Power Usage (W),5\r\n"
    )
    path.write_text(synth.aiperf_csv(summary()) + telemetry)
    assert read_csv(path).summary.requests == 12


def test_a_csv_of_something_else_is_refused(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("Metric,avg\nInter Token Latency (ms),fast\n")
    with pytest.raises(TraceError, match="not an AIPerf CSV"):
        read_csv(path)
    path.write_text("Metric,avg\nTime To First Token (ms),3\n")
    with pytest.raises(NothingToAnalyse):
        read_csv(path)
