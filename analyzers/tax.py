"""The tax: how much longer a token takes in one serving arm than in its baseline, load by load.

From mean ITL, never from mean tok/s (the mean of a reciprocal is not the reciprocal of a mean), and only against a
baseline of the same session and the same load; anything else is refused unless the user asks to extrapolate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from efaprof.analyzers import invariance
from efaprof.analyzers.means import Mean, difference
from efaprof.analyzers.op_counts import PRESETS, hybrid
from efaprof.errors import NothingToAnalyse, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from efaprof.analyzers.batches import Estimate
    from efaprof.analyzers.invariance import Flatness
    from efaprof.analyzers.load_points import LoadPoint
    from efaprof.analyzers.serving import CellKey

SESSION_WINDOW_H = 24.0
NS_PER_H = 3_600_000_000_000
DEFAULT_BASELINE = "dense"


@dataclass(frozen=True, slots=True)
class TaxOptions:
    """What may be compared, and what is assumed."""

    baseline: str | None = None  # None: the arm named "dense" if there is one
    session_window_h: float = SESSION_WINDOW_H
    may_extrapolate: bool = False
    moe_layers: int | None = None
    margin: float = invariance.MARGIN
    tight_margin: float = invariance.TIGHT_MARGIN
    ops_per_step: Mapping[int, float] = field(default_factory=dict)  # load → measured operations per rank and step
    ranks: int = 16  # for the predicted growth of operations only
    channels: int = 16


@dataclass(frozen=True, slots=True)
class Tax:
    """One arm against the baseline at one load."""

    arm: str
    key: CellKey
    mean: Mean  # ms per token
    ratio: float  # per-user speed against the baseline: ITL(baseline)/ITL(arm)
    without_stalls_ms: float | None  # the same difference after taking out what stalls added
    per_layer_us: Estimate | None
    extrapolated: tuple[str, ...]  # why this comparison needed --extrapolate; empty when it did not


@dataclass(frozen=True, slots=True)
class TaxReport:
    """Everything that `efaprof tax` prints."""

    arms: Mapping[str, tuple[LoadPoint, ...]]
    baseline: str | None
    taxes: tuple[Tax, ...]
    invariance: Mapping[str, Flatness]
    options: TaxOptions
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Pair:
    arm: str
    point: LoadPoint
    base: LoadPoint | None
    problems: tuple[str, ...]


def compare(arms: Mapping[str, Sequence[LoadPoint]], options: TaxOptions) -> TaxReport:
    """Tax of every arm at every load against the baseline; NothingToAnalyse when a pair may not be compared."""
    baseline = _baseline(arms, options.baseline)
    pairs = list(_pairs(arms, baseline, options)) if baseline is not None else []
    refused = [pair for pair in pairs if pair.problems]
    if refused and not options.may_extrapolate:
        raise NothingToAnalyse(_refusal(refused, str(baseline)), hint=_refusal_hint())
    taxes = tuple(_tax(pair, options) for pair in pairs if pair.base is not None)
    if pairs and not taxes:
        raise NothingToAnalyse(
            f"the baseline {baseline} has no load point to extrapolate from", hint="give the baseline's exports"
        )
    flat: dict[str, Flatness] = {}
    warnings = [warning for points in arms.values() for point in points for warning in point.warnings]
    for name, points in arms.items():
        sweep, left_out = _sweep(points)
        warnings += [f"{name} at {point.key}: other lengths, left out of load invariance" for point in left_out]
        found = _flatness(sweep, options)
        if found is not None:
            flat[name] = found
    warnings += _model_warnings(arms)
    return TaxReport(
        arms={name: tuple(points) for name, points in arms.items()},
        baseline=baseline,
        taxes=taxes,
        invariance=flat,
        options=options,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _baseline(arms: Mapping[str, Sequence[LoadPoint]], asked: str | None) -> str | None:
    if asked is not None:
        if asked not in arms:
            raise UsageError(
                f"the baseline {asked!r} is no arm: {', '.join(arms)}",
                hint=f"--arm {asked}=PATH, or another --baseline",
            )
        return asked
    return DEFAULT_BASELINE if DEFAULT_BASELINE in arms and len(arms) > 1 else None


def _pairs(arms: Mapping[str, Sequence[LoadPoint]], baseline: str, options: TaxOptions) -> Iterator[_Pair]:
    bases = arms[baseline]
    for name, points in arms.items():
        if name == baseline:
            continue
        for point in points:
            same = next((base for base in bases if base.key.matches(point.key)), None)
            base = same or _nearest(point.key, bases)
            problems = []
            if same is None:
                available = "; ".join(str(base.key) for base in bases) or "none"
                problems.append(f"{baseline} has no cell at {point.key} (it has {available})")
            if base is not None:
                problems += _session_problems(point, base, baseline, options.session_window_h)
            yield _Pair(name, point, base, tuple(problems))


def _nearest(key: CellKey, bases: Sequence[LoadPoint]) -> LoadPoint | None:
    """The baseline point of the nearest load, on a log scale, of equal lengths if there is one."""

    def distance(base: LoadPoint) -> tuple[bool, float]:
        return not base.key.has_lengths_of(key), abs(math.log2(base.key.concurrency / key.concurrency))

    return min(bases, key=distance, default=None)


def _session_problems(point: LoadPoint, base: LoadPoint, baseline: str, window_h: float) -> list[str]:
    known = [session for session in (*point.sessions_ns, *base.sessions_ns) if session is not None]
    if len(known) < len(point.sessions_ns) + len(base.sessions_ns):
        silent = point if None in point.sessions_ns else base
        return [f"{silent.sources[0]} does not say when it ran, so one session with {baseline} cannot be shown"]
    apart_h = (max(known) - min(known)) / NS_PER_H
    if apart_h <= window_h:
        return []
    distance = f"{apart_h / 24:.1f} days" if apart_h >= 48 else f"{apart_h:.1f} h"
    return [f"{point.sources[0]} and {base.sources[0]} are {distance} apart, another session (window {window_h:g} h)"]


def _refusal(refused: Sequence[_Pair], baseline: str) -> str:
    reasons = list(dict.fromkeys(f"{pair.arm}: {problem}" for pair in refused for problem in pair.problems))
    shown = "\n  ".join(reasons[:6])
    more = f"\n  and {len(reasons) - 6} more" if len(reasons) > 6 else ""
    return f"not comparable with the baseline {baseline}:\n  {shown}{more}"


def _refusal_hint() -> str:
    return (
        "measure both arms in one session at the same loads, or say --extrapolate: the nearest baseline cell is used "
        "and the report says so"
    )


def _tax(pair: _Pair, options: TaxOptions) -> Tax:
    point, base = pair.point, pair.base
    assert base is not None
    mean = difference(point.mean, base.mean)
    stalls = point.stall_ms_per_token, base.stall_ms_per_token
    without = None
    if stalls[0] is not None and stalls[1] is not None:
        without = mean.value - stalls[0] + stalls[1]
    per_layer = None
    if options.moe_layers is not None:
        scale = 1000.0 / options.moe_layers
        error = None if mean.error is None else mean.error * scale
        per_layer = Mean(mean.value * scale, error, mean.freedom).interval()
    return Tax(
        arm=pair.arm,
        key=point.key,
        mean=mean,
        ratio=base.mean.value / point.mean.value,
        without_stalls_ms=without,
        per_layer_us=per_layer,
        extrapolated=pair.problems,
    )


def _sweep(points: Sequence[LoadPoint]) -> tuple[list[LoadPoint], list[LoadPoint]]:
    """The points of equal lengths that cover most loads, and the others."""
    best: list[LoadPoint] = []
    for point in points:
        alike = [other for other in points if other.key.has_lengths_of(point.key)]
        if len(alike) > len(best):
            best = alike
    return best, [point for point in points if point not in best]


def _flatness(points: Sequence[LoadPoint], options: TaxOptions) -> Flatness | None:
    if not points:
        return None
    shape = PRESETS["qwen3-30b-a3b"]

    def predicted(concurrency: int) -> float:
        return hybrid(replace(shape, tokens=concurrency / options.ranks, channels=options.channels)).per_layer

    lever = invariance.leverage(
        points,
        given_ops=options.ops_per_step,
        predicted_ops=predicted,
        assumption=f"hybrid mode over {options.ranks} ranks with {options.channels} channels assumed",
    )
    return invariance.flatness(points, lever, margin=options.margin, tight_margin=options.tight_margin)


def _model_warnings(arms: Mapping[str, Sequence[LoadPoint]]) -> list[str]:
    models = {point.model for points in arms.values() for point in points if point.model is not None}
    if len(models) < 2:
        return []
    return [f"the arms name different models: {', '.join(sorted(models))}"]
