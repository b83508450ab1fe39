"""Results of `vllm bench serve --save-result` and of SGLang's `bench_serving`: two descendants of one script.

Fields taken, read from their sources (both write seconds in lists and milliseconds in `…_ms` keys):
- both: `completed`, `mean_tpot_ms`, `std_tpot_ms` (over requests, ddof = 0), `total_input_tokens`,
  `total_output_tokens`, `max_concurrency`, `request_throughput`; TPOT of these tools is AIPerf's ITL.
  With per-request detail: `input_lens`, `output_lens`, `ttfts`, `itls` (a list of gaps a request), `errors`.
- vLLM: one JSON document, or one a line after `--append-result`; `date` (end of the run, local time, read as UTC;
  the start is `date − duration`), `model_id`, `failed`, `start_times` and (newer) `latencies` with `--save-detailed`.
  Without `latencies` a request's latency is its TTFT plus its gaps. `start_times` are a monotonic clock's.
- SGLang: one JSON object a line, one a run; detail needs `--output-details`. It says neither when it ran nor when its
  requests started: the session is unknown, and waves are cut in order of submission.
Concurrency is `max_concurrency`, else the most requests in flight, else (tagged derived) throughput × mean latency or
SGLang's own mean `concurrency`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from efaprof.analyzers.serving import Cell, CellKey, Format, RequestCounts, Summary
from efaprof.errors import NothingToAnalyse
from efaprof.ingest.fields import count, duration_ms, durations_ms, number, step_ms, text, whole
from efaprof.ingest.requests import RequestLog
from efaprof.ingest.times import unix_ns
from efaprof.trace.layers import Provenance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DETAIL = ("output_lens", "ttfts", "itls")
_VLLM_KEYS = ("model_id", "endpoint_type", "num_prompts")
_MEAN_TOLERANCE = 0.01


def is_result(value: Any) -> bool:
    """Whether a parsed object is a result of either tool."""
    return isinstance(value, dict) and "completed" in value and ("mean_tpot_ms" in value or "itls" in value)


def read_result(source: str, value: Mapping[str, Any]) -> Cell:
    """The cell of one result; `source` names it in messages (file, or file:line)."""
    form = Format.VLLM if any(key in value for key in _VLLM_KEYS) else Format.SGLANG
    session = unix_ns(value.get("date"))
    duration = duration_ms(value.get("duration"), 1e3)
    if session is not None and duration is not None:
        session -= int(duration * 1e6)
    log = _detail(value)
    if log is not None and log.counts.used:
        return _from_detail(source, value, log, form, session)
    return _from_summary(source, value, form, session)


def _from_detail(source: str, value: Mapping[str, Any], log: RequestLog, form: Format, session: int | None) -> Cell:
    found, provenance = _concurrency(source, value, log)
    summary = log.summary()
    stated = number(value.get("mean_tpot_ms"))
    warnings = log.warnings(source)
    if stated is not None and abs(stated - summary.mean_itl_ms) > _MEAN_TOLERANCE * stated:
        warnings.append(
            f"{source}: its mean_tpot_ms is {stated:.3f}, its requests give {summary.mean_itl_ms:.3f}, which is used"
        )
    return Cell(
        key=CellKey(found, log.mean_prompt(), log.mean_tokens()),
        source=source,
        format=form,
        summary=summary,
        counts=log.counts,
        requests=log.requests(),
        chunks=log.chunks(),
        session_ns=session,
        model=text(value.get("model_id")),
        concurrency_provenance=provenance,
        warnings=tuple(warnings),
    )


def _from_summary(source: str, value: Mapping[str, Any], form: Format, session: int | None) -> Cell:
    mean = step_ms(value.get("mean_tpot_ms"))
    completed = whole(value.get("completed")) or 0
    failed = whole(value.get("failed")) or 0
    if mean is None or completed < 1:
        raise NothingToAnalyse(
            f"{source}: {completed} completed requests, no time per output token", hint="run the benchmark again"
        )
    found, provenance = _concurrency(source, value, None)
    return Cell(
        key=CellKey(
            found,
            _per_request(value, "total_input_tokens", completed),
            _per_request(value, "total_output_tokens", completed),
        ),
        source=source,
        format=form,
        summary=Summary(mean, duration_ms(value.get("std_tpot_ms")), completed),
        counts=RequestCounts(read=completed + failed, used=completed, failed=failed),
        session_ns=session,
        model=text(value.get("model_id")),
        concurrency_provenance=provenance,
    )


def _detail(value: Mapping[str, Any]) -> RequestLog | None:
    """Requests of a detailed result; None when the result holds means only."""
    lists = [value.get(name) for name in _DETAIL]
    if not all(isinstance(one, list) and one for one in lists):
        return None
    outputs, ttfts, gaps = lists
    assert isinstance(outputs, list) and isinstance(ttfts, list) and isinstance(gaps, list)
    rows = len(outputs)
    errors, prompts = _column(value, "errors", rows), _column(value, "input_lens", rows)
    starts, latencies = _column(value, "start_times", rows), _column(value, "latencies", rows)
    log = RequestLog()
    for row in range(rows):
        if errors[row]:
            log.count("failed")
            continue
        own_gaps = durations_ms(gaps[row] if row < len(gaps) else None, 1e3)
        ttft = duration_ms(ttfts[row] if row < len(ttfts) else None, 1e3)
        latency = duration_ms(latencies[row], 1e3)
        if latency is None and ttft is not None and own_gaps:
            latency = ttft + sum(own_gaps)
        start_s = number(starts[row])
        log.add(
            ttft_ms=ttft,
            latency_ms=latency,
            tokens=whole(outputs[row]),
            prompt=whole(prompts[row]),
            start_ns=None if start_s is None else whole(start_s * 1e9),
            gaps_ms=own_gaps,
        )
    return log


def _column(value: Mapping[str, Any], name: str, rows: int) -> Sequence[Any]:
    column = value.get(name)
    if isinstance(column, list) and len(column) == rows:
        return column
    return [None] * rows


def _concurrency(source: str, value: Mapping[str, Any], log: RequestLog | None) -> tuple[int, Provenance]:
    asked = count(value.get("max_concurrency"))
    if asked is not None:
        return asked, Provenance.MEASURED
    counted = log.most_in_flight() if log is not None else None
    if counted is None:
        per_second = number(value.get("request_throughput"))
        latency = number(value.get("mean_e2el_ms")) or number(value.get("mean_e2e_latency_ms"))
        mean = number(value.get("concurrency"))
        if mean is None and per_second is not None and latency is not None:
            mean = per_second * latency / 1e3
        counted = None if mean is None else count(max(mean, 1.0))
    if counted is None:
        raise NothingToAnalyse(
            f"{source} does not say its concurrency", hint="run the benchmark with --max-concurrency N"
        )
    return counted, Provenance.DERIVED


def _per_request(value: Mapping[str, Any], name: str, requests: int) -> int | None:
    total = number(value.get(name))
    return None if total is None else whole(round(total / requests))
