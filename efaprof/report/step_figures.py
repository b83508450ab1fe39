"""Pictures of the decode steps of a run: their layers over time, and how the time of each layer is distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.report import units
from efaprof.report.svg import Drawing, colours

if TYPE_CHECKING:
    from collections.abc import Sequence

    from efaprof.trace.layers import Layer

WIDTH = 960.0
_LEFT, _RIGHT = 92.0, 12.0
_STEPS_HEIGHT, _ROW = 250.0, 30.0
_MOST_BARS = 240  # more steps are drawn as means of consecutive ones
_BINS = 80
_TAIL = 0.995  # a distribution is drawn up to here, or one slow step would leave nothing to see


def drawn_layers(costs: pl.DataFrame, layers: Sequence[Layer]) -> list[Layer]:
    """Those that took any time."""
    return [layer for layer in layers if float(costs[f"{layer}_ns"].sum()) > 0]


def steps_figure(costs: pl.DataFrame, layers: Sequence[Layer]) -> str:
    """Layers of each decode step, stacked, mean over ranks, in order of time. `costs`: rows of decode steps."""
    names = [f"{layer}_ns" for layer in layers]
    means = costs.group_by("step").agg(pl.mean(*names), pl.min("begin_ns")).sort("begin_ns")
    group = -(-len(means) // _MOST_BARS)
    first, last = means["step"].item(0), means["step"].item(-1)
    bars = (
        means.with_row_index()
        .group_by(pl.col("index") // group, maintain_order=True)
        .agg(pl.mean(*names), first=pl.first("step"), last=pl.last("step"))
    )
    heights = bars.select(names).to_numpy()
    highest = float(heights.sum(axis=1).max())
    drawing = Drawing(WIDTH, _STEPS_HEIGHT + 44, f"time of decode steps {first} to {last} by layer")
    wide = (WIDTH - _LEFT - _RIGHT) / len(bars)
    for at in range(5):
        y = 10 + _STEPS_HEIGHT * (1 - at / 4)
        drawing.line(_LEFT, y, WIDTH - _RIGHT, y)
        drawing.text(_LEFT - 6, y + 4, units.duration(highest * at / 4), anchor="end")
    colour = colours(layers)
    for number, row in enumerate(heights):
        y, (a, b) = 10 + _STEPS_HEIGHT, bars.select("first", "last").row(number)
        where = f"step {a}" if a == b else f"steps {a} to {b}"
        for layer, ns in zip(layers, row, strict=True):
            high = _STEPS_HEIGHT * float(ns) / highest
            y -= high
            if high >= 0.05:
                title = f"{where}: {layer} {units.duration(float(ns))}"
                drawing.rect(_LEFT + number * wide, y, wide * 0.94, high, colour[layer], title=title)
    drawing.text(_LEFT, _STEPS_HEIGHT + 28, f"step {first}")
    drawing.text(WIDTH - _RIGHT, _STEPS_HEIGHT + 28, f"step {last}", anchor="end")
    if group > 1:
        drawing.text(WIDTH / 2, _STEPS_HEIGHT + 28, f"each bar: mean of {group} steps", anchor="middle")
    return drawing.svg()


def spread_figure(costs: pl.DataFrame, layers: Sequence[Layer]) -> str:
    """How the time of each layer in one step on one rank is distributed."""
    drawing = Drawing(WIDTH, 24 + _ROW * len(layers), "distribution of the time per step of each layer")
    text_from = WIDTH - 340
    for at, name in enumerate(("p50", "p90", "p99", "highest")):
        drawing.text(text_from + 90 + at * 80, 14, name, anchor="end")
    colour = colours(layers)
    for number, layer in enumerate(layers):
        values = costs[f"{layer}_ns"].to_numpy()
        top = 24 + number * _ROW
        upto = max(float(np.quantile(values, _TAIL)), 1.0)
        counts, edges = np.histogram(values[values <= upto], _BINS, (0, upto))
        wide = (text_from - _LEFT - 10) / _BINS
        for one, count in enumerate(counts):
            if count:
                high = max((_ROW - 8) * count / counts.max(), 1.0)
                title = f"{layer}: {count} steps of {units.duration(edges[one])} to {units.duration(edges[one + 1])}"
                drawing.rect(_LEFT + one * wide, top + _ROW - 6 - high, wide * 0.9, high, colour[layer], title=title)
        drawing.line(_LEFT, top + _ROW - 6, text_from - 10, top + _ROW - 6)
        drawing.text(_LEFT - 6, top + _ROW - 8, layer.value, anchor="end")
        for at, value in enumerate([*np.quantile(values, [0.5, 0.9, 0.99]), values.max()]):
            drawing.text(text_from + 90 + at * 80, top + _ROW - 8, units.duration(float(round(value))), anchor="end")
    return drawing.svg()
