"""t_op: the effective time that one operation adds to a step, by stage, and where it was taken from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from efaprof.analyzers import op_counts
from efaprof.trace.layers import DispatchPath, Layer, Provenance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Published medians of one campaign on one configuration (2 × p5en, 16 ranks, 128 tokens a rank, 16 channels), µs:
# dispatch and combine by the CPU proxy and by kernel-posted work queue entries.
CAMPAIGN_PROXY_US = (391.6, 543.4)
CAMPAIGN_KERNEL_US = (338.5, 480.7)
CAMPAIGN_TOKENS = 128.0
CAMPAIGN_CHANNELS = 16

HOST = (Layer.RING, Layer.PROXY, Layer.LIBFABRIC)
REST = (Layer.KERNEL, Layer.NIC, Layer.RX, Layer.POLL)


class Arm(StrEnum):
    """Ways to move the tokens."""

    PROXY = "proxy"
    GDAKI = "gdaki"
    IBGDA = "ibgda"
    DENSE = "dense"


# What an operation climbs on each of them; the control arm posts no operation per token.
STAGES: Mapping[Arm, tuple[Layer, ...]] = {
    Arm.PROXY: (Layer.KERNEL, Layer.RING, Layer.PROXY, Layer.LIBFABRIC, Layer.NIC, Layer.RX, Layer.POLL),
    Arm.GDAKI: REST,
    Arm.IBGDA: REST,
    Arm.DENSE: (),
}
ARM_OF_PATH: Mapping[DispatchPath, Arm] = {
    DispatchPath.PROXY: Arm.PROXY,
    DispatchPath.GDAKI: Arm.GDAKI,
    DispatchPath.DENSE: Arm.DENSE,
}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number and how it came to be; a value of None could not be said."""

    value: float | None
    provenance: Provenance
    formula: str


@dataclass(frozen=True, slots=True)
class Stage:
    """Effective time that one or more layers add per operation."""

    layers: tuple[Layer, ...]
    per_op_us: Quantity
    recoverable_us: Quantity | None = None  # per step: what a replay of a run says that removing it saves

    @property
    def name(self) -> str:
        """The layers, joined."""
        return "+".join(layer.value for layer in self.layers)


@dataclass(frozen=True, slots=True)
class OpTime:
    """t_op by stage. `arm` names the path that it was taken from; None means that it holds for any."""

    stages: tuple[Stage, ...]
    source: str
    arm: Arm | None = None
    ops_per_step: float | None = None  # of the run that it was taken from
    groups_us: Mapping[str, Quantity] | None = None  # joint recoverable time per step: host, issue, receive, fence

    def on(self, arm: Arm) -> tuple[Stage, ...]:
        """The stages that `arm` has; what was measured on another path is assumed to hold on this one."""
        found = tuple(stage for stage in self.stages if set(stage.layers) & set(STAGES[arm]))
        if self.arm is None or self.arm is arm:
            return found
        return tuple(
            Stage(stage.layers, replace(stage.per_op_us, provenance=Provenance.ASSUMED, formula=f"as on {self.arm}"))
            for stage in found
        )


@dataclass(frozen=True, slots=True)
class RecordedCosts:
    """What a run's attribution says: microseconds by layer, of one step or, without steps, of the mean operation."""

    source: str
    path: DispatchPath
    layers_us: Mapping[Layer, float]
    recoverable_us: Mapping[Layer, float]  # per step: what removing the layer on every rank would save, if replayed
    groups_us: Mapping[str, float]  # per step, joint recoverable time: host, issue, receive, fence
    operations_per_step: float | None  # None: no steps were recorded, `layers_us` is per operation
    tokens_per_step: float
    emulated: tuple[str, ...]


def campaign_op_time() -> OpTime:
    """Default t_op in two stages, from the published proxy and kernel-posted medians of one configuration.

    Assumed, not derived: it was measured at 128 tokens a rank and is applied to decode steps.
    """
    shape = replace(op_counts.PRESETS["deepseek-v3"], tokens=CAMPAIGN_TOKENS, channels=CAMPAIGN_CHANNELS)
    ops = op_counts.hybrid(shape).per_layer
    kernel, proxy = sum(CAMPAIGN_KERNEL_US), sum(CAMPAIGN_PROXY_US)
    where = f"published medians, {CAMPAIGN_TOKENS:.0f} tokens a rank, {ops:.0f} operations"
    host = Quantity((proxy - kernel) / ops, Provenance.ASSUMED, f"(proxy − kernel-posted)/operations; {where}")
    rest = Quantity(kernel / ops, Provenance.ASSUMED, f"kernel-posted/operations; {where}")
    return OpTime((Stage(HOST, host), Stage(REST, rest)), source="published campaign at another shape")


def given_op_time(stages_us: Mapping[Layer, float]) -> OpTime:
    """t_op by stage as the user states it."""
    return OpTime(
        tuple(Stage((layer,), Quantity(value, Provenance.ASSUMED, "given")) for layer, value in stages_us.items()),
        source="given",
    )


def total_op_time(t_op_us: float) -> OpTime:
    """One t_op for every arm, not split into stages."""
    return OpTime((Stage(STAGES[Arm.PROXY], Quantity(t_op_us, Provenance.ASSUMED, "given")),), source="given")


def recorded_op_time(costs: RecordedCosts) -> OpTime:
    """t_op by stage of a recorded run.

    With steps: the layer's conserving contribution per step over the operations per step. Without: the mean duration of
    an operation in the layer, from which nothing that overlaps was taken out.
    """
    arm = ARM_OF_PATH.get(costs.path)
    kept = [layer for layer in STAGES[Arm.PROXY] if costs.layers_us.get(layer)]
    operations = costs.operations_per_step
    # A mean duration is measured; that it is what an operation adds to a step is not.
    provenance, formula = Provenance.ASSUMED, f"mean operation of {costs.source}, overlap not taken out"
    if operations is not None:
        provenance = Provenance.MEASURED
        formula = f"contribution per step/{operations:g} operations of {costs.source}"
    stages = tuple(
        Stage(
            (layer,),
            Quantity(costs.layers_us[layer] / (operations or 1.0), provenance, formula),
            _replayed(costs.recoverable_us.get(layer)),
        )
        for layer in kept
    )
    groups = {name: replayed for name, value in costs.groups_us.items() if (replayed := _replayed(value)) is not None}
    return OpTime(stages, costs.source, arm, costs.operations_per_step, groups)


def _replayed(value_us: float | None) -> Quantity | None:
    return None if value_us is None else Quantity(value_us, Provenance.DERIVED, "step − replayed step of the run")


def weakest(quantities: Sequence[Quantity]) -> Provenance:
    """How a result came to be: derived, or assumed as soon as one of its inputs is."""
    assumed = any(one.provenance is Provenance.ASSUMED for one in quantities)
    return Provenance.ASSUMED if assumed else Provenance.DERIVED
