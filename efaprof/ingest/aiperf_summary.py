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
from efaprof.ingest.fields import count, duration_ms, number, step_ms, table, text, whole
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
    itl = table(value, "inter_token_latency")
    unit = str(itl.get("unit", ""))
    if itl and unit not in MILLISECONDS:
        raise TraceError(f"{path}: inter_token_latency is in {unit!r}, not a unit of time", hint="export it again")
    mean = step_ms(itl.get("avg"), MILLISECONDS.get(unit, 1.0))
    requests = whole(itl.get("count")) or whole(_average(value, "request_count")) or 0
    if mean is None or requests < 1:
        raise NothingToAnalyse(
            f"{path} has no inter_token_latency: was the benchmark streaming?", hint="aiperf profile --streaming …"
        )
    failed = whole(_average(value, "error_request_count")) or 0
    asked = configured_concurrency(value)
    concurrency = asked or _little(_average(value, "request_throughput"), _average(value, "request_latency"))
    if concurrency is None:
        raise NothingToAnalyse(f"{path} does not say its concurrency", hint="run aiperf with --concurrency N")
    return Cell(
        key=CellKey(concurrency, _rounded(value, "input_sequence_length"), _rounded(value, "output_sequence_length")),
        source=str(path),
        format=Format.AIPERF_SUMMARY,
        summary=Summary(
            mean_itl_ms=mean,
            std_itl_ms=duration_ms(itl.get("std"), MILLISECONDS[unit]),
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
    config = table(value, "input_config")
    phases = config.get("phases")
    for phase in phases if isinstance(phases, list) else []:
        if (
            isinstance(phase, dict)
            and phase.get("name", "profiling") == "profiling"
            and count(phase.get("concurrency"))
        ):
            return count(phase["concurrency"])
    asked = count(table(config, "loadgen").get("concurrency"))
    if asked is not None:
        return asked
    command = text(table(value, "run_info").get("cli_command")) or ""
    found = re.search(r"--concurrency[ =]'?(\d{1,9})", command)
    return count(int(found.group(1))) if found else None


def config_warnings(path: Path, config: Mapping[str, Any] | None) -> list[str]:
    """What the summary says that a reader must know."""
    if config is not None and config.get("was_cancelled"):
        return [f"{path}: the benchmark was cancelled before its end"]
    return []


def configured_model(config: Mapping[str, Any]) -> str | None:
    """Name of the model that was served."""
    items = table(table(config, "input_config"), "models").get("items")
    first = items[0] if isinstance(items, list) and items else None
    return text(first.get("name")) if isinstance(first, dict) else None


def _average(value: Mapping[str, Any], name: str) -> float | None:
    return number(table(value, name).get("avg"))


def _rounded(value: Mapping[str, Any], name: str) -> int | None:
    average = _average(value, name)
    return None if average is None else round(average)


def _little(per_second: float | None, latency_ms: float | None) -> int | None:
    """Mean requests in flight: throughput × latency."""
    if per_second is None or latency_ms is None or per_second <= 0 or latency_ms <= 0:
        return None
    return count(max(per_second * latency_ms / 1e3, 1.0))


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
    for column, cell in zip(header[1:], row[1:], strict=False):
        if cell:
            values["avg" if column == "Value" else column] = float(cell.replace(",", ""))
    metrics[name] = values
