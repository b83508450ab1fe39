"""The attribution report as a picture: runs under the message roofline, and the layers of their time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from efaprof.report import units
from efaprof.report.plotting import HOST_PATH, KERNEL_POSTED, NEUTRAL, new_figure, plain, write_figure
from efaprof.report.roofline import LARGEST, MANY, SMALLEST, roofline, size_tick
from efaprof.trace.layers import DispatchPath

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from efaprof.analyzers.profile import Profile
    from efaprof.report.attribution_report import AttributionReport
    from efaprof.report.roofline import Curve, Roofline

_MARKERS = "osD^vP"
_LEAST_SHARE = 0.002  # of the step: less cannot be seen
_MOST_NAMED = 6  # runs in a legend


def write_attribution_plot(reports: Sequence[AttributionReport], path: Path, profile: Profile | None = None) -> None:
    """Write the picture as .svg or .png; UsageError for another suffix, without matplotlib, when it cannot be written.

    The EFA host path is orange, the kernel-posted path violet; what is emulated stands under the title.
    """
    figure = new_figure(path, width=10.5, height=4.6)
    left, right = figure.subplots(1, 2)
    colours = _colours(reports)
    _draw_roofline(left, roofline(reports, profile), colours, has_profile=profile is not None)
    _draw_layers(right, reports, colours)
    emulated = list(dict.fromkeys(name for report in reports for name in report.run.emulated))
    names = ", ".join(name for report in reports[:1] for name in report.run.runs)
    title = names if len(reports) == 1 else f"{len(reports)} runs"
    words = f"emulated: {', '.join(emulated)}" if emulated else "nothing emulated"
    figure.suptitle(f"{title} · verdict {reports[0].verdict.path}\n{words}", fontsize=10)
    write_figure(figure, path)


def _colours(reports: Sequence[AttributionReport]) -> dict[str, str]:
    """Colour of each run, by its label."""
    used = {True: 0, False: 0}
    found = {}
    for report in reports:
        is_posted = report.run.path is DispatchPath.GDAKI
        family = KERNEL_POSTED if is_posted else HOST_PATH
        found[_label(report)] = family[used[is_posted] % len(family)]
        used[is_posted] += 1
    return found


def _label(report: AttributionReport) -> str:
    return report.run.runs[0] if len(report.run.runs) == 1 else f"{len(report.run.runs)} runs"


def _draw_roofline(axes: Axes, found: Roofline | None, colours: Mapping[str, str], *, has_profile: bool) -> None:
    axes.set_title("message roofline of one rank, while it communicates", fontsize=9)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(SMALLEST, LARGEST)
    ticks = [4.0**power for power in range(2, 12)]
    axes.set_xticks(ticks, [size_tick(size) for size in ticks], fontsize=8)
    axes.yaxis.set_major_formatter(lambda value, _: f"{units.size(value)}/s")
    axes.set_xlabel("size of a message")
    plain(axes)
    if found is None:
        axes.text(0.5, 0.5, "nothing was moved", transform=axes.transAxes, ha="center")
        return
    styles = ("-", "--", ":")
    for curve, style in zip(reversed(found.curves), styles, strict=False):
        axes.plot(curve.sizes, curve.bytes_s, style, color=NEUTRAL[2], linewidth=1.2, label=_curve_name(curve))
    if found.calibrated:
        sizes, reached = zip(*((one.size_bytes, one.bytes_s) for one in found.calibrated), strict=True)
        axes.plot(sizes, reached, ".", color=NEUTRAL[1], label="calibrated, at best")
    if found.line_bytes_s is not None:
        line = f"line rate {units.rate(found.line_bytes_s * 8, 'bit')}"
        axes.axhline(found.line_bytes_s, color=NEUTRAL[1], linewidth=0.8, label=line)
    for run, marker in zip(found.runs, _MARKERS * len(found.runs), strict=False):
        label = f"{run.label}: {units.size(run.bytes_s)}/s" if len(found.runs) <= _MOST_NAMED else None
        axes.plot(run.size_bytes, run.bytes_s, marker, color=colours[run.label], markersize=9, label=label, zorder=5)
    if not has_profile:
        axes.text(
            0.03, 0.03, "ceilings unknown: efaprof calibrate, --profile FILE", transform=axes.transAxes, fontsize=8
        )
    elif found.is_lower_bound:
        axes.text(0.03, 0.03, "the roof may be higher: the issuer set it", transform=axes.transAxes, fontsize=8)
    axes.set_ylim(found.lowest / 3, found.highest * 3)
    axes.legend(frameon=False, fontsize=7.5, loc="lower right" if has_profile else "best")


def _curve_name(curve: Curve) -> str:
    if curve.messages >= MANY:
        return "roof: rate and bandwidth"
    return f"roof with {curve.messages:g} in flight"


def _draw_layers(axes: Axes, reports: Sequence[AttributionReport], colours: Mapping[str, str]) -> None:
    """A bar per layer and run with its interval; without steps, the mean time of an operation."""
    has_steps = all(report.decode is not None for report in reports)
    rows = {_label(report): _layer_times(report, has_steps=has_steps) for report in reports}
    layers = list(dict.fromkeys(name for found in rows.values() for name in found))
    high = 0.8 / max(len(rows), 1)
    for number, (label, found) in enumerate(rows.items()):
        places = [at + (number - (len(rows) - 1) / 2) * high for at, name in enumerate(layers) if name in found]
        values = [found[name][0] for name in layers if name in found]
        halves = [found[name][1] for name in layers if name in found]
        axes.barh(places, values, height=high * 0.92, xerr=halves, color=colours[label], error_kw={"linewidth": 0.8})
    axes.set_yticks(range(len(layers)), layers)
    axes.invert_yaxis()
    plain(axes)
    axes.set_xlim(left=0)
    axes.set_xlabel("µs a step and rank (95 % intervals)" if has_steps else "µs an operation, mean")
    method = reports[0].method
    axes.set_title(f"where the step goes, {method}" if has_steps else "where an operation's time goes", fontsize=9)


def _layer_times(report: AttributionReport, *, has_steps: bool) -> dict[str, tuple[float, float]]:
    """Layer → (µs, half of its interval)."""
    if has_steps and report.decode is not None:
        split = report.decode.decode.split
        return {
            row.layer.value: (row.us.value, (row.us.hi - row.us.lo) / 2 if row.us.lo is not None and row.us.hi else 0.0)
            for row in split.layers
            if row.share >= _LEAST_SHARE
        }
    sent = report.recorded.sent
    if sent is None:
        return {}
    found = {"libfabric": (sent.libfabric.sum_ns / max(sent.libfabric.n, 1) / 1e3, 0.0)}
    if sent.nic is not None and sent.nic.n:
        found["nic"] = (sent.nic.sum_ns / sent.nic.n / 1e3, 0.0)
    return found
