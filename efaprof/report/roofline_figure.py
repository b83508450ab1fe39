"""The message roofline as inline SVG: a run, and what its fabric reaches where a profile says it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from efaprof.report import units
from efaprof.report.plotting import HOST_PATH, KERNEL_POSTED, NEUTRAL
from efaprof.report.roofline import LARGEST, MANY, SMALLEST, size_tick
from efaprof.report.svg import Drawing

if TYPE_CHECKING:
    from efaprof.report.roofline import Roofline

WIDTH, _HEIGHT = 960.0, 300.0
_LEFT, _RIGHT, _TOP, _FOOT = 92.0, 250.0, 12.0, 44.0
_KEY_LINE = 20.0
_DASHES = ("", "6 4", "2 3")


class _Scale:
    """Bytes and bytes/s, both in logs, to places."""

    def __init__(self, found: Roofline) -> None:
        self.low = math.floor(math.log10(max(found.lowest, 1.0) / 1.5))
        self.high = max(math.ceil(math.log10(max(found.highest, 10.0) * 1.5)), self.low + 1)

    def x(self, size_bytes: float) -> float:
        part = math.log2(min(max(size_bytes, SMALLEST), LARGEST) / SMALLEST) / math.log2(LARGEST / SMALLEST)
        return _LEFT + part * (WIDTH - _LEFT - _RIGHT)

    def y(self, bytes_s: float) -> float:
        part = (math.log10(max(bytes_s, 10.0**self.low)) - self.low) / (self.high - self.low)
        return _TOP + (1 - part) * _HEIGHT


def roofline_figure(found: Roofline) -> str:
    """The picture; the host path is orange, the kernel-posted one violet."""
    drawing = Drawing(WIDTH, _TOP + _HEIGHT + _FOOT, "bandwidth of one rank against the size of a message")
    scale = _Scale(found)
    _grid(drawing, scale)
    key = WIDTH - _RIGHT + 16
    line = _TOP + 12
    for curve, dash in zip(reversed(found.curves), _DASHES, strict=False):
        points = [(scale.x(size), scale.y(reached)) for size, reached in zip(curve.sizes, curve.bytes_s, strict=True)]
        drawing.path(points, NEUTRAL[2], dash=dash)
        name = "roof: rate and bandwidth" if curve.messages >= MANY else f"roof with {curve.messages:g} in flight"
        drawing.path([(key, line - 4), (key + 24, line - 4)], NEUTRAL[2], dash=dash)
        drawing.text(key + 30, line, name)
        line += _KEY_LINE
    for one in found.calibrated:
        title = f"calibrated, at best: {units.size(one.bytes_s)}/s with {size_tick(one.size_bytes)}"
        drawing.dot(scale.x(one.size_bytes), scale.y(one.bytes_s), 2.5, NEUTRAL[1], title=title)
    if found.calibrated:
        drawing.dot(key + 12, line - 4, 2.5, NEUTRAL[1])
        drawing.text(key + 30, line, "calibrated, at best")
        line += _KEY_LINE
    if found.line_bytes_s is not None:
        drawing.path([(_LEFT, scale.y(found.line_bytes_s)), (WIDTH - _RIGHT, scale.y(found.line_bytes_s))], NEUTRAL[1])
        drawing.path([(key, line - 4), (key + 24, line - 4)], NEUTRAL[1])
        drawing.text(key + 30, line, f"line rate {units.rate(found.line_bytes_s * 8, 'bit')}")
        line += _KEY_LINE
    for run in found.runs:
        colour = (KERNEL_POSTED if run.is_kernel_posted else HOST_PATH)[0]
        words = f"{units.size(run.bytes_s)}/s, messages of {units.size(run.size_bytes)}"
        drawing.dot(scale.x(run.size_bytes), scale.y(run.bytes_s), 6, colour, title=f"{run.label}: {words}")
        drawing.dot(key + 12, line - 4, 6, colour)
        drawing.text(key + 30, line, words)
        line += _KEY_LINE
    return drawing.svg()


def _grid(drawing: Drawing, scale: _Scale) -> None:
    for power in range(scale.low, scale.high + 1):
        y = scale.y(10.0**power)
        drawing.line(_LEFT, y, WIDTH - _RIGHT, y)
        drawing.text(_LEFT - 6, y + 4, f"{units.size(10.0**power)}/s", anchor="end")
    for power in range(4, 24, 2):
        size = 2.0**power
        if size > LARGEST:
            break
        drawing.line(scale.x(size), _TOP, scale.x(size), _TOP + _HEIGHT)
        drawing.text(scale.x(size), _TOP + _HEIGHT + 16, size_tick(size), anchor="middle")
    drawing.text((_LEFT + WIDTH - _RIGHT) / 2, _TOP + _HEIGHT + 34, "size of a message", anchor="middle")
