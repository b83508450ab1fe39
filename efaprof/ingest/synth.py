"""Synthetic exports whose answers are known in closed form, in the shapes of the real tools.

A `Script` says, request by request, when it starts, its TTFT and its gaps between tokens; writers turn it into
AIPerf's, vLLM's and SGLang's files. Tests and benchmarks use it; nothing in it is a measurement.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

EPOCH_NS = 1_780_000_000_000_000_000  # 2026-05-28, a fixed start


@dataclass(frozen=True, slots=True)
class Scripted:
    """One request: gaps between its chunks in ms; a gap of several tokens is in `coalesced`, by its index."""

    start_ns: int
    ttft_ms: float
    gaps_ms: tuple[float, ...]
    coalesced: Mapping[int, int] = field(default_factory=dict)  # gap index → tokens in it
    prompt: int = 120

    @property
    def tokens(self) -> int:
        """Output tokens, the first included."""
        return 1 + len(self.gaps_ms) + sum(self.coalesced.values()) - len(self.coalesced)

    @property
    def latency_ms(self) -> float:
        """From the start to the last token."""
        return self.ttft_ms + sum(self.gaps_ms)


def waves(
    itl_ms: Sequence[float],
    *,
    concurrency: int,
    tokens: int = 128,
    ttft_ms: float = 160.0,
    first_ttft_ms: float | None = None,
    start_ns: int = EPOCH_NS,
) -> list[Scripted]:
    """A closed loop: one wave of `concurrency` identical requests for each ITL given, each after the one before."""
    found: list[Scripted] = []
    now = start_ns
    for number, step in enumerate(itl_ms):
        ttft = first_ttft_ms if number == 0 and first_ttft_ms is not None else ttft_ms
        gaps = (float(step),) * (tokens - 1)
        # Requests of a wave leave the client a microsecond apart, as real ones do.
        found += [Scripted(now + 1000 * slot, ttft, gaps) for slot in range(concurrency)]
        now += round((ttft + step * (tokens - 1)) * 1e6) + 1_000_000
    return found


def correlated_waves(
    mean_ms: float,
    *,
    count: int,
    concurrency: int,
    between_ms: float,
    within_ms: float,
    seed: int,
    tokens: int = 128,
    start_ns: int = EPOCH_NS,
) -> list[Scripted]:
    """Waves whose requests share a normal offset `between_ms` and have one of their own, `within_ms`: known ICC."""
    random = np.random.default_rng(seed)
    found: list[Scripted] = []
    now = start_ns
    for _ in range(count):
        shared = mean_ms + between_ms * random.standard_normal()
        steps = shared + within_ms * random.standard_normal(concurrency)
        found += [Scripted(now + 1000 * slot, 160.0, (float(step),) * (tokens - 1)) for slot, step in enumerate(steps)]
        now += round((160.0 + float(steps.max()) * (tokens - 1)) * 1e6) + 1_000_000
    return found


def aiperf_record(request: Scripted, *, phase: str = "profiling", number: int = 0) -> dict[str, Any]:
    """One line of AIPerf's profile_export.jsonl."""
    itl = (request.latency_ms - request.ttft_ms) / max(request.tokens - 1, 1)
    return {
        "metadata": {
            "session_num": number,
            "request_start_ns": request.start_ns,
            "request_end_ns": request.start_ns + round(request.latency_ms * 1e6),
            "benchmark_phase": phase,
            "was_cancelled": False,
        },
        "metrics": {
            "time_to_first_token": {"value": request.ttft_ms, "unit": "ms"},
            "request_latency": {"value": request.latency_ms, "unit": "ms"},
            "output_sequence_length": {"value": request.tokens, "unit": "tokens"},
            "input_sequence_length": {"value": request.prompt, "unit": "tokens"},
            "inter_token_latency": {"value": itl, "unit": "ms"},
            "inter_chunk_latency": {"value": list(request.gaps_ms), "unit": "ms"},
        },
    }


def aiperf_failure(request: Scripted, *, cancelled: bool = False) -> dict[str, Any]:
    """A failed or cancelled request, as AIPerf exports it."""
    record = aiperf_record(request)
    record["metadata"]["was_cancelled"] = cancelled
    record["metrics"] = {}
    record["error"] = {"code": 499 if cancelled else 500, "type": "Error", "message": "made for a test"}
    return record


def aiperf_summary(
    requests: Sequence[Scripted], *, concurrency: int | None, start_time: str, errors: int = 0, model: str = "a-model"
) -> dict[str, Any]:
    """AIPerf's profile_export_aiperf.json of these requests; `std` has ddof = 0, as there."""
    itl = np.array([(one.latency_ms - one.ttft_ms) / (one.tokens - 1) for one in requests])
    latency = np.array([one.latency_ms for one in requests])
    span_s = (max(one.start_ns + one.latency_ms * 1e6 for one in requests) - requests[0].start_ns) / 1e9
    document: dict[str, Any] = {
        "schema_version": "1.3",
        "aiperf_version": "0.10.0",
        "request_throughput": {"unit": "requests/sec", "avg": len(requests) / span_s},
        "request_latency": _stats(latency, "ms"),
        "request_count": {"unit": "requests", "avg": float(len(requests))},
        "inter_token_latency": _stats(itl, "ms"),
        "output_token_throughput_per_user": _stats(1000.0 / itl, "tokens/sec/user"),
        "output_sequence_length": _stats(np.array([one.tokens for one in requests], float), "tokens"),
        "input_sequence_length": _stats(np.array([one.prompt for one in requests], float), "tokens"),
        "input_config": {"models": {"items": [{"name": model}]}},
        "was_cancelled": False,
        "start_time": start_time,
    }
    if concurrency is not None:
        phase = {"name": "profiling", "type": "concurrency", "concurrency": concurrency}
        document["input_config"]["phases"] = [phase]
    if errors:
        document["error_request_count"] = {"unit": "requests", "avg": float(errors)}
    return document


