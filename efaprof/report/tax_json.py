"""The tax report as JSON, schema efaprof.tax/1 (efaprof/report/schemas/efaprof.tax.1.json)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from efaprof.report.tax_sections import outcome
from efaprof.trace.layers import Provenance

if TYPE_CHECKING:
    from efaprof.analyzers.batches import Estimate
    from efaprof.analyzers.invariance import Flatness
    from efaprof.analyzers.load_points import LoadPoint
    from efaprof.analyzers.serving import CellKey
    from efaprof.analyzers.tax import Tax, TaxReport

SCHEMA = "efaprof.tax/1"


def tax_document(report: TaxReport) -> dict[str, Any]:
    """The whole report; numbers are not rounded. `cells` are in order of load."""
    options = report.options
    return {
        "schema": SCHEMA,
        "baseline": report.baseline,
        "options": {
            "session_window_h": options.session_window_h,
            "extrapolate": options.may_extrapolate,
            "moe_layers": options.moe_layers,
            "margin": options.margin,
            "tight_margin": options.tight_margin,
        },
        "cells": [_cell(key, report) for key in _keys(report)],
        "invariance": {name: _flatness(flat) for name, flat in report.invariance.items()},
        "warnings": list(report.warnings),
    }


def _keys(report: TaxReport) -> list[CellKey]:
    keys: list[CellKey] = []
    for points in report.arms.values():
        keys += [point.key for point in points if not any(point.key.matches(key) for key in keys)]
    return sorted(keys, key=lambda key: (key.concurrency, key.isl or 0, key.osl or 0))


def _cell(key: CellKey, report: TaxReport) -> dict[str, Any]:
    arms = {name: _point(point) for name, points in report.arms.items() for point in points if point.key.matches(key)}
    taxes = {tax.arm: _tax(tax) for tax in report.taxes if tax.key.matches(key)}
    first = next(iter(taxes.values()), None)
    return {
        "concurrency": key.concurrency,
        "isl": key.isl,
        "osl": key.osl,
        "arms": arms,
        # The first arm's tax, for the usual case of one arm and its baseline; `taxes` has every arm's.
        "tax_ms": None if first is None else first["tax_ms"],
        "ratio": None if first is None else first["ratio"],
        "taxes": taxes,
    }


def _point(point: LoadPoint) -> dict[str, Any]:
    counts = point.counts
    return {
        "itl_ms": _estimate(point.mean.interval(), Provenance.MEASURED),
        "per_user_tok_s": point.per_user_tok_s,
        "per_user_provenance": point.per_user_provenance.value,
        "clusters": point.units,
        "cluster_unit": point.unit.value,
        "icc": point.icc,
        "icc_provenance": point.icc_provenance.value,
        "lag1": point.lag1,
        "wave_kind": None if point.wave_kind is None else point.wave_kind.value,
        "warmup_waves_dropped": point.warmup_waves,
        "cold_ttft_ratio": point.cold_ttft,
        "concurrency_provenance": point.concurrency_provenance.value,
        "requests": {name: getattr(counts, name) for name in type(counts).__dataclass_fields__},
        "chunks": _chunks(point),
        "ops_per_step": point.ops_per_step,
        "sessions": [None if session is None else _time(session) for session in point.sessions_ns],
        "sources": list(point.sources),
        "formats": [form.value for form in point.formats],
        "model": point.model,
    }


def _chunks(point: LoadPoint) -> dict[str, Any] | None:
    chunks = point.chunks
    if chunks is None:
        return None
    stalls = chunks.stalls
    return {
        "gaps": chunks.gaps,
        "coalesced_chunks": chunks.coalesced_chunks,
        "coalesced_tokens": chunks.coalesced_tokens,
        "unplaced_tokens": chunks.unplaced_tokens,
        "surplus_chunks": chunks.surplus_chunks,
        "unfolded_p50_ms": chunks.p50_ms,
        "unfolded_p99_ms": chunks.p99_ms,
        "long_gaps": chunks.long_gaps,
        "long_gaps_not_kept": chunks.candidates_not_kept,
        "stalls": None
        if stalls is None
        else {
            "events": stalls.events,
            "hits": stalls.hits,
            "excess_ms": stalls.excess_ms,
            "lone_gaps": stalls.lone_gaps,
            "ms_per_token": point.stall_ms_per_token,
        },
    }


def _tax(tax: Tax) -> dict[str, Any]:
    return {
        "tax_ms": _estimate(tax.mean.interval(), Provenance.DERIVED),
        "ratio": tax.ratio,
        "tax_without_stalls_ms": tax.without_stalls_ms,
        "tax_per_layer_us": None if tax.per_layer_us is None else _estimate(tax.per_layer_us, Provenance.DERIVED),
        "extrapolated": list(tax.extrapolated),
    }


def _flatness(flat: Flatness) -> dict[str, Any]:
    lever = flat.leverage
    return {
        "outcome": flat.outcome.value,
        "words": outcome(flat),
        "change": flat.change,
        "lo": flat.lo,
        "hi": flat.hi,
        "lo95": flat.lo95,
        "hi95": flat.hi95,
        "slope_significant": flat.is_slope_significant,
        "margin": flat.margin,
        "tight_margin": flat.tight_margin,
        "within_tight_margin": flat.is_within_tight,
        "loads": list(flat.loads),
        "clusters": flat.units,
        "cluster_unit": flat.unit.value,
        "one_run_per_load": flat.is_one_run_per_load,
        "leverage": {
            "ops_growth": lever.growth,
            "provenance": lever.provenance.value,
            "informative": lever.is_informative,
            "statement": lever.statement,
        },
    }


def _estimate(estimate: Estimate, provenance: Provenance) -> dict[str, Any]:
    return {"value": estimate.value, "lo": estimate.lo, "hi": estimate.hi, "provenance": provenance.value}


def _time(unix_ns: int) -> str:
    return datetime.fromtimestamp(unix_ns / 1e9, UTC).isoformat(timespec="seconds")
