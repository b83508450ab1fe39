"""Evidence from experiments: what A/B pairs support or refute, and the verdict of the highest grade (METHOD §3).

Grades: E1 shares, E2 path and replay, E3 an intervention. The higher grade wins; what contradicts it is printed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from efaprof.analyzers.batches import LEVEL, Estimate
from efaprof.analyzers.rules import Feature
from efaprof.analyzers.student import t_quantile
from efaprof.analyzers.verdict import NEXT_EXPERIMENT, decide
from efaprof.errors import NothingToAnalyse
from efaprof.trace.layers import Layer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

INTERVENTION = "E3"
NEEDED = 0.30  # of T: what removing the layer would save if the path were bound by it
FEW_PAIRS = 8  # fewer use t; from there on the signed ranks say more than a normal law that nobody checked
FENCE = "fence"  # a target that is no layer: the ordering of operations
LABELS = {
    Layer.KERNEL: "issue-bound", Layer.RING: "issue-bound", Layer.PROXY: "issue-bound",
    Layer.LIBFABRIC: "issue-bound", Layer.NIC: "wire-bound", Layer.RX: "receiver-bound",
    Layer.POLL: "receiver-bound", Layer.SKEW: "skew-bound", FENCE: "serialization-bound",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Intervention:
    """One A/B pair: an operation's time before and after a lever took something away from a layer."""

    lever: str
    target_layer: str  # of LABELS
    op: str
    before_us: float
    after_us: float
    reps: int  # behind each of the two times
    valid: bool
    config_hash: str
    removed: float | None = None  # part of the layer's work that the lever took away; None where nobody counted


@dataclass(frozen=True, slots=True)
class WaitShare:
    """How much of an operation's time its receiver waited, and how much was anything else (`body`)."""

    op: str
    wait: float
    body: float
    config_hash: str


@dataclass(frozen=True, slots=True)
class Reading:
    """A time of one operation on one path under one configuration."""

    op: str
    path: str
    us: float
    config_hash: str
    load: float | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was handed in beside recordings."""

    interventions: tuple[Intervention, ...] = ()
    waits: tuple[WaitShare, ...] = ()
    readings: tuple[Reading, ...] = ()

    @property
    def operations(self) -> tuple[str, ...]:
        """Operations that it is about, in their order."""
        rows: list[Intervention | WaitShare | Reading] = [*self.interventions, *self.waits, *self.readings]
        return tuple(dict.fromkeys(row.op for row in rows))


@dataclass(frozen=True, slots=True)
class Effect:
    """What the pairs of one lever say about the label that its layer stands for."""

    label: str
    lever: str
    config_hash: str
    pairs: int
    saved_us: Estimate
    before_us: float
    removed: float | None
    supports: bool | None  # None: neither side is shown
    reason: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one operation, and everything that speaks against it."""

    op: str
    path: str
    grade: str | None
    effects: tuple[Effect, ...]
    contradictions: tuple[str, ...]
    next_experiment: str | None


def ratio(first: Reading, second: Reading) -> float:
    """Time of `first` over that of `second`; NothingToAnalyse unless both are one operation in one configuration."""
    differing = [name for name in ("op", "config_hash", "load") if getattr(first, name) != getattr(second, name)]
    if differing:
        words = ", ".join(f"{name} {getattr(first, name)} and {getattr(second, name)}" for name in differing)
        raise NothingToAnalyse(
            f"{first.path} {first.us:g} µs and {second.path} {second.us:g} µs are not comparable: {words}",
            hint="measure both in one session with one configuration",
        )
    return first.us / second.us


def effects(rows: Sequence[Intervention], op: str) -> tuple[Effect, ...]:
    """One effect per (label, lever, configuration) with valid pairs; configurations are never pooled."""
    groups: dict[tuple[str, str, str], list[Intervention]] = {}
    for row in rows:
        if row.op == op and row.valid:
            groups.setdefault((LABELS[row.target_layer], row.lever, row.config_hash), []).append(row)
    return tuple(_effect(label, group) for (label, _, _), group in groups.items())


def _effect(label: str, group: Sequence[Intervention]) -> Effect:
    saved = np.array([row.before_us - row.after_us for row in group])
    before = float(np.mean([row.before_us for row in group]))
    known = [row.removed for row in group if row.removed is not None]
    removed = min(known) if len(known) == len(group) else None
    estimate = paired(saved)
    supports, reason = _outcome(estimate, before, removed)
    return Effect(label, group[0].lever, group[0].config_hash, len(group), estimate, before, removed, supports, reason)


def paired(saved_us: NDArray[np.float64]) -> Estimate:
    """Centre of paired differences with its 95 % interval: t for few pairs, else the signed ranks' (Hodges-Lehmann)."""
    pairs = len(saved_us)
    if pairs < FEW_PAIRS:
        centre = float(saved_us.mean())
        if pairs < 2:
            return Estimate(centre, None, None)
        half = t_quantile((1 + LEVEL) / 2, pairs - 1) * float(saved_us.std(ddof=1)) / math.sqrt(pairs)
        return Estimate(centre, centre - half, centre + half)
    first, second = np.triu_indices(pairs)
    means = np.sort((saved_us[first] + saved_us[second]) / 2)
    cut = _signed_rank_cut(pairs)
    return Estimate(float(np.median(means)), float(means[cut]), float(means[len(means) - 1 - cut]))