def aiperf_csv(summary: Mapping[str, Any]) -> str:
    """The CSV of a JSON summary: two decimals, two sections."""
    names = {
        "inter_token_latency": "Inter Token Latency (ms)",
        "request_latency": "Request Latency (ms)",
        "output_token_throughput_per_user": "Output Token Throughput Per User (tokens/sec/user)",
        "output_sequence_length": "Output Sequence Length (tokens)",
        "input_sequence_length": "Input Sequence Length (tokens)",
    }
    lines = ["Metric,avg,min,max,std"]
    for key, name in names.items():
        stats = summary[key]
        lines.append(",".join([name, *(f"{stats[stat]:.2f}" for stat in ("avg", "min", "max", "std"))]))
    lines += ["", "Metric,Value", f"Request Count,{summary['request_count']['avg']:.2f}"]
    lines.append(f"Request Throughput (requests/sec),{summary['request_throughput']['avg']:.2f}")
    return "\r\n".join(lines) + "\r\n"


def vllm_result(
    requests: Sequence[Scripted], *, concurrency: int | None, date: str, is_detailed: bool = True, failed: int = 0
) -> dict[str, Any]:
    """The JSON of `vllm bench serve --save-result`, with `--save-detailed` or without."""
    document = {
        "date": date,
        "endpoint_type": "vllm",
        "model_id": "a-model",
        "num_prompts": len(requests) + failed,
        "request_rate": "inf",
        "max_concurrency": concurrency,
        **_bench_result(requests),
        "failed": failed,
    }
    if is_detailed:
        origin_ns = requests[0].start_ns
        starts = [(one.start_ns - origin_ns) / 1e9 + 1000.0 for one in requests]
        document |= _bench_detail(requests, failed) | {"start_times": starts + [1000.0] * failed}
    return document


def sglang_result(requests: Sequence[Scripted], *, concurrency: int | None, is_detailed: bool = True) -> dict[str, Any]:
    """One line of SGLang's bench_serving JSONL, with `--output-details` or without."""
    document = {
        "backend": "sglang",
        "dataset_name": "random",
        "max_concurrency": concurrency,
        **_bench_result(requests),
    }
    return document | _bench_detail(requests, 0) if is_detailed else document


def _bench_result(requests: Sequence[Scripted]) -> dict[str, Any]:
    itl = np.array([(one.latency_ms - one.ttft_ms) / (one.tokens - 1) for one in requests])
    latency = np.array([one.latency_ms for one in requests])
    span_s = (max(one.start_ns + one.latency_ms * 1e6 for one in requests) - requests[0].start_ns) / 1e9
    return {
        "duration": span_s,
        "completed": len(requests),
        "total_input_tokens": sum(one.prompt for one in requests),
        "total_output_tokens": sum(one.tokens for one in requests),
        "request_throughput": len(requests) / span_s,
        "mean_e2el_ms": float(latency.mean()),
        "mean_tpot_ms": float(itl.mean()),
        "std_tpot_ms": float(itl.std()),
    }


def _bench_detail(requests: Sequence[Scripted], failed: int) -> dict[str, Any]:
    return {
        "input_lens": [one.prompt for one in requests] + [120] * failed,
        "output_lens": [one.tokens for one in requests] + [0] * failed,
        "ttfts": [one.ttft_ms / 1e3 for one in requests] + [0.0] * failed,
        "itls": [[gap / 1e3 for gap in one.gaps_ms] for one in requests] + [[] for _ in range(failed)],
        "errors": [""] * len(requests) + ["refused"] * failed,
    }


def _stats(values: Any, unit: str) -> dict[str, Any]:
    return {
        "unit": unit,
        "avg": float(values.mean()),
        "min": float(values.min()),
        "max": float(values.max()),
        "std": float(values.std()),
        "count": len(values),
    }


def write_lines(path: Path, values: Iterable[Any]) -> Path:
    """One JSON value a line; a string is written as it is, so that a line can be broken on purpose."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(_line(value) for value in values)
    return path


def write_document(path: Path, value: Any) -> Path:
    """One indented JSON document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    return path


def _line(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))) + "\n"


def write_cell(folder: Path, requests: Sequence[Scripted], *, concurrency: int, start_time: str) -> Path:
    """A folder as AIPerf leaves it: records and JSON summary."""
    write_lines(folder / "profile_export.jsonl", records(requests))
    summary = aiperf_summary(requests, concurrency=concurrency, start_time=start_time)
    write_document(folder / "profile_export_aiperf.json", summary)
    return folder


def records(requests: Iterable[Scripted]) -> Iterator[dict[str, Any]]:
    """AIPerf records of these requests."""
    return (aiperf_record(request, number=number) for number, request in enumerate(requests))
