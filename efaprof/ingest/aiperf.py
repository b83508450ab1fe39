"""AIPerf's per-request records, `profile_export.jsonl`: one JSON object a line.

Fields taken (AIPerf 0.10, checked against real exports and, for errors and cancellation, against its sources):
`metadata.{request_start_ns, benchmark_phase, was_cancelled}`, `error`, `metrics.{time_to_first_token, request_latency,
output_sequence_length, input_sequence_length, inter_token_latency, inter_chunk_latency}`, each `{value, unit}`.
Times are Unix nanoseconds; `inter_chunk_latency` is the list of gaps between chunks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from efaprof.analyzers.serving import Cell, CellKey, Format, RequestCounts
from efaprof.errors import EfaprofError, NothingToAnalyse, TraceError
from efaprof.ingest.aiperf_summary import config_warnings, configured_concurrency, configured_model
from efaprof.ingest.fields import duration_ms, durations_ms, whole
from efaprof.ingest.lines import Malformed, MalformedLine, Progress, json_lines
from efaprof.ingest.requests import RequestLog
from efaprof.ingest.times import MILLISECONDS
from efaprof.trace.layers import Provenance

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def is_record(value: Any) -> bool:
    """Whether a parsed line is an AIPerf request record."""
    return (
        isinstance(value, dict) and isinstance(value.get("metadata"), dict) and isinstance(value.get("metrics"), dict)
    )


def read_records(path: Path, config: Mapping[str, Any] | None, progress: Progress) -> Cell:
    """The cell of one `profile_export.jsonl`; `config` is the JSON summary of the same run, when there is one."""
    log, malformed = RequestLog(), Malformed(path)
    for line, value in json_lines(path, malformed, progress):
        try:
            _take(value, log)
        except MalformedLine as error:
            malformed.add(line, str(error))
    counts = replace(log.counts, malformed=malformed.count)
    if not counts.used:
        raise _nothing_used(path, counts, malformed)
    asked = None if config is None else configured_concurrency(config)
    concurrency = asked or log.most_in_flight()
    if concurrency is None:
        raise NothingToAnalyse(
            f"{path} has no start times and no summary beside it: its concurrency is unknown",
            hint=f"put its {path.stem}_aiperf.json into the same folder",
        )
    warnings = [*log.warnings(str(path)), *([malformed.warning()] if malformed.count else [])]
    return Cell(
        key=CellKey(concurrency, log.mean_prompt(), log.mean_tokens()),
        source=str(path),
        format=Format.AIPERF_RECORDS,
        summary=log.summary(),
        counts=counts,
        requests=log.requests(),
        chunks=log.chunks(),
        session_ns=log.first_start_ns(),
        model=None if config is None else configured_model(config),
        concurrency_provenance=Provenance.MEASURED if asked else Provenance.DERIVED,
        warnings=(*(text for text in warnings if text), *config_warnings(path, config)),
    )


_NOT_USED = ("warmup", "failed", "cancelled", "partial", "single_token")


def _take(value: Any, log: RequestLog) -> None:
    if not is_record(value):
        raise MalformedLine("no AIPerf record (metadata and metrics are missing)")
    metadata, metrics = value["metadata"], value["metrics"]
    if metadata.get("benchmark_phase") == "warmup":
        return log.count("warmup")
    if metadata.get("was_cancelled"):
        return log.count("cancelled")
    if value.get("error"):
        return log.count("failed")
    log.add(
        ttft_ms=_time_ms(metrics, "time_to_first_token"),
        latency_ms=_time_ms(metrics, "request_latency"),
        tokens=_count(metrics, "output_sequence_length"),
        prompt=_count(metrics, "input_sequence_length"),
        start_ns=whole(metadata.get("request_start_ns")),
        gaps_ms=_gaps_ms(metrics),
        own_itl_ms=_time_ms(metrics, "inter_token_latency"),
    )
    return None


def _measure(metrics: Mapping[str, Any], name: str) -> tuple[Any, str] | None:
    metric = metrics.get(name)
    if metric is None:
        return None
    if not isinstance(metric, dict) or "value" not in metric:
        raise MalformedLine(f"{name} is no {{value, unit}}")
    return metric["value"], str(metric.get("unit", ""))


def _time_ms(metrics: Mapping[str, Any], name: str) -> float | None:
    found = _measure(metrics, name)
    if found is None:
        return None
    value, unit = found
    time_ms = duration_ms(value, _factor(unit, name))
    if time_ms is None:
        raise MalformedLine(f"{name} is no time")
    return time_ms


def _gaps_ms(metrics: Mapping[str, Any]) -> list[float] | None:
    found = _measure(metrics, "inter_chunk_latency")
    if found is None:
        return None
    value, unit = found
    gaps = durations_ms(value, _factor(unit, "inter_chunk_latency"))
    if gaps is None:
        raise MalformedLine("inter_chunk_latency is no list of times")
    return gaps


def _factor(unit: str, name: str) -> float:
    try:
        return MILLISECONDS[unit]
    except KeyError:
        raise MalformedLine(f"{name} is in {unit!r}, not a unit of time") from None


def _count(metrics: Mapping[str, Any], name: str) -> int | None:
    found = _measure(metrics, name)
    if found is None:
        return None
    value, unit = found
    if unit not in ("tokens", "token", ""):
        raise MalformedLine(f"{name} is in {unit!r}, not tokens")
    return whole(value)


def _nothing_used(path: Path, counts: RequestCounts, malformed: Malformed) -> EfaprofError:
    if not counts.read:
        text = malformed.warning() or "it is empty"
        return TraceError(
            f"{path} holds no AIPerf record: {text}", hint="give a profile_export.jsonl of aiperf profile"
        )
    parts = ", ".join(f"{getattr(counts, name)} {name}" for name in _NOT_USED if getattr(counts, name))
    return NothingToAnalyse(f"{path}: none of its {counts.read} requests can be used ({parts})", hint="run it again")
