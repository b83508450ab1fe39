"""Two groups of runs compared: what changed per decoded token, in which layer, and what that many runs can show."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from efaprof.analyzers.limits import STEP
from efaprof.analyzers.run_changes import (
    MIN_RUNS,
    TAIL,
    Change,
    adjusted,
    change_of,
    recommended_runs,
    smallest_detectable,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Values = NDArray[np.float64]

MEDIAN = "step p50"
HOST = "host recoverable"
STEP_MARGIN, LAYER_MARGIN = 0.03, 0.10
LEAST_PART = 0.01  # of the step: a smaller change of a layer is none
FLOOR = 0.001  # of the step: times of a layer below it are taken as this, so that logs exist
EFFECT_ABOVE_MARGIN = 0.02  # a recommendation of runs is for a true change of margin and this


class Outcome(StrEnum):
    """What can be said of one measure."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    UNCHANGED = "unchanged"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class RunMeasures:
    """What one run contributes: its means per decoded token, µs."""

    name: str
    started_realtime_ns: int
    wall_us: float
    median_us: float | None
    layers_us: Mapping[str, float]
    host_us: float | None  # what removing ring, proxy and libfabric would buy
    verdict: str
    comparable: Mapping[str, Any]  # what must be equal for two runs to be comparable
    noted: Mapping[str, Any]  # what had better be


@dataclass(frozen=True, slots=True)
class Margins:
    """Relative changes up to which a measure counts as the same."""

    step: float = STEP_MARGIN
    layer: float = LAYER_MARGIN


@dataclass(frozen=True, slots=True)
class MeasureChange:
    """Change of one measure, relative; `lo` and `hi` hold its 95 % interval, None with too few runs."""

    name: str
    first_us: float
    second_us: float
    change: float
    lo: float | None
    hi: float | None
    discovery_rate: float | None  # of a layer: Benjamini-Hochberg over layers, against its margin
    margin: float
    detectable: float | None  # smallest change that this many runs would have shown, with 90 % probability
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Diff:
    """The comparison."""

    first: tuple[RunMeasures, ...]
    second: tuple[RunMeasures, ...]
    measures: tuple[MeasureChange, ...]  # the step first
    noise: float | None  # between runs of one group, relative standard deviation of the step
    effect: float  # that `recommended` is for
    recommended: int | None  # runs on each side
    order: str | None  # of starts, like ABBA; None when it is not known
    is_interleaved: bool | None
    margins: Margins

    @property
    def outcome(self) -> Outcome:
        """Of the whole: a regression anywhere is one; else what the step did."""
        if any(one.outcome is Outcome.REGRESSION for one in self.measures):
            return Outcome.REGRESSION
        return self.measures[0].outcome


def compare(first: Sequence[RunMeasures], second: Sequence[RunMeasures], margins: Margins | None = None) -> Diff:
    """Compare two groups of comparable runs (see `differences`)."""
    margins = margins or Margins()
    names, groups = _matrix(first, second)
    effect = margins.step + EFFECT_ABOVE_MARGIN
    if min(len(first), len(second)) < MIN_RUNS:
        measures = tuple(_untested(name, *groups, at, margins) for at, name in enumerate(names))
        noise, runs = None, None
    else:
        is_step = np.array([name in (STEP, MEDIAN) for name in names])
        judged = judge(*groups, is_step=is_step, margins=margins)
        measures = tuple(_measure(name, *groups, at, judged, margins) for at, name in enumerate(names))
        noise = float(judged.change.noise[0])
        runs = int(recommended_runs(
            judged.change.noise[0], judged.change.noise_freedom, effect=effect, margin=margins.step
        ))  # fmt: skip
    order = start_order(first, second)
    return Diff(
        first=tuple(first),
        second=tuple(second),
        measures=measures,
        noise=noise,
        effect=effect,
        recommended=runs,
        order=order,
        is_interleaved=None if order is None else _is_interleaved(order),
        margins=margins,
    )


@dataclass(frozen=True, slots=True)
class Judged:
    """Outcomes of all measures; arrays whose last axis is the measure."""

    change: Change
    discovery_rate: Values
    detectable: Values
    outcome: NDArray[np.str_]


def judge(first: Values, second: Values, *, is_step: NDArray[np.bool_], margins: Margins) -> Judged:
    """Judge times (runs on axis 0, measures on the last, the step among them first) of two groups.

    Regression: the lower 95 % bound lies beyond the margin; of a layer also at a false discovery rate over all layers,
    and by at least LEAST_PART of the step. Unchanged: shown to be within the margin, or of a layer within that part.
    """
    wall = first[..., :1].mean(axis=0)
    change = change_of(np.log(first), np.log(second))
    margin = np.log1p(np.where(is_step, margins.step, margins.layer))
    lo, hi = change.value - change.half_width(), change.value + change.half_width()
    moved = change_of(first, second)
    least = LEAST_PART * wall
    is_large = is_step | (np.abs(moved.value) >= least)
    rates = [np.zeros_like(change.value), np.zeros_like(change.value)]
    if not is_step.all():
        # One-sided, at the tail of the two-sided interval, so that a single layer is judged as the step is.
        rates[0][..., ~is_step] = adjusted(change.p_above(margin)[..., ~is_step])
        down = Change(-change.value, change.error, change.freedom, change.noise, change.noise_freedom)
        rates[1][..., ~is_step] = adjusted(down.p_above(margin)[..., ~is_step])
    up = (lo > margin) & is_large & (rates[0] <= TAIL)
    down_ = (hi < -margin) & is_large & (rates[1] <= TAIL)
    same = change.is_within(margin) | (~is_step & moved.is_within(least))
    outcome = np.select(
        [up, down_, same],
        [Outcome.REGRESSION.value, Outcome.IMPROVEMENT.value, Outcome.UNCHANGED.value],
        Outcome.INCONCLUSIVE.value,
    )
    detectable = smallest_detectable(change, np.expm1(margin))
    return Judged(change, np.minimum(*rates), detectable, outcome)


