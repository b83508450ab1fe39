"""Runs under the message roofline of their fabric: what they moved while they communicated, beside what they could."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.analyzers.recorded import COMM_ACTIVE
from efaprof.analyzers.roofline import roof
from efaprof.trace.layers import DispatchPath

if TYPE_CHECKING:
    from collections.abc import Sequence

    from efaprof.analyzers.decode import Decode
    from efaprof.analyzers.profile import Profile
    from efaprof.report.attribution_report import AttributionReport

SMALLEST, LARGEST = 16.0, 4.0 * (1 << 20)  # bytes of a message
_GRID = 120
MANY = 4096  # in flight: latency no longer shows


@dataclass(frozen=True, slots=True)
class RunPoint:
    """One run, of one rank (without steps: of one process), while it communicated."""

    label: str
    is_kernel_posted: bool
    size_bytes: float  # mean of its operations
    bytes_s: float
    in_flight: float  # mean where an operation was posted, itself included


@dataclass(frozen=True, slots=True)
class Curve:
    """What messages of each size can reach with so many in flight."""

    messages: float
    sizes: tuple[float, ...]
    bytes_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What calibration reached with messages of one size, at best."""

    size_bytes: int
    bytes_s: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """Everything in the picture."""

    runs: tuple[RunPoint, ...]
    curves: tuple[Curve, ...]  # none without a profile
    calibrated: tuple[Calibrated, ...]
    line_bytes_s: float | None  # of one rank; None where nothing tells it
    is_lower_bound: bool  # the issuer of the calibration could not saturate the fabric: the roof may be higher
    emulated: tuple[str, ...]

    @property
    def lowest(self) -> float:
        """Least bandwidth that is drawn, bytes/s."""
        return min([one.bytes_s for one in self.runs] + [one.bytes_s[0] for one in self.curves])

    @property
    def highest(self) -> float:
        """Largest of them."""
        drawn = [one.bytes_s for one in self.runs] + [one.bytes_s[-1] for one in self.curves]
        return max([*drawn, *(one.bytes_s for one in self.calibrated), self.line_bytes_s or 0.0])


def roofline(reports: Sequence[AttributionReport], profile: Profile | None) -> Roofline | None:
    """The picture of these runs; None where none of them moved anything."""
    points = [point for report in reports if (point := _point(report)) is not None]
    if not points:
        return None
    curves: tuple[Curve, ...] = ()
    calibrated: tuple[Calibrated, ...] = ()
    if profile is not None:
        sizes = np.geomspace(SMALLEST, LARGEST, _GRID)
        held = sorted({1.0, *(max(round(point.in_flight, 1), 1.0) for point in points[:1]), float(MANY)})
        curves = tuple(_curve(profile, messages, sizes.tolist()) for messages in held)
        best: dict[int, float] = {}
        for row in profile.rows:
            best[row.size_bytes] = max(best.get(row.size_bytes, 0.0), row.bytes_s)
        calibrated = tuple(Calibrated(size, bytes_s) for size, bytes_s in sorted(best.items()) if bytes_s > 0)
    lines = [line for report in reports if (line := _line(report)) is not None]
    return Roofline(
        runs=tuple(points),
        curves=curves,
        calibrated=calibrated,
        line_bytes_s=lines[0] if lines else None,
        is_lower_bound=profile is not None and not (profile.rate_ops_s.is_ceiling and profile.peak_bytes_s.is_ceiling),
        emulated=tuple(dict.fromkeys(name for report in reports for name in report.run.emulated)),
    )


def size_tick(size_bytes: float) -> str:
    """Words for a size that is a power of two: 64 B, 4 KiB, 1 MiB."""
    for factor, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= factor:
            return f"{size_bytes / factor:g} {unit}"
    return f"{size_bytes:g} B"


def _line(report: AttributionReport) -> float | None:
    """What the NICs' lines carry, shared out among the ranks."""
    moved = report.recorded.movement
    if moved is None or moved.line_rate_bytes_s is None:
        return None
    ranks = len(report.decode.decode.split.ranks) if report.decode else report.recorded.processes
    return moved.line_rate_bytes_s / max(ranks, 1)


def _curve(profile: Profile, messages: float, sizes: Sequence[float]) -> Curve:
    reached = (roof(profile.fabric, messages=messages, size_bytes=size).bytes_s for size in sizes)
    return Curve(messages, tuple(sizes), tuple(reached))


def _point(report: AttributionReport) -> RunPoint | None:
    label = report.run.runs[0] if len(report.run.runs) == 1 else f"{len(report.run.runs)} runs"
    is_kernel_posted = report.run.path is DispatchPath.GDAKI
    if report.decode is not None:
        return _of_steps(report.decode.decode, label, is_kernel_posted=is_kernel_posted)
    recorded = report.recorded
    active = next((one for one in recorded.windows if one.window == COMM_ACTIVE), None)
    if recorded.sent is None or active is None or not recorded.sent.bytes:
        return None
    return RunPoint(
        label=label,
        is_kernel_posted=is_kernel_posted,
        size_bytes=recorded.sent.bytes / recorded.sent.count,
        bytes_s=active.bytes_s / max(recorded.processes, 1),
        in_flight=recorded.outstanding_mean or 1.0,
    )


def _of_steps(decode: Decode, label: str, *, is_kernel_posted: bool) -> RunPoint | None:
    split, share = decode.split, decode.features.get("communication_share")
    if share is None or not share.value > 0 or not split.bytes_per_step or not split.operations_per_step:
        return None
    costs = decode.step_costs.filter(pl.col("kind") == "decode")
    posted = float(costs["posted"].sum()) if "posted" in costs.columns else 0.0
    return RunPoint(
        label=label,
        is_kernel_posted=is_kernel_posted,
        size_bytes=split.bytes_per_step / split.operations_per_step,
        bytes_s=split.bytes_per_step / (split.wall_us.value * share.value) * 1e6,
        in_flight=float(costs["in_flight"].sum()) / posted if posted else 1.0,
    )
