"""AIPerf exports: per-request records, the JSON summary and the CSV summary.

Fields taken (AIPerf 0.10, checked against real exports of it and, for the CSV and for errors, against its sources):
- `profile_export.jsonl`, one record a line: `metadata.{request_start_ns, benchmark_phase, was_cancelled}`, `error`,
  `metrics.{time_to_first_token, request_latency, output_sequence_length, input_sequence_length, inter_token_latency,
  inter_chunk_latency}`, each `{value, unit}`. Times are Unix nanoseconds. `inter_chunk_latency` is the list of gaps.
- `profile_export_aiperf.json`: `inter_token_latency.{avg, std, count}` (`std` has ddof = 0), `…_sequence_length.avg`,
  `output_token_throughput_per_user.avg`, `request_count.avg`, `error_request_count.avg` (absent means 0),
  `input_config.phases[].concurrency` (older: `input_config.loadgen.concurrency`, or `--concurrency` in
  `run_info.cli_command`), `start_time` (without a zone: read as UTC), `was_cancelled`.
- `profile_export_aiperf.csv`: the same metrics under printed names, two decimals, no configuration: concurrency comes
  from Little's law (throughput × latency) and the session is unknown. genai-perf's CSV differs by having no `std`.
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, Any

from efaprof.analyzers.serving import Cell, CellKey, Format, RequestCounts, Summary
from efaprof.errors import NothingToAnalyse, TraceError
from efaprof.ingest.lines import Malformed, MalformedLine, Progress, json_lines, unreadable
from efaprof.ingest.requests import RequestLog
from efaprof.ingest.times import unix_ns
from efaprof.trace.layers import Provenance

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3}
_CSV_NAME = re.compile(r"^(?P<name>[^(]*?)\s*(?:\((?P<unit>[^)]*)\))?$")


def is_record(value: Any) -> bool:
    """Whether a parsed line is an AIPerf request record."""
    return (
        isinstance(value, dict) and isinstance(value.get("metadata"), dict) and isinstance(value.get("metrics"), dict)
    )


def is_summary(value: Any) -> bool:
    """Whether a parsed document is an AIPerf JSON summary."""
    if not isinstance(value, dict):
        return False
    return isinstance(value.get("inter_token_latency"), dict) or (
        "aiperf_version" in value and isinstance(value.get("request_count"), dict)
    )


def read_records(path: Path, config: Mapping[str, Any] | None, progress: Progress) -> Cell:
    """The cell of one `profile_export.jsonl`; `config` is the JSON summary of the same run, when there is one."""
    log, malformed = RequestLog(), Malformed(path)
    for line, value in json_lines(path, malformed, progress):
        try:
            _take(value, log)
        except MalformedLine as error:
            malformed.add(line, str(error))
    counts = RequestCounts(**{**{n: getattr(log.counts, n) for n in _COUNTED}, "malformed": malformed.count})
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
        model=None if config is None else _model(config),
        concurrency_provenance=Provenance.MEASURED if asked else Provenance.DERIVED,
        warnings=(*(text for text in warnings if text), *_config_warnings(path, config)),
    )


_COUNTED = ("read", "used", "warmup", "failed", "cancelled", "partial", "single_token")


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
    gaps = metrics.get("inter_chunk_latency")
    log.add(
        ttft_ms=_time_ms(metrics, "time_to_first_token"),
        latency_ms=_time_ms(metrics, "request_latency"),
        tokens=_count(metrics, "output_sequence_length"),
        prompt=_count(metrics, "input_sequence_length"),
        start_ns=_integer(metadata.get("request_start_ns")),
        gaps_ms=None if gaps is None else _times_ms(gaps),
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
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MalformedLine(f"{name} is no number")
    return float(value) * _factor(unit, name)


def _times_ms(metric: Any) -> list[float]:
    value, unit = metric.get("value"), str(metric.get("unit", "")) if isinstance(metric, dict) else ""
    if not isinstance(value, list) or not all(isinstance(gap, int | float) and gap >= 0 for gap in value):
        raise MalformedLine("inter_chunk_latency is no list of gaps")
    factor = _factor(unit, "inter_chunk_latency")
    return value if factor == 1.0 else [gap * factor for gap in value]


def _factor(unit: str, name: str) -> float:
    try:
        return _MS[unit]
    except KeyError:
        raise MalformedLine(f"{name} is in {unit!r}, not a unit of time") from None


def _count(metrics: Mapping[str, Any], name: str) -> int | None:
    found = _measure(metrics, name)
    if found is None:
        return None
    value, unit = found
    if unit not in ("tokens", "token", ""):
        raise MalformedLine(f"{name} is in {unit!r}, not tokens")
    return _integer(value)


def _integer(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value)


def _nothing_used(path: Path, counts: RequestCounts, malformed: Malformed) -> Exception:
    if not counts.read:
        text = malformed.warning() or "it is empty"
        return TraceError(
            f"{path} holds no AIPerf record: {text}", hint="give a profile_export.jsonl of aiperf profile"
        )
    parts = ", ".join(f"{getattr(counts, name)} {name}" for name in _COUNTED[2:] if getattr(counts, name))
    return NothingToAnalyse(f"{path}: none of its {counts.read} requests can be used ({parts})", hint="run it again")


def read_summary(path: Path, value: Mapping[str, Any]) -> Cell:
    """The cell of one `profile_export_aiperf.json`."""
    itl = value.get("inter_token_latency")
    if not isinstance(itl, dict) or itl.get("avg") is None:
        raise NothingToAnalyse(
            f"{path} has no inter_token_latency: was the benchmark streaming?", hint="aiperf profile --streaming …"
        )
    unit = str(itl.get("unit", ""))
    if unit not in _MS:
        raise TraceError(f"{path}: inter_token_latency is in {unit!r}, not a unit of time", hint="export it again")
    requests = int(itl.get("count") or _average(value, "request_count") or 0)
    failed = int(_average(value, "error_request_count") or 0)
    asked = configured_concurrency(value)
    concurrency = asked or _little(_average(value, "request_throughput"), _average(value, "request_latency"))
    if concurrency is None:
        raise NothingToAnalyse(f"{path} does not say its concurrency", hint="run aiperf with --concurrency N")
    std = itl.get("std")
    return Cell(
        key=CellKey(concurrency, _rounded(value, "input_sequence_length"), _rounded(value, "output_sequence_length")),
        source=str(path),
        format=Format.AIPERF_SUMMARY,
        summary=Summary(
            mean_itl_ms=float(itl["avg"]) * _MS[unit],
            std_itl_ms=None if std is None else float(std) * _MS[unit],
            requests=requests,
            per_user_tok_s=_average(value, "output_token_throughput_per_user"),
        ),
        counts=RequestCounts(read=requests + failed, used=requests, failed=failed),
        session_ns=unix_ns(value.get("start_time")),
        model=_model(value),
        concurrency_provenance=Provenance.MEASURED if asked else Provenance.DERIVED,
        warnings=tuple(_config_warnings(path, value)),
    )


def configured_concurrency(value: Mapping[str, Any]) -> int | None:
    """Concurrency that the run was asked for; None for a run by request rate, or where the summary does not say."""
    config = value.get("input_config")
    if isinstance(config, dict):
        phases = config.get("phases")
        for phase in phases if isinstance(phases, list) else []:
            if isinstance(phase, dict) and phase.get("name", "profiling") == "profiling" and phase.get("concurrency"):
                return _integer(phase["concurrency"])
        loadgen = config.get("loadgen")
        if isinstance(loadgen, dict) and loadgen.get("concurrency"):
            return _integer(loadgen["concurrency"])
    info = value.get("run_info")
    command = info.get("cli_command") if isinstance(info, dict) else None
    found = re.search(r"--concurrency[ =]'?(\d+)", str(command or ""))
    return int(found.group(1)) if found else None


def _config_warnings(path: Path, config: Mapping[str, Any] | None) -> list[str]:
    if config is not None and config.get("was_cancelled"):
        return [f"{path}: the benchmark was cancelled before its end"]
    return []


def _model(config: Mapping[str, Any]) -> str | None:
    found = config.get("input_config")
    models = found.get("models") if isinstance(found, dict) else None
    items = models.get("items") if isinstance(models, dict) else None
    if isinstance(items, list) and items and isinstance(items[0], dict):
        name = items[0].get("name")
        return name if isinstance(name, str) else None
    return None


def _average(value: Mapping[str, Any], name: str) -> float | None:
    metric = value.get(name)
    average = metric.get("avg") if isinstance(metric, dict) else None
    return float(average) if isinstance(average, int | float) else None


def _rounded(value: Mapping[str, Any], name: str) -> int | None:
    average = _average(value, name)
    return None if average is None else round(average)


def _little(per_second: float | None, latency_ms: float | None) -> int | None:
    """Mean requests in flight: throughput × latency."""
    if per_second is None or latency_ms is None:
        return None
    return max(round(per_second * latency_ms / 1e3), 1)


def read_csv(path: Path) -> Cell:
    """The cell of one `profile_export_aiperf.csv`: the JSON summary's figures, rounded to two decimals."""
    metrics = _csv_metrics(path)
    if "inter_token_latency" not in metrics:
        raise NothingToAnalyse(f"{path} has no row for the inter token latency", hint="aiperf profile --streaming …")
    if metrics["inter_token_latency"].get("count") is None:
        metrics["inter_token_latency"]["count"] = metrics.get("request_count", {}).get("avg")
    cell = read_summary(path, metrics)
    return Cell(
        key=cell.key,
        source=cell.source,
        format=Format.AIPERF_CSV,
        summary=cell.summary,
        counts=cell.counts,
        concurrency_provenance=cell.concurrency_provenance,
        warnings=(
            *cell.warnings,
            f"{path}: a CSV names no load and no start; concurrency {cell.key.concurrency} is throughput × latency",
        ),
    )


def _csv_metrics(path: Path) -> dict[str, dict[str, Any]]:
    metrics: dict[str, dict[str, Any]] = {}
    header: list[str] = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.reader(file):
                if row and row[0] == "Metric":
                    header = row
                elif row and header and row[0] != "Endpoint":
                    _csv_row(row, header, metrics)
                else:
                    header = []
    except OSError as error:
        raise unreadable(path, error) from error
    except (UnicodeDecodeError, csv.Error, ValueError) as error:
        raise TraceError(f"{path} is not an AIPerf CSV: {error}", hint="export it again") from error
    return metrics


def _csv_row(row: list[str], header: list[str], metrics: dict[str, dict[str, Any]]) -> None:
    found = _CSV_NAME.match(row[0])
    if found is None:
        return
    name = found["name"].strip().lower().replace(" ", "_")
    values: dict[str, Any] = {"unit": found["unit"] or ""}
    for column, text in zip(header[1:], row[1:], strict=False):
        if text:
            values["avg" if column == "Value" else column] = float(text.replace(",", ""))
    metrics[name] = values