def differences(runs: Sequence[RunMeasures], *, allowed: frozenset[str] = frozenset()) -> dict[str, list[Any]]:
    """Keys whose values differ between runs that should be comparable, with the values in order of first sight."""
    return _differing([run.comparable for run in runs], allowed)


def notes(runs: Sequence[RunMeasures], *, allowed: frozenset[str] = frozenset()) -> dict[str, list[Any]]:
    """The same for what only had better be equal."""
    return _differing([run.noted for run in runs], allowed)


def has_measure(side: Sequence[RunMeasures], name: str) -> bool:
    """Some run of this side has it: a path without host stages has no ring, and nothing of the host to recover."""
    if name == HOST:
        return any(layer in run.layers_us for run in side for layer in ("ring", "proxy", "libfabric"))
    return name in (STEP, MEDIAN) or any(name in run.layers_us for run in side)


def start_order(first: Sequence[RunMeasures], second: Sequence[RunMeasures]) -> str | None:
    """Letters A and B in order of the runs' starts; None when two started at the same time, as copies do."""
    starts = sorted(
        [(run.started_realtime_ns, "A") for run in first] + [(run.started_realtime_ns, "B") for run in second]
    )
    if len({start for start, _ in starts}) < len(starts):
        return None
    return "".join(letter for _, letter in starts)


def _is_interleaved(order: str) -> bool:
    """At least every second run is followed by one of the other side: ABBA, ABAB, ABBAAB."""
    switches = sum(one != after for one, after in pairwise(order))
    return switches >= len(order) / 2


def _differing(facts: Sequence[Mapping[str, Any]], allowed: frozenset[str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for key in sorted({key for one in facts for key in one} - allowed):
        values: list[Any] = []
        for one in facts:
            if one.get(key) not in values:
                values.append(one.get(key))
        if len(values) > 1:
            found[key] = values
    return found


def _matrix(first: Sequence[RunMeasures], second: Sequence[RunMeasures]) -> tuple[list[str], tuple[Values, Values]]:
    """Names of the measures and their times (run, measure) of both groups; layers under FLOOR in every run are none."""
    runs = [*first, *second]
    layers = list(dict.fromkeys(name for run in runs for name in run.layers_us))
    columns = {STEP: [run.wall_us for run in runs]}
    medians, hosts = [run.median_us for run in runs], [run.host_us for run in runs]
    if None not in medians:
        columns[MEDIAN] = [one for one in medians if one is not None]
    for layer in layers:
        columns[layer] = [run.layers_us.get(layer, 0.0) for run in runs]
    if None not in hosts:
        columns[HOST] = [one for one in hosts if one is not None]
    least = FLOOR * sum(columns[STEP]) / len(runs)
    names = [name for name, times in columns.items() if max(times) > least]
    found = np.maximum(np.array([columns[name] for name in names], dtype=np.float64).T, least)
    return names, (found[: len(first)], found[len(first) :])


def _margin(name: str, margins: Margins) -> float:
    return margins.step if name in (STEP, MEDIAN) else margins.layer


def _untested(name: str, first: Values, second: Values, at: int, margins: Margins) -> MeasureChange:
    change = float(np.exp(np.log(second[:, at]).mean() - np.log(first[:, at]).mean()) - 1)
    means = float(first[:, at].mean()), float(second[:, at].mean())
    return MeasureChange(
        name, *means, change, None, None, None, _margin(name, margins), None, Outcome.INCONCLUSIVE
    )  # fmt: skip


def _measure(
    name: str, first: Values, second: Values, at: int, judged: Judged, margins: Margins
) -> MeasureChange:  # fmt: skip
    change = judged.change
    value, half = change.value[at], change.half_width()[at]
    return MeasureChange(
        name=name,
        first_us=float(first[:, at].mean()),
        second_us=float(second[:, at].mean()),
        change=float(np.expm1(value)),
        lo=float(np.expm1(value - half)),
        hi=float(np.expm1(value + half)),
        discovery_rate=None if name in (STEP, MEDIAN) else float(judged.discovery_rate[at]),
        margin=_margin(name, margins),
        detectable=float(judged.detectable[at]),
        outcome=Outcome(str(judged.outcome[at])),
    )
