"""Elasticities ε = d ln T / d ln x from several runs, or the reason why these runs cannot give one.

Runs are compared only where everything but x is held: in cells of equal operations, bytes, parallelism and load, less
what x itself is. Each cell keeps its own level; the slope is common. The unit is the run (METHOD §4): the interval is
the wider of what the runs scatter about the line and what each run's own interval allows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from efaprof.analyzers.batches import LEVEL
from efaprof.analyzers.loggp import Refusal
from efaprof.analyzers.rules import Feature
from efaprof.analyzers.student import t_quantile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from efaprof.analyzers.means import Mean

SAME = 0.02  # values this near are the same level
LEAST_RANGE = 1.5  # of x in one cell, largest over smallest


class Axis(StrEnum):
    """What can be varied; the value is the feature's name after `elasticity_`."""

    BYTES = "bytes"  # ε_b, per step
    OPERATIONS = "operations"  # ε_n, per step
    PARALLELISM = "parallelism"  # ε_k: threads that issue
    LOAD = "load"  # ε_c: tokens per step


# Load moves operations and bytes with it: that is what it is.
HELD = {
    Axis.BYTES: (Axis.OPERATIONS, Axis.PARALLELISM, Axis.LOAD),
    Axis.OPERATIONS: (Axis.BYTES, Axis.PARALLELISM, Axis.LOAD),
    Axis.PARALLELISM: (Axis.OPERATIONS, Axis.BYTES, Axis.LOAD),
    Axis.LOAD: (Axis.PARALLELISM,),
}


@dataclass(frozen=True, slots=True)
class Point:
    """One run: communication time of a step, where it was on each axis, and what else must be equal."""

    source: str
    time_us: Mean
    axes: Mapping[Axis, float]
    settings: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class _Cell:
    """Runs that differ in x only, as ln x and ln T, each less its mean in the cell."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    error: NDArray[np.float64]  # of ln T inside each run; NaN where a run has none


def elasticities(points: Sequence[Point]) -> tuple[dict[str, Feature], dict[Axis, Refusal]]:
    """What these runs give, as features of the rules, and why each of the others is unknown."""
    found = {axis: elasticity(points, axis) for axis in Axis}
    features = {one.name: one for one in found.values() if isinstance(one, Feature)}
    return features, {axis: one for axis, one in found.items() if isinstance(one, Refusal)}


def elasticity(points: Sequence[Point], axis: Axis) -> Feature | Refusal:
    """ε along one axis with its 95 % interval; a refusal says which other thing moved, or what is missing."""
    refusal = _refusal(points, axis)
    if refusal:
        return Refusal(refusal)
    cells = [_cell(cell, axis) for cell in _groups(points, HELD[axis]) if _range(cell, axis) >= LEAST_RANGE]
    if not cells:
        return Refusal(_what_moved(points, axis))
    x, y, error = (np.concatenate([getattr(cell, name) for cell in cells]) for name in ("x", "y", "error"))
    power = float(x @ x)
    slope = float(x @ y) / power
    halves = []
    freedom = len(x) - len(cells) - 1
    if freedom >= 1:
        scatter = float(np.sum((y - slope * x) ** 2)) / freedom
        halves.append(t_quantile((1 + LEVEL) / 2, freedom) * math.sqrt(scatter / power))
    own = min((one.time_us.freedom or 0.0) for one in points)
    if own >= 1 and np.isfinite(error).all():
        halves.append(t_quantile((1 + LEVEL) / 2, own) * math.sqrt(float(np.sum((x * error) ** 2))) / power)
    if not halves:
        return Refusal(f"{len(x)} runs without intervals of their own give no interval")
    repeats = "" if freedom >= 1 and _has_repeats(points, axis) else ", conditional on one run per level"
    return Feature(
        f"elasticity_{axis}", slope, slope - max(halves), slope + max(halves), note=f"of {len(x)} runs{repeats}"
    )


def _refusal(points: Sequence[Point], axis: Axis) -> str | None:
    if len(points) < 2:
        return "one run"
    for one in points:
        if not one.time_us.value > 0:
            return f"{one.source} has no communication time"
        missing = [other for other in (axis, *HELD[axis]) if not one.axes.get(other, 0) > 0]
        if missing:
            return f"{one.source} does not say its {missing[0]}"
    names = sorted({name for one in points for name in one.settings})
    differing = [name for name in names if len({repr(one.settings.get(name)) for one in points}) > 1]
    if differing:
        return f"the runs also differ in {', '.join(differing)}"
    return None


def _groups(points: Sequence[Point], held: Sequence[Axis]) -> list[list[Point]]:
    cells: list[list[Point]] = []
    for one in points:
        for cell in cells:
            if all(_is_same(one.axes[other], cell[0].axes[other]) for other in held):
                cell.append(one)
                break
        else:
            cells.append([one])
    return cells


def _is_same(first: float, second: float) -> bool:
    return abs(first - second) <= SAME * max(first, second)


def _range(points: Sequence[Point], axis: Axis) -> float:
    values = [one.axes[axis] for one in points]
    return max(values) / min(values)


def _cell(points: Sequence[Point], axis: Axis) -> _Cell:
    x = np.log([one.axes[axis] for one in points])
    y = np.log([one.time_us.value for one in points])
    errors = [(one.time_us.error if one.time_us.error is not None else math.nan) / one.time_us.value for one in points]
    return _Cell(x - x.mean(), y - y.mean(), np.array(errors))


def _what_moved(points: Sequence[Point], axis: Axis) -> str:
    if _range(points, axis) < LEAST_RANGE:
        return f"{axis} moved by a factor of {_range(points, axis):.2f}, under {LEAST_RANGE:g}"
    moved = [other for other in HELD[axis] if not _is_same(*_ends(points, other))]
    return f"{' and '.join(moved)} moved with {axis}"


def _ends(points: Sequence[Point], axis: Axis) -> tuple[float, float]:
    values = [one.axes[axis] for one in points]
    return min(values), max(values)


def _has_repeats(points: Sequence[Point], axis: Axis) -> bool:
    return any(len(cell) > 1 for cell in _groups(points, (axis, *HELD[axis])))
