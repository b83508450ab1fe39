"""The attribution report as JSON, schema efaprof.attribution/1 (efaprof/report/schemas/efaprof.attribution.1.json).

Keys that a run without steps cannot have are null or empty. Units stand in the keys; `provenance` holds for the
numbers beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from efaprof.analyzers.by import By
from efaprof.analyzers.recorded import COMM_ACTIVE
from efaprof.report import decode_json
from efaprof.report.attribution_report import DELIVERY, NO_STEPS
from efaprof.report.gpu_times import times_document
from efaprof.report.host_report import host_document
from efaprof.report.self_cost import self_cost_document
from efaprof.report.signature_sections import signature_document, signature_keys
from efaprof.trace.layers import Layer, Match, Provenance

if TYPE_CHECKING:
    from efaprof.analyzers.operations import OperationGroup
    from efaprof.analyzers.recorded import Recorded, WindowRates
    from efaprof.analyzers.spread import Spread
    from efaprof.report.attribution_report import AttributionReport

SCHEMA = "efaprof.attribution/1"
_NS_PER_US = 1e3
MEASURED, DERIVED = Provenance.MEASURED.value, Provenance.DERIVED.value


def attribution_document(report: AttributionReport) -> dict[str, Any]:
    """The whole report; numbers are not rounded."""
    recorded = report.recorded
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "run": _run(report),
        "method": report.method,
        "scope": report.scope,
        "steps": 0,
        "steps_excluded": {},
        "tokens_per_step": None,
        "steps_found": None,
        "wall_us": None,
        "job_wall_us": None,
        "coverage": recorded.coverage,
        "conservation_error_ns": None,
        "clock_error_ns": report.clock_error_ns,
        "clock_clip_ns": 0,
        "gpu_times": times_document(report.gpu_times),
        "overlap_clip_ns": recorded.overlap_clip_ns,
        "drops": recorded.dropped,
        "unmatched": recorded.unexplained,
        "cpu": {
            "run_delay": recorded.host.run_delay,
            "throttled": recorded.host.throttled,
            "provenance": DERIVED,
        },
        "clusters": None,
        "layers": [],
        "groups": None,
        "skew_by": [],
        "segmentation": signature_document(report.segmentation),
        "operations": _operations(recorded),
        "utilisation": _utilisation(recorded),
        "delivery": _delivery(report),
        "verdict": _verdict(report),
        "gates": [],
        "self_cost": self_cost_document(report.self_cost),
        "host": host_document(report.host),
        "warnings": list(report.warnings),
    }
    if report.segmentation is not None:
        document |= signature_keys(report.segmentation)
    if report.decode is not None:
        document |= decode_json.decode_keys(report.decode)
        document["operations"] |= decode_json.operation_keys(report.decode)
    return document


def _run(report: AttributionReport) -> dict[str, Any]:
    run = report.run
    return {
        "runs": list(run.runs),
        "program": run.program,
        "command": list(run.command),
        "path": run.path.value,
        "processes": run.processes,
        "host": run.host,
        "started_realtime_ns": run.started_realtime_ns,
        "efaprof_version": run.efaprof_version,
        "providers": list(run.providers),
        "fingerprint": run.fingerprint,
        "emulated": list(run.emulated),
    }


def _operations(recorded: Recorded) -> dict[str, Any]:
    own = [group for group in recorded.kinds if group.nest == 0]
    nested = [group for group in recorded.kinds if group.nest > 0]
    document: dict[str, Any] = {
        "count": recorded.count,
        "by_kind": {str(group.key): _group(group) for group in own},
        "nested": [{"nest": group.nest, "kind": group.key, **_group(group)} for group in nested],
        "predicted": None,
        "per_step": None,
        "layers": [row for group in recorded.own for row in _layers(group)],
        "rates": [_rates(recorded, one) for one in recorded.windows],
        "outstanding": {
            "mean": recorded.outstanding_mean,
            "highest": recorded.outstanding_highest,
            "window": COMM_ACTIVE,
            "provenance": DERIVED,
        },
        "eagain_per_post": _derived(recorded.eagain_per_post, "EAGAIN attempts / operations posted"),
        "empty_reads_per_completion": _derived(
            recorded.empty_reads_per_completion, "empty completion-queue reads / entries read"
        ),
        "arrivals": {
            "explained": recorded.arrivals.explained,
            "unexplained": recorded.arrivals.unexplained,
            "provenance": MEASURED,
        },
    }
    if recorded.by is not By.KIND:
        document["by"] = {
            "key": recorded.by.value,
            "groups": [
                {"key": group.key, "nest": group.nest, "direction": group.direction, **_group(group)}
                for group in recorded.groups
            ],
        }
    return document


def _group(group: OperationGroup) -> dict[str, Any]:
    is_sent = group.direction == "tx"
    return {
        "count": group.count,
        "bytes": group.bytes,
        "eagain": group.eagain,
        "errors": group.errors,
        "outcomes": {match.value: group.matches.get(match, 0) for match in Match},
        "libfabric": _spread(group.libfabric),
        "nic": _spread(group.nic) if is_sent else None,
        "until_message": None if is_sent else _spread(group.nic),
        "provenance": MEASURED,
    }


def _spread(spread: Spread | None) -> dict[str, Any] | None:
    if spread is None:
        return None
    return {
        "n": spread.n,
        "sum_us": spread.sum_ns / _NS_PER_US,
        "p50_us": spread.p50_ns / _NS_PER_US,
        "p90_us": spread.p90_ns / _NS_PER_US,
        "p99_us": spread.p99_ns / _NS_PER_US,
        "max_us": spread.max_ns / _NS_PER_US,
    }


def _layers(group: OperationGroup) -> list[dict[str, Any]]:
    """Layers of sent operations, with their shares of the time of operations."""
    if group.direction != "tx":
        return []
    found = [(Layer.LIBFABRIC, group.libfabric), (Layer.NIC, group.nic)]
    total = sum(spread.sum_ns for _, spread in found if spread)
    return [
        {
            "layer": layer.value,
            **(_spread(spread) or {}),
            "provenance": MEASURED,
            "share": _derived(spread.sum_ns / total if total else None, "sum / sum over layers"),
        }
        for layer, spread in found
        if spread
    ]


def _derived(value: float | None, formula: str) -> dict[str, Any]:
    return {"value": value, "formula": formula, "provenance": DERIVED}


def _rates(recorded: Recorded, one: WindowRates) -> dict[str, Any]:
    return {
        "window": one.window,
        "length_s": one.length_ns / 1e9,
        "operations_s": one.operations_s,
        "bytes_s": one.bytes_s,
        "utilisation": recorded.utilisation.get(one.window),
        "provenance": DERIVED,
    }


def _utilisation(recorded: Recorded) -> dict[str, Any]:
    sent, moved = recorded.sent, recorded.movement
    return {
        "value": recorded.utilisation.get(COMM_ACTIVE),
        "window": COMM_ACTIVE,
        "bytes": sent.bytes if sent else 0,
        "line_rate_bytes_s": moved.line_rate_bytes_s if moved else None,
        "provenance": DERIVED,
    }


def _delivery(report: AttributionReport) -> dict[str, Any]:
    moved = report.recorded.movement
    return {
        "level": report.delivery_level,
        "evidence": DELIVERY[report.delivery_level],
        "nic": None
        if moved is None
        else {
            "devices": list(moved.devices),
            "sent_bytes": moved.sent_bytes,
            "received_bytes": moved.received_bytes,
            "agrees": moved.agrees,
            "asked_sent_bytes": moved.asked.sent_bytes,
            "asked_fetched_bytes": moved.asked.fetched_bytes,
            "sent_difference_bytes": moved.sent.bytes if moved.sent else None,
            "fetched_difference_bytes": moved.fetched.bytes if moved.fetched else None,
            "payload_bytes": moved.payload_bytes,
            "payload_difference_bytes": moved.payload.bytes if moved.payload else None,
            "resets": moved.resets,
            "wraps": moved.wraps,
            "provenance": MEASURED,
        },
    }


def _verdict(report: AttributionReport) -> dict[str, Any]:
    verdict = report.verdict
    return {
        "step": None,
        "path": verdict.path,
        "where": verdict.where,
        "kind": verdict.kind,
        "grade": verdict.grade,
        "reason": NO_STEPS,
        "rules": [{"label": label, "holds": holds} for label, holds in verdict.rules],
        "unknown": list(verdict.unknown),
        "runner_up": None,
        "evidence": [],
        "next_experiment": report.next_command,
    }
