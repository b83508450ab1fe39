"""The decode steps of an attribution report as keys of efaprof.attribution/1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from efaprof.analyzers.replay import FENCE, GROUPS, STANDARD
from efaprof.analyzers.verdict import evidence
from efaprof.report.annotated_report import found_keys
from efaprof.trace.layers import Layer, Provenance
from efaprof.trace.postings import PARTS

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
        "tokens_per_step": _tokens(section),
        "steps_found": found_keys(section),
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
        "recoverable_is_upper_bound": decode.is_upper_bound if split.changes else None,
        "what_if": [
            {"change": name, "recoverable_us": _estimate(value), "provenance": DERIVED}
            for name, value in split.changes.items()
            if name not in {change.name for change in STANDARD}
        ],
        "path_by": None
        if decode.path_by is None
        else {
            "key": decode.path_by.value,
            "groups": [
                {
                    "key": group.key,
                    "windows": group.windows,
                    "us": group.us,
                    "layers_us": {layer.value: us for layer, us in group.layers.items()},
                    "provenance": DERIVED,
                }
                for group in decode.groups
            ],
        },
        "kernel_parts": _kernel_parts(section),
        "contradictions": decode.cut_edges,
        "host_clocks": None
        if section.clocks is None
        else {
            "hosts": section.clocks.hosts,
            "error_ns": section.clocks.error_ns,
            "drift_ppm": section.clocks.drift * 1e6,
            "is_merged": decode.is_merged,
            "provenance": DERIVED,
        },
        "job_layers": [{"layer": layer.value, "us": us, "provenance": DERIVED} for layer, us in decode.job.items()],
        "skew_by": [
            {"rank": one.rank, "late_rank": one.late_rank, "us": one.us, "true_us": one.true_us, "provenance": DERIVED}
            for one in decode.skew_by
        ],
        "verdict": _verdict(decode),
    }


def _tokens(section: DecodeSection) -> dict[str, Any]:
    if section.tokens is None:
        return {"value": 1.0, "provenance": ASSUMED}
    return {"value": section.tokens.per_sequence, "provenance": section.tokens.provenance.value}


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
        "recoverable_us": None if row.recoverable is None else _estimate(row.recoverable),
        "overlapped_us": row.overlapped_us,
        "walked_operations": row.walked,
        **({"true_us": row.true_us} if row.layer is Layer.SKEW else {}),
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


def _kernel_parts(section: DecodeSection) -> dict[str, Any] | None:
    """What kernels that post by themselves spent an operation's issue on."""
    totals, split = section.postings, section.decode.split
    if totals is None:
        return None
    steps = max(split.steps * len(split.ranks), 1)
    return {
        "operations": totals.operations,
        "entries_per_doorbell": totals.operations / totals.doorbells,
        "provenance": MEASURED,
        "parts": [
            {
                "part": part,
                "mean_us": totals.sum_ns[part] / totals.operations / _NS_PER_US,
                "us": totals.sum_ns[part] / steps / _NS_PER_US,
                "max_us": totals.max_ns[part] / _NS_PER_US,
            }
            for part in PARTS
        ],
    }


def _groups(decode: Decode) -> dict[str, Any]:
    """Contribution of each group, and what removing it as a whole would buy: None where nothing was replayed."""
    us = {row.layer: row.us.value for row in decode.split.layers}

    def recoverable(name: str) -> dict[str, float | None] | None:
        found = decode.split.changes.get(name)
        return None if found is None else _estimate(found)

    found: dict[str, Any] = {
        name: {"us": sum(us.get(layer, 0.0) for layer in layers), "recoverable_us": recoverable(name)}
        for name, layers in GROUPS.items()
    }
    return {**found, FENCE: {"us": None, "recoverable_us": recoverable(FENCE)}}


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
