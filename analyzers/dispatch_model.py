"""The arithmetic behind the tax: operations × time per operation, stage by stage, for each way of posting operations.

Serial by construction: t_op is the *effective* time that one operation adds to a step, so the product is the step's
communication time and nothing is said about overlap. Every number carries how it came to be and its formula.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from efaprof.analyzers import op_counts
from efaprof.analyzers.op_counts import OpCount, Shape
from efaprof.analyzers.op_time import STAGES, Arm, OpTime, Quantity, Stage, campaign_op_time, weakest
from efaprof.errors import UsageError
from efaprof.trace.layers import Provenance

if TYPE_CHECKING:
    from collections.abc import Sequence

LINE_RATE_BYTES_S = 50e9  # two 200 Gb/s NICs a GPU, as on p5en


class Mode(StrEnum):
    """How DeepEP V2 routes tokens."""

    HYBRID = "hybrid"
    DIRECT = "direct"


@dataclass(frozen=True, slots=True)
class Removal:
    """What taking one stage away would buy, at most."""

    stage: str
    saves_ms: Quantity  # per token
    tok_s: Quantity  # per user, after it


@dataclass(frozen=True, slots=True)
class ArmModel:
    """The arithmetic of one way of posting."""

    arm: Arm
    ops: OpCount | None
    ops_per_layer: Quantity
    ops_per_step: Quantity
    stages: tuple[Stage, ...]
    t_op_us: Quantity
    tax_ms: Quantity  # per token
    tax_per_layer_us: Quantity
    itl_ms: Quantity
    wire_bytes_per_layer: Quantity
    wire_us_per_layer: Quantity
    utilisation: Quantity  # wire time over the tax: window = the communication that the tax is made of
    removals: tuple[Removal, ...]


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """What the arithmetic starts from."""

    shape: Shape
    mode: Mode = Mode.HYBRID
    op_time: OpTime | None = None  # None: the campaign's
    ops_per_layer: float | None = None  # explicit; replaces the derived count of proxy and gdaki
    dense_itl_ms: Quantity | None = None
    line_rate_bytes_s: float = LINE_RATE_BYTES_S
    tokens_per_step: float = 1.0  # accepted per decode step (speculative decoding: more than 1)
    solve_tax_ms: float | None = None  # solve t_op from this tax instead of computing the tax
    arms: Sequence[Arm] = field(default_factory=lambda: tuple(Arm))


def model(inputs: ModelInputs) -> tuple[ArmModel, ...]:
    """The arithmetic for every arm asked for."""
    return tuple(_arm(arm, inputs) for arm in inputs.arms)


def count(arm: Arm, inputs: ModelInputs) -> OpCount:
    """Derived operations and bytes of one layer."""
    if arm is Arm.IBGDA:
        return op_counts.low_latency(inputs.shape)
    if arm is Arm.DENSE:
        return op_counts.dense(inputs.shape)
    return (op_counts.direct if inputs.mode is Mode.DIRECT else op_counts.hybrid)(inputs.shape)


def _arm(arm: Arm, inputs: ModelInputs) -> ArmModel:
    shape = inputs.shape
    ops = count(arm, inputs)
    per_layer = _ops_per_layer(arm, ops, inputs)
    assert per_layer.value is not None
    per_step = Quantity(per_layer.value * shape.layers, per_layer.provenance, f"operations per layer × {shape.layers}")
    stages, t_op, tax = _time(arm, per_step, inputs)
    per_layer_us = _scaled(tax, 1e3 * inputs.tokens_per_step / shape.layers, f"tax × tokens per step/{shape.layers}")
    wire_us = ops.wire_bytes / inputs.line_rate_bytes_s * 1e6
    rate = f"{inputs.line_rate_bytes_s / 1e9:g} GB/s"
    base = inputs.dense_itl_ms
    return ArmModel(
        arm=arm,
        ops=ops if inputs.ops_per_layer is None or arm in (Arm.IBGDA, Arm.DENSE) else None,
        ops_per_layer=per_layer,
        ops_per_step=per_step,
        stages=stages,
        t_op_us=t_op,
        tax_ms=tax,
        tax_per_layer_us=per_layer_us,
        itl_ms=_sum(base, tax),
        wire_bytes_per_layer=Quantity(ops.wire_bytes, Provenance.DERIVED, _bytes_formula(arm)),
        wire_us_per_layer=Quantity(wire_us, Provenance.DERIVED, f"bytes per layer/{rate}"),
        utilisation=Quantity(
            wire_us / per_layer_us.value if per_layer_us.value else None,
            weakest([per_layer_us]),
            "wire time/tax per layer (window: the tax itself)",
        ),
        removals=_removals(arm, stages, per_step, base, tax, inputs),
    )


def _ops_per_layer(arm: Arm, ops: OpCount, inputs: ModelInputs) -> Quantity:
    if arm in (Arm.PROXY, Arm.GDAKI):
        if inputs.ops_per_layer is not None:
            return Quantity(inputs.ops_per_layer, Provenance.ASSUMED, "given")
        timed = inputs.op_time
        if timed is not None and timed.arm is arm and timed.ops_per_step is not None:
            value = timed.ops_per_step / inputs.shape.layers
            return Quantity(value, Provenance.MEASURED, f"operations per step of {timed.source}/{inputs.shape.layers}")
    provenance = Provenance.ASSUMED if arm is Arm.DENSE else Provenance.DERIVED
    return Quantity(ops.per_layer, provenance, ops.formula)


def _time(arm: Arm, per_step: Quantity, inputs: ModelInputs) -> tuple[tuple[Stage, ...], Quantity, Quantity]:
    """Stages, t_op and tax of one arm: solved from the tax, or added up from the stages."""
    tokens = inputs.tokens_per_step
    if arm is Arm.DENSE:
        return (
            (),
            Quantity(None, Provenance.DERIVED, "no operation per token"),
            Quantity(0.0, Provenance.ASSUMED, "the control arm: the others are measured against it"),
        )
    assert per_step.value is not None
    if inputs.solve_tax_ms is not None:
        tax = Quantity(inputs.solve_tax_ms, Provenance.ASSUMED, "given")
        solved = inputs.solve_tax_ms * 1e3 * tokens / per_step.value
        t_op = Quantity(solved, weakest([tax, per_step]), "tax × tokens per step/operations per step")
        stage = Stage(STAGES[arm], replace(t_op, formula="all stages together: a tax alone does not split them"))
        return (stage,), t_op, tax
    stages = (inputs.op_time or campaign_op_time()).on(arm)
    if not stages:
        raise UsageError(f"no stage of {arm.value} has a time", hint="give --stage LAYER=TIME, or --t-op TIME")
    values = [stage.per_op_us.value or 0.0 for stage in stages]
    t_op = Quantity(sum(values), weakest([stage.per_op_us for stage in stages]), "sum of its stages")
    tax = Quantity(
        per_step.value * sum(values) / 1e3 / tokens,
        weakest([t_op, per_step]),
        "operations per step × t_op/tokens per step",
    )
    return stages, t_op, tax


def _removals(
    arm: Arm, stages: Sequence[Stage], per_step: Quantity, base: Quantity | None, tax: Quantity, inputs: ModelInputs
) -> tuple[Removal, ...]:
    """What taking away each stage, and each group that a run was replayed without, would buy."""
    if per_step.value is None:
        return ()
    itl = _sum(base, tax)
    bought: list[tuple[str, Quantity]] = []
    if len(stages) > 1:
        bought = [(stage.name, _saved(stage, per_step, inputs.tokens_per_step)) for stage in stages]
    timed = inputs.op_time
    if timed is not None and timed.arm is arm and timed.groups_us:
        scale = 1e-3 / inputs.tokens_per_step
        bought += [(f"{name} together", _scaled(us, scale, us.formula)) for name, us in timed.groups_us.items()]
    found: list[Removal] = []
    for name, saves in bought:
        after = None if itl.value is None or saves.value is None else 1e3 / (itl.value - saves.value)
        found.append(Removal(name, saves, Quantity(after, weakest([itl, saves]), "1000/(ITL − saved)")))
    return tuple(found)


def _saved(stage: Stage, per_step: Quantity, tokens_per_step: float) -> Quantity:
    if stage.recoverable_us is not None:
        return _scaled(stage.recoverable_us, 1e-3 / tokens_per_step, stage.recoverable_us.formula)
    product = Quantity(
        (per_step.value or 0.0) * (stage.per_op_us.value or 0.0), weakest([stage.per_op_us, per_step]), ""
    )
    return _scaled(product, 1e-3 / tokens_per_step, "operations × its time: an upper bound")


def _sum(base: Quantity | None, tax: Quantity) -> Quantity:
    if base is None or base.value is None or tax.value is None:
        return Quantity(None, Provenance.ASSUMED, "no ITL of the dense arm was given")
    return Quantity(base.value + tax.value, weakest([base, tax]), "ITL of the dense arm + tax")


def _scaled(quantity: Quantity, factor: float, formula: str) -> Quantity:
    value = None if quantity.value is None else quantity.value * factor
    return Quantity(value, weakest([quantity]), formula)


def _bytes_formula(arm: Arm) -> str:
    return {
        Arm.IBGDA: "remote share × topk × T × (dispatch + combine bytes) + atomics",
        Arm.DENSE: "2·(nodes − 1)·T·hidden·2 bytes (hierarchical gather and reduce assumed)",
    }.get(arm, "reached nodes or ranks × T × (dispatch + combine bytes) + notify + 32 per signal")
