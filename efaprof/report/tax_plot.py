"""Speed and time per token over load, arm by arm, as a picture."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from efaprof.report.plotting import HOST_PATH, KERNEL_POSTED, NEUTRAL, new_figure, plain, write_figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from efaprof.analyzers.load_points import LoadPoint
    from efaprof.analyzers.tax import TaxReport

_KERNEL_NAMES = re.compile(r"gda|kernel|native", re.IGNORECASE)
_MARKERS = "osD^vP"


def arm_colours(arms: Sequence[str], baseline: str | None) -> dict[str, str]:
    """Colour of every arm: neutral for the baseline, violet where the name says kernel-posted, else orange."""
    used: dict[tuple[str, ...], int] = dict.fromkeys((HOST_PATH, KERNEL_POSTED, NEUTRAL), 0)
    colours = {}
    for arm in arms:
        family: tuple[str, ...] = KERNEL_POSTED if _KERNEL_NAMES.search(arm) else HOST_PATH
        if arm in (baseline, "dense"):
            family = NEUTRAL
        colours[arm] = family[used[family] % len(family)]
        used[family] += 1
    return colours


def write_plot(report: TaxReport, path: Path) -> None:
    """Write the picture; UsageError for another suffix, without matplotlib, and where the file cannot be written."""
    figure = new_figure(path, width=9.0, height=3.8)
    speed, itl = figure.subplots(1, 2)
    colours = arm_colours(list(report.arms), report.baseline)
    for (name, points), marker in zip(report.arms.items(), _MARKERS * len(report.arms), strict=False):
        _draw(speed, name, points, colours[name], marker, is_speed=True)
        _draw(itl, name, points, colours[name], marker, is_speed=False)
    _label(speed, "tok/s per user")
    _label(itl, "inter-token latency, ms")
    speed.legend(frameon=False)
    figure.suptitle("Speed and time per token over load (95 % intervals)", fontsize=11)
    write_figure(figure, path)


def _draw(axes: Axes, name: str, points: Sequence[LoadPoint], colour: str, marker: str, *, is_speed: bool) -> None:
    loads = [point.key.concurrency for point in points]
    values, below, above = [], [], []
    for point in points:
        estimate = point.mean.interval()
        value = point.per_user_tok_s if is_speed else estimate.value
        lo, hi = estimate.lo, estimate.hi
        if lo is None or hi is None or lo <= 0:
            lo = hi = estimate.value
        if is_speed:
            # The interval of mean ITL, seen through 1000/x and moved to the mean speed.
            centre = 1000 / estimate.value
            below.append(centre - 1000 / hi)
            above.append(1000 / lo - centre)
        else:
            below.append(estimate.value - lo)
            above.append(hi - estimate.value)
        values.append(value)
    axes.errorbar(loads, values, yerr=[below, above], color=colour, marker=marker, capsize=3, label=name)


def _label(axes: Axes, quantity: str) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("concurrency")
    axes.set_ylabel(quantity)
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    plain(axes)
