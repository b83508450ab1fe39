"""Gates of the dense path: who came last to a collective is known only when the records of all ranks are together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from efaprof.trace.schema import WaitKind
from efaprof.trace.widerow import DispatchChunk

if TYPE_CHECKING:
    from efaprof.trace.survey import Survey

NOTE = "path: dense"  # in the records of such a rank (instrument/engine/bulk.cpp)
_PLACE = ("rank", "step", "layer", "phase")


def is_bulk(survey: Survey) -> bool:
    """The run's steps talk by bulk collectives."""
    return any(text == NOTE for _, text in survey.facts)


def resolve(chunk: DispatchChunk) -> DispatchChunk:
    """The chunk with each gate let go by the operation of the rank that entered the collective last.

    A rank records its own, as the last part of its own collective: that stays where it was the last itself. What came
    from ranks that were not the last can have been there when the last one came; nothing says when it was.
    """
    inbound = chunk.operations.select(
        *("step", "layer", "phase", "enter_ns"), rank="peer", late="rank", late_channel="channel", late_seq="wire_seq"
    ).drop_nulls()
    last = inbound.sort("enter_ns").group_by(_PLACE).last()
    waits = chunk.waits.join(last, on=_PLACE, how="left", maintain_order="left")
    is_late = (pl.col("enter_ns") > pl.col("begin_ns")).fill_null(value=False)
    waits = waits.with_columns(
        kind=pl.when(is_late).then(pl.lit("poll", WaitKind)).otherwise("kind"),
        source=pl.when(is_late).then("late").otherwise("source"),
        channel=pl.when(is_late).then("late_channel").otherwise("channel"),
        seq=pl.when(is_late).then("late_seq").otherwise("seq"),
    )
    came = last.select(*_PLACE[1:], "late", peer="rank", came_ns="enter_ns")
    operations = chunk.operations.join(came, on=["peer", *_PLACE[1:]], how="left", maintain_order="left").with_columns(
        pl.when(pl.col("rank") == pl.col("late")).then(name).otherwise(pl.min_horizontal(name, "came_ns")).alias(name)
        for name in ("arrival_ns", "signal_ns")
    )
    return DispatchChunk(
        chunk.steps,
        operations.select(chunk.operations.columns),
        waits.select(chunk.waits.columns),
        chunk.computes,
    )
