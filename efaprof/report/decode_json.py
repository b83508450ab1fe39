"""The decode steps of an attribution report as keys of efaprof.attribution/1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from efaprof.analyzers.verdict import evidence
from efaprof.trace.layers import Provenance

if TYPE_CHECKING:
    from efaprof.analyzers.attribution import LayerSplit
    from efaprof.analyzers.batches import Estimate
    from efaprof.analyzers.decode import Decode
    from efaprof.report.decode_report import DecodeSection

_NS_PER_US = 1e3
MEASURED, DERIVED, ASSUMED = Provenance.MEASURED.value, Provenance.DERIVED.value, Provenance.ASSUMED.value


def decode_keys(section: DecodeSection) -> dict[str, Any]:
    """Keys of the document that steps fill; the others stay as they are."""
    decode = section.decode
    split = decode.split
    return {
        "steps": split.steps,
        "steps_excluded": split.steps_excluded,
        "tokens_per_step": {"value": 1.0, "provenance": ASSUMED},
        "wall_us": {**_estimate(split.wall_us), "provenance": MEASURED},
        "job_wall_us": split.job_wall_us,
        "coverage": split.coverage,
        "conservation_error_ns": split.conservation_error_ns,
        "overlap_clip_ns": split.overlap_clip_ns,
        "clusters": {
            "unit": f"{split.batching.batch_steps} consecutive steps",
            "n": split.batching.batches,
            "batch": split.batching.batch_steps,
            "lag1": split.batching.lag1,
        },
        "layers": [_layer(decode, row) for row in split.layers],
        "groups": _groups(decode),
        "verdict": _verdict(decode),
    }


def operation_keys(section: DecodeSection) -> dict[str, Any]:
    """Keys of `operations` that steps fill."""
    decode = section.decode
    split = decode.split
    return {
        "predicted": section.predicted_per_step,
        "per_step": {
            "count": split.operations_per_step,
            "bytes": split.bytes_per_step,
            "by_command": {
                kind.kind: {"count": kind.count, "bytes": kind.bytes, "provenance": MEASURED} for kind in decode.kinds
            },
            "stamped": decode.stamped,
            "unfinished": split.unfinished,
            "provenance": MEASURED,
        },
        "verified_tokens": section.verified_tokens,
        "mismatches": section.mismatches,
    }


def _estimate(value: Estimate) -> dict[str, float | None]:
    return {"value": value.value, "lo": value.lo, "hi": value.hi}


def _layer(decode: Decode, row: LayerSplit) -> dict[str, Any]:
    spread = decode.latencies.get(row.layer)
    return {
        "layer": row.layer.value,
        "us": _estimate(row.us),
        "share": row.share,
        "queue_us": row.queue_us,
        "recoverable_us": None,
        "overlapped_us": row.overlapped_us,
        "tail_share": decode.split.tail.get(row.layer),
        "operations": None
        if spread is None
        else {
            "n": spread.n,
            "sum_us": spread.sum_ns / _NS_PER_US,
            "p50_us": spread.p50_ns / _NS_PER_US,
            "p90_us": spread.p90_ns / _NS_PER_US,
            "p99_us": spread.p99_ns / _NS_PER_US,
            "max_us": spread.max_ns / _NS_PER_US,
        },
        "provenance": DERIVED,
    }


def _groups(decode: Decode) -> dict[str, Any]:
    """Contribution of each group; what removing it would buy needs the replay, which this method has not."""
    members = {
        "host": ("ring", "proxy", "libfabric"),
        "issue": ("kernel", "ring", "proxy", "libfabric"),
        "receive": ("rx", "poll"),
    }
    us = {row.layer.value: row.us.value for row in decode.split.layers}
    found: dict[str, Any] = {
        name: {"us": sum(us.get(layer, 0.0) for layer in layers), "recoverable_us": None}
        for name, layers in members.items()
    }
    return {**found, "fence": {"us": None, "recoverable_us": None}}


def _verdict(decode: Decode) -> dict[str, Any]:
    verdict = decode.verdict
    return {
        "step": verdict.step,
        "path": verdict.path,
        "where": verdict.where,
        "kind": verdict.kind,
        "grade": verdict.grade,
        "reason": "; ".join(failed.reason for failed in decode.failed) or None,
        "rules": [{"label": label, "holds": holds} for label, holds in verdict.rules],
        "unknown": list(verdict.unknown),
        "runner_up": verdict.runner_up,
        "evidence": [
            {
                "name": one.feature.name,
                "value": one.feature.value,
                "lo": one.feature.lo,
                "hi": one.feature.hi,
                "of": one.feature.note,
                "threshold": f"{one.bound} {one.threshold:g}",
                "provenance": one.feature.provenance.value,
            }
            for one in evidence(verdict, decode.features)
        ],
        "next_experiment": verdict.next_experiment,
    }
