"""AIPerf's summaries: `profile_export_aiperf.json`, and the same figures as CSV.

Fields taken (AIPerf 0.10; the JSON checked against real exports, the CSV against its sources):
- JSON: `inter_token_latency.{avg, std, count}` (`std` has ddof = 0), `…_sequence_length.avg`,
  `output_token_throughput_per_user.avg`, `request_count.avg`, `error_request_count.avg` (absent means 0),
  `input_config.phases[].concurrency` (older: `input_config.loadgen.concurrency`, or `--concurrency` in
  `run_info.cli_command`), `start_time` (without a zone: read as UTC), `was_cancelled`.
- CSV: the metrics under printed names, two decimals, no configuration: concurrency comes from Little's law
  (throughput × latency) and the session is unknown. genai-perf's CSV differs by having no `std`.
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, Any

from efaprof.analyzers.serving import Cell, CellKey, Format, RequestCounts, Summary
from efaprof.errors import NothingToAnalyse, TraceError
from efaprof.ingest.lines import unreadable
from efaprof.ingest.times import MILLISECONDS, unix_ns
from efaprof.trace.layers import Provenance

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_CSV_NAME = re.compile(r"^(?P<name>[^(]*?)\s*(?:\((?P<unit>[^)]*)\))?$")


def is_summary(value: Any) -> bool:
    """Whether a parsed document is an AIPerf JSON summary."""
    if not isinstance(value, dict):
        return False
    return isinstance(value.get("inter_token_latency"), dict) or (
        "aiperf_version" in value and isinstance(value.get("request_count"), dict)
    )


def read_summary(path: Path, value: Mapping[str, Any]) -> Cell:
    """The cell of one `profile_export_aiperf.json`."""
    itl = value.get("inter_token_latency")
    if not isinstance(itl, dict) or itl.get("avg") is None:
        raise NothingToAnalyse(
            f"{path} has no inter_token_latency: was the benchmark streaming?", hint="aiperf profile --streaming …"
        )
    unit = str(itl.get("unit", ""))
    if unit not in MILLISECONDS:
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
            mean_itl_ms=float(itl["avg"]) * MILLISECONDS[unit],
            std_itl_ms=None if std is None else float(std) * MILLISECONDS[unit],
            requests=requests,
            per_user_tok_s=_average(value, "output_token_throughput_per_user"),
        ),
        counts=RequestCounts(read=requests + failed, used=requests, failed=failed),
        session_ns=unix_ns(value.get("start_time")),
        model=configured_model(value),
        concurrency_provenance=Provenance.MEASURED if asked else Provenance.DERIVED,
        warnings=tuple(config_warnings(path, value)),
    )


def configured_concurrency(value: Mapping[str, Any]) -> int | None:
    """Concurrency that the run was asked for; None for a run by request rate, or where the summary does not say."""
    config = value.get("input_config")
    if isinstance(config, dict):
        phases = config.get("phases")
        for phase in phases if isinstance(phases, list) else []:
            if isinstance(phase, dict) and phase.get("name", "profiling") == "profiling" and phase.get("concurrency"):
                return _whole(phase["concurrency"])
        loadgen = config.get("loadgen")
        if isinstance(loadgen, dict) and loadgen.get("concurrency"):
            return _whole(loadgen["concurrency"])
    info = value.get("run_info")
    command = info.get("cli_command") if isinstance(info, dict) else None
    found = re.search(r"--concurrency[ =]'?(\d+)", str(command or ""))
    return int(found.group(1)) if found else None


def config_warnings(path: Path, config: Mapping[str, Any] | None) -> list[str]:
    """What the summary says that a reader must know."""
    if config is not None and config.get("was_cancelled"):
        return [f"{path}: the benchmark was cancelled before its end"]
    return []


def configured_model(config: Mapping[str, Any]) -> str | None:
    """Name of the model that was served."""
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


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