def _signed_rank_cut(pairs: int) -> int:
    """Largest c with P(W ≤ c) ≤ 2.5 %, W the signed-rank sum of `pairs` differences around 0: exact."""
    ways = np.zeros(pairs * (pairs + 1) // 2 + 1)
    ways[0] = 1.0
    for rank in range(1, pairs + 1):
        ways[rank:] = ways[rank:] + ways[:-rank]
    below = np.cumsum(ways) / 2.0**pairs
    return int(np.searchsorted(below, (1 - LEVEL) / 2, side="right")) - 1


def _outcome(saved: Estimate, before_us: float, removed: float | None) -> tuple[bool | None, str]:
    """Whether the label holds. Time is convex in a layer's durations: taking away a part r saves at least r of Δ."""
    if saved.lo is None or saved.hi is None:
        return None, f"saved {saved.value:+.1f} of {before_us:.1f} µs: one pair has no interval"
    words = f"saved {saved.value:+.1f} [{saved.lo:+.1f}, {saved.hi:+.1f}] of {before_us:.1f} µs"
    if saved.lo >= NEEDED * before_us:
        return True, f"{words}, at least {NEEDED:.0%}"
    if removed is None:
        return None, f"{words}: how much of the layer's work was removed is not known"
    bound = removed * NEEDED * before_us
    if saved.hi < bound:
        return False, f"{words}; {removed:.0%} of the work was removed, which would have saved {bound:.1f} µs or more"
    return None, f"{words}: neither {NEEDED:.0%} saved nor under {bound:.1f} µs"


def judge(
    op: str,
    *,
    interventions: Sequence[Intervention] = (),
    waits: Sequence[WaitShare] = (),
    readings: Sequence[Reading] = (),
) -> Judgement:
    """The verdict on `op` from evidence alone: run-quality tests have nothing to test here."""
    base = decide(_features(op, waits, readings))
    return settle(op, base.path, base.grade, effects(interventions, op))


def settle(op: str, path: str, grade: str | None, found: Sequence[Effect]) -> Judgement:
    """A lower-graded verdict together with interventions: these win, and what they contradict is said."""
    supported = tuple(dict.fromkeys(one.label for one in found if one.supports is True))
    refuted = tuple(dict.fromkeys(one.label for one in found if one.supports is False))
    torn = [label for label in supported if label in refuted]
    contradictions = [f"{label}: interventions both support and refute it" for label in torn]
    is_decided = grade is not None
    if torn:
        return Judgement(op, "inconclusive", None, tuple(found), tuple(contradictions), NEXT_EXPERIMENT)
    contradictions += [
        f"{grade} said {path}, {INTERVENTION} supports {label}"
        for label in supported
        if is_decided and not _names(path, label)
    ]
    hit = [label for label in refuted if is_decided and _names(path, label)]
    contradictions += [f"{grade} said {path}, {INTERVENTION} refutes {label}" for label in hit]
    if supported:
        won = supported[0] if len(supported) == 1 else f"mixed({', '.join(supported)})"
        # The lower grade may say more of the same label: wire-bound/rate of wire-bound.
        path = path if is_decided and len(supported) == 1 and path.startswith(won) else won
        return Judgement(op, path, INTERVENTION, tuple(found), tuple(contradictions), None)
    if hit or (refuted and not is_decided):
        path = f"refuted: {', '.join(hit or refuted)}"
        return Judgement(op, path, INTERVENTION, tuple(found), tuple(contradictions), None)
    return Judgement(op, path, grade, tuple(found), tuple(contradictions), None if is_decided else NEXT_EXPERIMENT)


def _names(path: str, label: str) -> bool:
    """Whether a path label is this one, a kind of it, or a mixture with it."""
    parts = path.removeprefix("mixed(").removesuffix(")").split(", ")
    return any(part == label or part.startswith(f"{label}/") for part in parts)


def _features(op: str, waits: Sequence[WaitShare], readings: Sequence[Reading]) -> dict[str, Feature]:
    """What shares and load curves say. Own issue cannot exceed what was not waiting: that bounds it from above."""
    found = {}
    for share in waits:
        if share.op == op:
            found["receive_wait_share"] = Feature("receive_wait_share", share.wait, share.wait, share.wait)
            found["delta_issue_upper"] = Feature("delta_issue_upper", share.body, share.body, share.body)
    curves: dict[tuple[str, str], list[Reading]] = {}
    for one in readings:
        if one.op == op and one.load is not None:
            curves.setdefault((one.path, one.config_hash), []).append(one)
    slopes = [_slope(curve) for curve in curves.values() if len({one.load for one in curve}) > 1]
    if slopes:
        # Readings carry no interval, and no rule reads the load alone: flatness says nothing about the issue rate.
        found["elasticity_load"] = Feature(
            "elasticity_load", float(np.mean(slopes)), min(slopes), max(slopes), note="no interval"
        )
    return found


def _slope(curve: Sequence[Reading]) -> float:
    load = np.log([one.load for one in curve if one.load is not None])
    return float(np.polyfit(load, np.log([one.us for one in curve]), 1)[0])
