"""The dispatch arithmetic as tables and notes, for the terminal and for markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from efaprof.report.model_report import ModelReport, rate_statement
from efaprof.report.sections import LEGEND, Notes, Section, Table
from efaprof.trace.layers import PROVENANCE_MARK

if TYPE_CHECKING:
    from efaprof.analyzers.dispatch_model import ArmModel
    from efaprof.analyzers.op_time import Quantity


def model_heading(report: ModelReport) -> str:
    """First line of the report."""
    shape, inputs = report.inputs.shape, report.inputs
    return (
        f"efaprof model · {shape.name} · {shape.layers} layers, hidden {shape.hidden}, {shape.experts} experts, top "
        f"{shape.topk} · {shape.ranks} ranks on {shape.nodes} nodes · T = {shape.tokens:g} tokens per rank and step, "
        f"C = {shape.channels} channels, {inputs.mode.value} mode"
    )


def model_sections(report: ModelReport) -> list[Section]:
    """What the report says, in order: the arms, stages, removals, formulas, published arithmetic, warnings."""
    sections: list[Section] = [_arms(report), _stages(report)]
    removals = _removals(report)
    if removals.rows:
        sections.append(removals)
    sections += [Notes("formulas", tuple(_formulas(report))), Notes("published", (rate_statement(report),))]
    if report.warnings:
        sections.append(Notes("warnings", report.warnings))
    sections.append(
        Notes(LEGEND, ("a result is derived, or assumed as soon as one input is; t_op is effective: nothing overlaps",))
    )
    return sections


def _arms(report: ModelReport) -> Table:
    rows = tuple(
        (
            arm.arm.value,
            tagged(arm.ops_per_layer, 1),
            tagged(arm.ops_per_step, 0),
            tagged(arm.t_op_us, 3),
            tagged(arm.tax_ms, 3),
            tagged(arm.tax_per_layer_us, 1),
            tagged(arm.wire_bytes_per_layer, 0),
            tagged(arm.wire_us_per_layer, 3),
            _percent(arm.utilisation),
            _speed(arm.itl_ms),
        )
        for arm in report.arms
    )
    columns = (
        "path",
        "ops/layer",
        "ops/step",
        "t_op µs",
        "tax ms/token",
        "µs/layer",
        "bytes/layer",
        "wire µs",
        "utilisation",
        "tok/s",
    )
    return Table("path", columns, rows, frozenset({"path"}))


def _stages(report: ModelReport) -> Table:
    rows = []
    for arm in report.arms:
        for stage in arm.stages:
            rows.append((arm.arm.value, stage.name, tagged(stage.per_op_us, 3), stage.per_op_us.formula))
    columns = ("path", "stage", "µs per operation", "from")
    return Table("path", columns, tuple(rows), frozenset({"path", "stage", "from"}))


def _removals(report: ModelReport) -> Table:
    rows = [
        (arm.arm.value, removal.stage, tagged(removal.saves_ms, 3), tagged(removal.tok_s, 2), removal.saves_ms.formula)
        for arm in report.arms
        for removal in arm.removals
    ]
    columns = ("path", "without", "saves ms/token", "tok/s after", "from")
    return Table("path", columns, tuple(rows), frozenset({"path", "without", "from"}))


def _formulas(report: ModelReport) -> list[str]:
    """Each formula once, with the paths that it holds for."""
    found: dict[str, list[str]] = {}
    for arm in report.arms:
        for name, quantity in _quantities(arm):
            found.setdefault(f"{name} = {quantity.formula}", []).append(arm.arm.value)
    base = report.inputs.dense_itl_ms
    if base is not None:
        found[f"ITL of the dense arm = {base.formula}"] = ["input"]
    everywhere = len(report.arms)
    return [text if len(arms) == everywhere else f"{text}  ({', '.join(arms)})" for text, arms in found.items()]


def _quantities(arm: ArmModel) -> tuple[tuple[str, Quantity], ...]:
    return (
        ("operations per layer", arm.ops_per_layer),
        ("operations per step", arm.ops_per_step),
        ("t_op", arm.t_op_us),
        ("tax", arm.tax_ms),
        ("tax per layer", arm.tax_per_layer_us),
        ("bytes per layer", arm.wire_bytes_per_layer),
        ("wire time per layer", arm.wire_us_per_layer),
        ("utilisation", arm.utilisation),
        ("ITL", arm.itl_ms),
    )


def tagged(quantity: Quantity, digits: int) -> str:
    """A number with the mark of its provenance; a dash where it could not be said."""
    if quantity.value is None:
        return "–"
    return f"{quantity.value:,.{digits}f} {PROVENANCE_MARK[quantity.provenance]}".replace(",", " ")


def _percent(quantity: Quantity) -> str:
    if quantity.value is None:
        return "–"
    shown = f"{quantity.value:.3%}" if quantity.value >= 1e-5 else "<0.001%"
    return f"{shown} {PROVENANCE_MARK[quantity.provenance]}"


def _speed(itl_ms: Quantity) -> str:
    if not itl_ms.value:
        return "–"
    return f"{1000 / itl_ms.value:.2f} {PROVENANCE_MARK[itl_ms.provenance]}"
