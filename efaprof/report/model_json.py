"""The dispatch arithmetic as JSON, schema efaprof.model/1 (efaprof/report/schemas/efaprof.model.1.json)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from efaprof.report.model_report import rate_statement
from efaprof.trace.layers import Provenance

if TYPE_CHECKING:
    from efaprof.analyzers.dispatch_model import ArmModel
    from efaprof.analyzers.op_time import Quantity
    from efaprof.report.model_report import ModelReport

SCHEMA = "efaprof.model/1"


def model_document(report: ModelReport) -> dict[str, Any]:
    """The whole report; every number is `{value, provenance, formula}`, its unit in the key."""
    return {
        "schema": SCHEMA,
        "inputs": _inputs(report),
        "paths": [_arm(arm) for arm in report.arms],
        "published": _published(report),
        "warnings": list(report.warnings),
    }


def _inputs(report: ModelReport) -> dict[str, Any]:
    inputs, shape = report.inputs, report.inputs.shape
    given = {
        "layers": shape.layers,
        "hidden": shape.hidden,
        "experts": shape.experts,
        "topk": shape.topk,
        "ranks": shape.ranks,
        "nodes": shape.nodes,
        "tokens_per_rank_and_step": shape.tokens,
        "channels": shape.channels,
        "tokens_per_step": inputs.tokens_per_step,
        "line_rate_bytes_s": inputs.line_rate_bytes_s,
    }
    document: dict[str, Any] = {
        "shape": shape.name,
        "mode": inputs.mode.value,
        "dtype": shape.dtype.value,
        "t_op_source": "solved from the tax" if report.op_time is None else report.op_time.source,
        "dispatch_bytes": _value(shape.dispatch_bytes, Provenance.DERIVED, "activations + scales + top-k fields"),
        "combine_bytes": _value(shape.combine_bytes, Provenance.DERIVED, "2·hidden + 64"),
        "dense_itl_ms": None if inputs.dense_itl_ms is None else _quantity(inputs.dense_itl_ms),
        "solve_tax_ms": None
        if inputs.solve_tax_ms is None
        else _value(inputs.solve_tax_ms, Provenance.ASSUMED, "given"),
    }
    for name, value in given.items():
        document[name] = _value(value, Provenance.ASSUMED, "preset or given")
    return document


def _arm(arm: ArmModel) -> dict[str, Any]:
    return {
        "path": arm.arm.value,
        "ops_by_kind": None if arm.ops is None else dict(arm.ops.by_kind),
        "ops_per_layer": _quantity(arm.ops_per_layer),
        "ops_per_step": _quantity(arm.ops_per_step),
        "stages": [
            {
                "stage": stage.name,
                "layers": [layer.value for layer in stage.layers],
                "t_us": _quantity(stage.per_op_us),
                "recoverable_us": None if stage.recoverable_us is None else _quantity(stage.recoverable_us),
            }
            for stage in arm.stages
        ],
        "t_op_us": _quantity(arm.t_op_us),
        "tax_ms": _quantity(arm.tax_ms),
        "tax_per_layer_us": _quantity(arm.tax_per_layer_us),
        "itl_ms": _quantity(arm.itl_ms),
        "wire_bytes_per_layer": _quantity(arm.wire_bytes_per_layer),
        "wire_us_per_layer": _quantity(arm.wire_us_per_layer),
        "utilisation": _quantity(arm.utilisation),
        "removals": [
            {"without": one.stage, "saves_ms": _quantity(one.saves_ms), "tok_s": _quantity(one.tok_s)}
            for one in arm.removals
        ],
    }


def _published(report: ModelReport) -> dict[str, Any]:
    tax = report.rate_tax
    return {
        "arm_tok_s": tax.arm_tok_s,
        "baseline_tok_s": tax.baseline_tok_s,
        "tax_ms": _value(tax.tax_ms, Provenance.DERIVED, f"1000/{tax.arm_tok_s} − 1000/{tax.baseline_tok_s}"),
        "lowest_tax_ms": tax.lowest_ms,
        "highest_tax_ms": tax.highest_ms,
        "ratio": tax.ratio,
        "printed_tax_ms": report.printed_tax_ms,
        "statement": rate_statement(report),
    }


def _quantity(quantity: Quantity) -> dict[str, Any]:
    return _value(quantity.value, quantity.provenance, quantity.formula)


def _value(value: float | None, provenance: Provenance, formula: str) -> dict[str, Any]:
    return {"value": value, "provenance": provenance.value, "formula": formula}
