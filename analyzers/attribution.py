"""Per-step layer costs (efaprof.analyzers.layers) into the split of a decode step, with its intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.analyzers.batches import Batching, Estimate, choose_batching, estimate
from efaprof.analyzers.by_step import ByStep, DecodeRows
from efaprof.analyzers.layers import OPERATION_SPANS, STEP_LAYERS
from efaprof.analyzers.student import t_quantile
from efaprof.native_wide import NO_TIME
from efaprof.trace.layers import Layer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from efaprof.analyzers.by_step import Costs

NS_PER_US = 1_000.0
DRIFT_LEVEL = 0.01
CRITICAL_PATH, EXCLUSIVE = "critical-path", "exclusive"
RECOVERABLE = "_recoverable_ns"
WALKED = "_walked"
TRUE_SKEW = "true_skew_ns"
WALK_CLIP = "walk_clip_ns"  # a column of walks alone


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """What one layer takes of a decode step, mean over kept steps and ranks."""

    layer: Layer
    us: Estimate  # its part of the split: these sum to the wall time
    share: float
    overlapped_us: float  # open, but under another layer
    queue_us: float | None  # summed over operations; only ring has one
    recoverable: Estimate | None = None  # what the step would be shorter by without it; None where nothing was replayed
    walked: float | None = None  # operations a step whose time here is on the critical path
    true_us: float | None = None  # of skew: the part in which the late rank computed


@dataclass(frozen=True, slots=True)
class DecodeSplit:
    """A decode step split into layers along its critical path, or by the exclusive sweep (METHOD §2)."""

    method: str
    steps: int  # kept
    steps_excluded: dict[str, int]  # kind of step → how many
    ranks: tuple[int, ...]
    wall_us: Estimate  # rank-local
    job_wall_us: float  # last rank's end to last rank's end
    layers: tuple[LayerSplit, ...]
    coverage: float  # 1 − (unattributed + idle) / wall
    conservation_error_ns: int  # largest |Σ layers − wall| of any step
    overlap_clip_ns: float  # per step: by how much deliveries preceded the return of their post
    operations_per_step: float  # per rank
    bytes_per_step: float
    unfinished: int  # operations without a completion
    batching: Batching
    drift: float | None  # change of the wall time over the run, as a part of it, when it is significant (p < 0.01)
    tail: dict[Layer, float]  # share above p99 less share at p40–p60
    changes: dict[str, Estimate]  # what each change that was replayed would save of a step, groups and fence among them

    def of(self, layer: Layer) -> LayerSplit | None:
        """One layer's row, or None where the path has no such layer."""
        return next((row for row in self.layers if row.layer is layer), None)


def decode_split(step_costs: Costs) -> DecodeSplit | None:
    """The split over decode steps that every rank finished; None when there is none.

    Needs the columns of `LayerSplitter.split`, or those of `step_counts` with those of `CriticalPath.split`: rank,
    step, kind, begin_ns, wall_ns, <layer>_ns and the counts.
    """
    decode = DecodeRows(step_costs)
    if not decode.count:
        return None
    is_walked = WALK_CLIP in decode.columns
    layers = _walked_layers(decode) if is_walked else [one for one in STEP_LAYERS if f"{one}_ns" in decode.columns]
    by_step = ByStep(decode, is_whole=True)
    wall = by_step.mean("wall_ns") / NS_PER_US
    batching = choose_batching(wall)
    mean_wall = estimate(wall, batching)
    kinds = pl.DataFrame({"kind": step_costs["kind"], "step": step_costs["step"]})
    excluded = kinds.filter(pl.col("kind") != "decode").group_by("kind").agg(pl.n_unique("step"))
    differing = -decode["wall_ns"].astype(np.int64)
    for layer in layers:
        differing += decode[f"{layer}_ns"]
    unplaced = [name for name in (f"{Layer.IDLE}_ns", f"{Layer.UNATTRIBUTED}_ns") if name in by_step.columns]
    idle_us = sum(_mean_us(by_step, name) for name in unplaced)
    return DecodeSplit(
        method=CRITICAL_PATH if is_walked else EXCLUSIVE,
        steps=len(by_step),
        steps_excluded={str(kind): int(count) for kind, count in excluded.sort("kind").iter_rows()},
        ranks=tuple(np.unique(decode["rank"]).tolist()),
        wall_us=mean_wall,
        job_wall_us=_job_wall_us(decode),
        layers=tuple(_layer_split(by_step, layer, mean_wall.value, batching) for layer in layers),
        coverage=1 - idle_us / mean_wall.value,
        conservation_error_ns=int(np.abs(differing).max()),
        overlap_clip_ns=float(decode["clip_ns"].mean()),
        operations_per_step=float(decode["operations"].mean()),
        bytes_per_step=float(decode["bytes"].mean()),
        unfinished=int(decode["unfinished"].sum()),
        batching=batching,
        drift=_drift(wall, batching),
        tail=_tail(by_step, layers, wall),
        changes={
            name.removesuffix(RECOVERABLE): estimate(by_step.mean(name) / NS_PER_US, batching)
            for name in by_step.columns
            if name.endswith(RECOVERABLE)
        },
    )


