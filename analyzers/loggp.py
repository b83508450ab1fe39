"""LogGP: T = L + o·n + G·B fitted to several runs, or refused when they cannot tell a message's cost from a byte's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from efaprof.analyzers.batches import LEVEL, Estimate
from efaprof.analyzers.student import t_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MAX_CORRELATION = 0.95
MAX_CONDITION = 30.0
PARAMETERS = 3


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: its communication time per step, and what it moved in it."""

    time_us: float
    operations: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why runs cannot answer a question."""

    reason: str


@dataclass(frozen=True, slots=True)
class LogGP:
    """Fitted costs with 95 % intervals; no bounds where there are as many runs as parameters."""

    latency_us: Estimate  # L: of a step, whatever it moves
    per_operation_us: Estimate  # o
    per_byte_us: Estimate  # G
    relative_error: float  # root mean square of the residuals over the measured times
    samples: int


def fit(samples: Sequence[Sample]) -> LogGP | Refusal:
    """Least squares on relative errors with o and G not negative; a refusal names what these runs cannot tell apart."""
    time = np.array([one.time_us for one in samples], dtype=np.float64)
    counts = np.array([one.operations for one in samples], dtype=np.float64)
    sizes = np.array([one.bytes for one in samples], dtype=np.float64)
    refusal = _refusal(time, counts, sizes)
    if refusal:
        return Refusal(refusal)
    design = np.column_stack([np.ones_like(time), counts, sizes]) / time[:, None]
    scale = np.linalg.norm(design, axis=0)
    condition = float(np.linalg.cond(design / scale))
    if condition > MAX_CONDITION:
        return Refusal(f"scaled condition {condition:.0f} is over {MAX_CONDITION:g}: vary operations and bytes more")
    solved = _bounded(design / scale)
    residual = 1 - design / scale @ solved
    halves = _half_widths(design / scale, len(time))
    latency, per_operation, per_byte = (
        _estimate(float(value / unit), None if halves is None else float(halves[column] / unit), is_bounded=column > 0)
        for column, (value, unit) in enumerate(zip(solved, scale, strict=True))
    )
    return LogGP(latency, per_operation, per_byte, float(np.sqrt(np.mean(residual**2))), len(time))


def _refusal(time: Floats, counts: Floats, sizes: Floats) -> str | None:
    if len(time) < PARAMETERS:
        return f"{len(time)} runs cannot give {PARAMETERS} costs"
    if not (np.isfinite(time).all() and (time > 0).all()):
        return "a run has no communication time"
    for name, values in (("operations", counts), ("bytes", sizes)):
        if not np.ptp(values) > 1e-9 * np.abs(values).max():
            return f"every run has the same number of {name}"
    correlation = float(np.corrcoef(counts, sizes)[0, 1])
    if abs(correlation) > MAX_CORRELATION:
        return (
            f"operations and bytes move together (correlation {correlation:+.3f}, over {MAX_CORRELATION:g}): "
            "one payload size turns a message rate into a bandwidth"
        )
    return None


def _bounded(design: Floats) -> Floats:
    """Least squares to ones with the second and third coefficient ≥ 0: the best of the four faces, exactly."""
    best: tuple[float, Floats] | None = None
    for kept in ([0, 1, 2], [0, 1], [0, 2], [0]):
        solved = np.zeros(PARAMETERS)
        solved[kept] = np.linalg.lstsq(design[:, kept], np.ones(len(design)), rcond=None)[0]
        loss = float(np.sum((1 - design @ solved) ** 2))
        if (solved[1:] >= 0).all() and (best is None or loss < best[0]):
            best = loss, solved
    assert best is not None  # the last face has no coefficient that could be negative
    return best[1]


def _half_widths(design: Floats, samples: int) -> Floats | None:
    """Half widths of the unbounded fit's intervals: a bound that holds must not make them narrower."""
    freedom = samples - PARAMETERS
    if freedom < 1:
        return None
    free = np.linalg.lstsq(design, np.ones(samples), rcond=None)[0]
    variance = float(np.sum((1 - design @ free) ** 2)) / freedom
    spread = np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design)))
    halves: Floats = t_quantile((1 + LEVEL) / 2, freedom) * spread
    return halves


def _estimate(value: float, half: float | None, *, is_bounded: bool) -> Estimate:
    if half is None:
        return Estimate(value, None, None)
    return Estimate(value, max(0.0, value - half) if is_bounded else value - half, value + half)
