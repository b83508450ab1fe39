"""The longest decode step of a run as a timeline: which layer had something open on each rank, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from efaprof.analyzers.intervals import union
from efaprof.analyzers.layers import OPERATION_SPANS
from efaprof.report import units
from efaprof.report.svg import Drawing, colours
from efaprof.trace import dispatch
from efaprof.trace.layers import Layer
from efaprof.trace.survey import survey

if TYPE_CHECKING:
    from efaprof.trace.rundir import Run
    from efaprof.trace.widerow import DispatchChunk

WIDTH = 960.0
_LEFT, _RIGHT, _LANE, _GAP = 92.0, 12.0, 15.0, 12.0
_MOST_RANKS = 8


@dataclass(frozen=True, slots=True)
class Lane:
    """Stretches in which a layer had something open on a rank."""

    rank: int
    layer: Layer
    stretches: tuple[tuple[int, int], ...]  # begin and end, ns of the run's clock


@dataclass(frozen=True, slots=True)
class WorstStep:
    """The longest step of any rank, and what every rank did meanwhile."""

    step: int
    rank: int
    begin_ns: int
    end_ns: int
    ranks: int
    lanes: tuple[Lane, ...]


def worst_step(run: Run, costs: pl.DataFrame) -> WorstStep | None:
    """Read the run once more up to its longest decode step; `costs` are the rows of decode steps."""
    longest = costs.sort("wall_ns", "step", "rank", descending=[True, False, False]).row(0, named=True)
    begin, end = int(longest["begin_ns"]), int(longest["begin_ns"] + longest["wall_ns"])
    for chunk in dispatch.chunks(survey(run.raw_files)):
        if (chunk.steps["step"] == longest["step"]).any():
            ranks = [int(longest["rank"]), *sorted(set(costs["rank"].to_list()) - {longest["rank"]})]
            lanes = [lane for rank in ranks[:_MOST_RANKS] for lane in _lanes(chunk, int(rank), begin, end)]
            return WorstStep(int(longest["step"]), ranks[0], begin, end, len(ranks), tuple(lanes))
    return None


def _lanes(chunk: DispatchChunk, rank: int, begin: int, end: int) -> list[Lane]:
    own = chunk.operations.filter(pl.col("rank") == rank)
    inbound = chunk.operations.filter(pl.col("peer") == rank)
    spans = {Layer.COMPUTE: chunk.computes.filter(pl.col("rank") == rank).select("begin_ns", "end_ns")}
    for layer, (first, last) in OPERATION_SPANS.items():
        spans[layer] = (inbound if layer is Layer.RX else own).select(begin_ns=first, end_ns=last)
    spans[Layer.POLL] = chunk.waits.filter(pl.col("rank") == rank).select("begin_ns", "end_ns")
    found = [Lane(rank, layer, _open(frame, begin, end)) for layer, frame in spans.items()]
    return [lane for lane in found if lane.stretches]


def _open(spans: pl.DataFrame, begin: int, end: int) -> tuple[tuple[int, int], ...]:
    """Union of the spans inside the window; gaps too small to be seen are closed."""
    inside = spans.drop_nulls().select(pl.all().clip(begin, end))
    found = union(inside["begin_ns"].to_numpy(), inside["end_ns"].to_numpy())
    least = (end - begin) / (WIDTH - _LEFT - _RIGHT) / 2
    stretches: list[tuple[int, int]] = []
    for first, last in zip(found.begin.tolist(), found.end.tolist(), strict=True):
        if stretches and first - stretches[-1][1] < least:
            stretches[-1] = stretches[-1][0], last
        else:
            stretches.append((first, last))
    return tuple(stretches)


def timeline_figure(worst: WorstStep) -> str:
    """The lanes, the slow rank first, each rank's under its name."""
    ranks = list(dict.fromkeys(lane.rank for lane in worst.lanes))
    height = 30 + len(worst.lanes) * _LANE + len(ranks) * (_LANE + _GAP)
    drawing = Drawing(WIDTH, height, f"timeline of step {worst.step}, the longest of rank {worst.rank}")
    scale = (WIDTH - _LEFT - _RIGHT) / (worst.end_ns - worst.begin_ns)
    for at in range(5):
        x = _LEFT + (WIDTH - _LEFT - _RIGHT) * at / 4
        drawing.line(x, 18, x, height)
        words = units.duration(round((worst.end_ns - worst.begin_ns) * at / 4))
        drawing.text(x, 12, words, anchor="end" if at == 4 else "middle" if at else "start")
    y, colour = 20.0, colours(lane.layer for lane in worst.lanes)
    for rank in ranks:
        drawing.text(_LEFT - 6, y + _LANE - 3, f"rank {rank}", anchor="end")
        y += _LANE
        for lane in (one for one in worst.lanes if one.rank == rank):
            drawing.text(_LEFT - 6, y + _LANE - 4, lane.layer.value, anchor="end")
            for first, last in lane.stretches:
                begin, length = units.duration(first - worst.begin_ns), units.duration(last - first)
                wide = max((last - first) * scale, 0.5)
                x = _LEFT + (first - worst.begin_ns) * scale
                drawing.rect(
                    x,
                    y + 2,
                    wide,
                    _LANE - 4,
                    colour[lane.layer],
                    title=f"rank {rank} {lane.layer}: {begin} + {length}",
                )
            y += _LANE
        y += _GAP
    return drawing.svg()