def _walked_layers(decode: DecodeRows) -> list[Layer]:
    """Layers of the path in its order: a stage in which nothing ever was, on the path or under it, is no part of it."""
    found = []
    for layer in sorted(Layer, key=_place):
        columns = [name for name in (f"{layer}_ns", f"{layer}_overlapped_ns") if name in decode.columns]
        if columns and (layer not in OPERATION_SPANS or sum(int(decode[name].sum()) for name in columns) > 0):
            found.append(layer)
    return found


def _place(layer: Layer) -> int:
    """In the order of the path; what stands for several layers, where the first of them would."""
    return tuple(Layer).index(Layer.NIC if layer is Layer.NIC_SKEW else layer)


def _layer_split(by_step: ByStep, layer: Layer, wall_us: float, batching: Batching) -> LayerSplit:
    us = estimate(by_step.mean(f"{layer}_ns") / NS_PER_US, batching)
    names, overlapped, recoverable = by_step.columns, f"{layer}_overlapped_ns", f"{layer}{RECOVERABLE}"
    return LayerSplit(
        layer=layer,
        us=us,
        share=us.value / wall_us,
        overlapped_us=_mean_us(by_step, overlapped) if overlapped in names else 0.0,
        queue_us=_mean_us(by_step, "queue_ns") if layer is Layer.RING else None,
        recoverable=estimate(by_step.mean(recoverable) / NS_PER_US, batching) if recoverable in names else None,
        walked=float(by_step.mean(f"{layer}{WALKED}").mean()) if f"{layer}{WALKED}" in names else None,
        true_us=_mean_us(by_step, TRUE_SKEW) if layer is Layer.SKEW else None,
    )


def _mean_us(by_step: ByStep, column: str) -> float:
    return float(by_step.mean(column).mean()) / NS_PER_US


def _job_wall_us(decode: DecodeRows) -> float:
    """From the last rank's begin to the last rank's end, mean over steps."""
    numbers, place = np.unique(decode["step"], return_inverse=True)
    begin, end = np.full(len(numbers), NO_TIME), np.full(len(numbers), NO_TIME)
    np.maximum.at(begin, place, decode["begin_ns"])
    np.maximum.at(end, place, decode["begin_ns"] + decode["wall_ns"])
    return float((end - begin).mean()) / NS_PER_US


def _drift(wall: NDArray[np.float64], batching: Batching) -> float | None:
    """Change of the batch means over the run along their regression line, when its slope is not zero (p < 0.01)."""
    whole = len(wall) // batching.batch_steps
    if whole < 4:
        return None
    means = wall[: whole * batching.batch_steps].reshape(whole, -1).mean(axis=1)
    time = np.arange(whole) - (whole - 1) / 2
    slope = float(time @ means / (time @ time))
    residual = means - means.mean() - slope * time
    error = float(np.sqrt(residual @ residual / (whole - 2) / (time @ time)))
    if abs(slope) <= t_quantile(1 - DRIFT_LEVEL / 2, whole - 2) * error:
        return None
    return slope * (whole - 1) / float(means.mean())


def _tail(by_step: ByStep, layers: list[Layer], wall: NDArray[np.float64]) -> dict[Layer, float]:
    low, high, top = np.quantile(wall, [0.4, 0.6, 0.99])
    slow, usual = wall >= top, (wall >= low) & (wall <= high)
    if not usual.any():  # of so few steps that none lies between p40 and p60
        return {}
    found = {}
    for layer in layers:
        us = by_step.mean(f"{layer}_ns") / NS_PER_US
        found[layer] = float(us[slow].sum() / wall[slow].sum() - us[usual].sum() / wall[usual].sum())
    return found
