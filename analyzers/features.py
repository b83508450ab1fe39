"""Features of a decode step for the rules: shares and rates with their intervals, from per-step costs of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from efaprof.analyzers.batches import LEVEL, Batching
from efaprof.analyzers.by_step import ByStep, DecodeRows
from efaprof.analyzers.outstanding import outstanding_features
from efaprof.analyzers.rules import Feature
from efaprof.analyzers.student import t_quantile
from efaprof.trace.layers import Layer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from efaprof.analyzers.by_step import Costs
    from efaprof.analyzers.profile import Ceiling, Profile


ISSUE = (Layer.KERNEL, Layer.RING, Layer.PROXY, Layer.LIBFABRIC)
RECEIVE = (Layer.RX, Layer.POLL)
NOT_COMMUNICATION = (Layer.COMPUTE, Layer.LAUNCH)


def run_features(
    step_costs: Costs,
    batching: Batching,
    *,
    line_rate_bytes_s: float | None = None,
    has_ceiling: bool = False,
    profile: Profile | None = None,
) -> dict[str, Feature]:
    """What one run's decode steps say. A feature whose denominator is not there is left out: it is unknown.

    Shares of layers are of T, the communication part of the step; `line_rate_bytes_s` is the NIC's, per rank; without
    it, the calibrated peak of `profile` stands for it. `has_ceiling`: replays knew the NIC's calibrated rate, without
    which what they save is an upper bound.
    """
    by_step = ByStep(DecodeRows(step_costs))
    if by_step.is_empty():
        return {}
    wall = by_step["wall_ns"].to_numpy()
    communication = wall - _sum(by_step, NOT_COMMUNICATION)
    found = [
        _ratio("compute_share", _sum(by_step, (Layer.COMPUTE,)), wall, batching, "of the step"),
        _ratio("launch_share", _sum(by_step, (Layer.LAUNCH,)), wall, batching, "of the step"),
        _ratio("communication_share", communication, wall, batching, "of the step"),
        _ratio("issue_share", _sum(by_step, ISSUE), communication, batching, "of communication"),
    ]
    if f"{Layer.NIC_SKEW}_ns" not in by_step.columns:  # else a part of it is in there, and nobody knows which
        waits = _sum(by_step, RECEIVE)
        found.append(_ratio("receive_wait_share", waits, communication, batching, "of communication"))
    found += [
        _ratio(f"{layer}_share", _sum(by_step, (layer,)), communication, batching, "of communication")
        for layer in (*ISSUE, Layer.NIC)
        if f"{layer}_ns" in by_step.columns
    ]
    found += _path_features(by_step, communication, batching, has_ceiling=has_ceiling)
    counts = {"kernel_busy": ("kernel_busy_ns", communication, "of communication")}
    if "served" in by_step.columns:
        counts["waiting_at_dequeue"] = ("waiting", by_step["served"].to_numpy(), "of commands served")
    if "served" not in by_step.columns or by_step["served"].sum() > 0:  # else there is no proxy
        counts["proxy_busy"] = ("proxy_busy_ns", communication, "of communication")
        counts["eagain_per_post"] = ("eagain", by_step["operations"].to_numpy(), "attempts per operation")
    found += [
        _ratio(name, by_step[column].to_numpy(), below, batching, note)
        for name, (column, below, note) in counts.items()
        if column in by_step.columns
    ]
    carried = by_step["bytes"].to_numpy()
    if line_rate_bytes_s:
        could = communication * line_rate_bytes_s / 1e9
        found.append(_ratio("utilisation_active", carried, could, batching, "of the line rate while communicating"))
    elif profile is not None:
        peak = profile.peak_bytes_s
        found.append(_of_ceiling("utilisation_active", carried, communication, peak, batching))
    if profile is not None:
        posted = by_step["operations"].to_numpy()
        found.append(_of_ceiling("message_rate", posted, communication, profile.rate_ops_s, batching))
    named = {feature.name: feature for feature in found if feature is not None}
    return named | outstanding_features(by_step, batching)


def _of_ceiling(
    name: str, moved: NDArray[np.float64], time_ns: NDArray[np.float64], ceiling: Ceiling, batching: Batching
) -> Feature | None:
    """A rate over what calibration reached; where that is no ceiling, the part may be anything up to this."""
    found = _ratio(name, moved, time_ns * ceiling.value / 1e9, batching, "of the calibrated rate while communicating")
    if found is None or ceiling.is_ceiling:
        return found
    return Feature(name, found.value, 0.0, found.hi, note=f"{found.note}, at most: the issuer set that rate")


def _skew_features(by_step: ByStep, communication: NDArray[np.float64], batching: Batching) -> list[Feature | None]:
    late = by_step["true_skew_ns"].to_numpy()
    skew = _ratio("skew_share", late, communication, batching, "of communication, while the late rank computed")
    others = max(
        _sum(by_step, (layer,)).sum()
        for layer in Layer
        if layer not in (*NOT_COMMUNICATION, Layer.SKEW, Layer.IDLE, Layer.UNATTRIBUTED)
    )
    is_largest = float(late.sum() > others)
    return [skew, Feature("skew_is_largest", is_largest, is_largest, is_largest, note="1: no layer has more of T")]


def _path_features(
    by_step: ByStep, communication: NDArray[np.float64], batching: Batching, *, has_ceiling: bool
) -> list[Feature | None]:
    """What only walks and replays can say."""
    found: list[Feature | None] = []
    if "true_skew_ns" in by_step.columns:
        found += _skew_features(by_step, communication, batching)
    changes = {"delta_issue_upper": "issue", "delta_receive": "receive", "delta_fence": "fence"}
    if has_ceiling:
        changes["delta_issue"] = "issue"
    found += [
        _ratio(name, by_step[f"{change}_recoverable_ns"].to_numpy(), communication, batching, "of communication")
        for name, change in changes.items()
        if f"{change}_recoverable_ns" in by_step.columns
    ]
    return found


def _sum(by_step: ByStep, layers: Sequence[Layer]) -> NDArray[np.float64]:
    total: NDArray[np.float64] = np.zeros(len(by_step))
    for layer in layers:
        if f"{layer}_ns" in by_step.columns:
            total += by_step[f"{layer}_ns"].to_numpy()
    return total


def _ratio(
    name: str, above: NDArray[np.float64], below: NDArray[np.float64], batching: Batching, note: str
) -> Feature | None:
    """Ratio of sums with a t interval from the ratios of whole batches; None when there is nothing to divide by."""
    if not below.sum() > 0:
        return None
    value = float(above.sum() / below.sum())
    size = batching.batch_steps
    whole = len(below) // size
    upper = above[: whole * size].reshape(whole, size).sum(axis=1)
    lower = below[: whole * size].reshape(whole, size).sum(axis=1)
    if whole < 2 or not (lower > 0).all():
        # One batch says nothing about spread: the widest interval that a share can have.
        return Feature(name, value, min(0.0, value), max(1.0, value), note=f"{note}; no interval from {whole} batches")
    half = t_quantile((1 + LEVEL) / 2, whole - 1) * float((upper / lower).std(ddof=1) / np.sqrt(whole))
    return Feature(name, value, value - half, value + half, note=note)
