"""What a program names of its own time: spans on its threads, NVTX domains below, steps in a line of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.export.stretches import column_argument
from efaprof.export.surroundings import draw_nested, put_named
from efaprof.export.timeline import Argument
from efaprof.trace.layout import UNSAID_COUNT, Payload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from efaprof.analyzers.steps import ProcessSteps
    from efaprof.export.groups import Groups
    from efaprof.export.source import RunTables

_SIGNED = (Payload.I64, Payload.I32)
_FLOATING = (Payload.F64, Payload.F32)
_MICRO = 1e6


def draw_spans(tables: RunTables, groups: Groups) -> None:
    """Spans on their threads, nested as they ran; what crosses another one goes below, and so do NVTX domains."""
    spans = tables.named()["spans"].filter(pl.col("what").ne_missing("step began"))
    named = spans.with_columns(
        pl.col("name").cast(pl.String).fill_null("(no name)"), pl.col("domain").cast(pl.String)
    ).collect()
    parts = named.partition_by("thread", "domain", as_dict=True)
    for (thread, domain), frame in sorted(parts.items(), key=lambda part: (part[0][0], part[0][1] or "")):
        line = groups.thread(int(thread)) if domain is None else groups.domain_line(int(thread), str(domain))
        where = f"spans of thread {groups.thread_name(int(thread))}"
        draw_nested(groups, line, where, frame, _arguments)


def _arguments(rows: pl.DataFrame) -> tuple[Argument, ...]:
    """Payloads by their type, tokens and sequences of steps; rows that have none of a kind lack that argument."""
    payload, kind = rows["payload"], rows["payload_type"].fill_null(int(Payload.NONE))
    bits = payload.fill_null(0).to_numpy()
    is_there = payload.is_not_null().to_numpy()
    signed, floating = (kind.is_in([int(one) for one in kinds]).to_numpy() for kinds in (_SIGNED, _FLOATING))
    is_step = (kind == int(Payload.STEP)).to_numpy()
    narrow = (kind == int(Payload.I32)).to_numpy()
    whole = np.where(narrow, bits.astype(np.uint32).view(np.int32), bits.view(np.int64))
    found = [
        Argument("payload", bits, ~(is_there & ~signed & ~floating & ~is_step)),
        Argument("payload", whole, ~signed),
        Argument("payload (millionths)", _millionths(bits, (kind == int(Payload.F32)).to_numpy(), floating), ~floating),
    ]
    for name, shift in (("tokens", 0), ("batch", 32)):
        count = (bits >> np.uint64(shift)) & np.uint64(UNSAID_COUNT)
        found.append(Argument(name, count, ~is_step | (count == UNSAID_COUNT)))
    category = rows["category"].fill_null(0)
    if (category > 0).any():
        is_nvtx = (rows["source"].cast(pl.String) == "nvtx").fill_null(value=False)
        found.append(Argument("category", category.cast(pl.UInt64).to_numpy(), ~(is_nvtx & (category > 0)).to_numpy()))
    return tuple(one for one in found if one.absent is None or not one.absent.all())


def _millionths(
    bits: NDArray[np.uint64], is_half: NDArray[np.bool_], is_floating: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Floating-point payloads as whole numbers, which is what a slice can carry."""
    values = np.where(is_half, bits.astype(np.uint32).view(np.float32), bits.view(np.float64))
    values = np.where(is_floating & np.isfinite(values), values, 0.0) * _MICRO
    return np.clip(np.rint(values), -(2.0**62), 2.0**62).astype(np.int64)


def draw_steps(tables: RunTables, groups: Groups) -> None:
    """Steps of programs that say where they are, one line a process, above what happens in them."""
    if tables.steps is None:
        return
    for steps in tables.steps.processes:
        if steps.process not in groups.dispatching:
            _draw_steps(tables, groups, steps)


def _draw_steps(tables: RunTables, groups: Groups, steps: ProcessSteps) -> None:
    frame = pl.DataFrame(
        {
            "start": steps.begin_ns,
            "end": steps.until_ns,
            "name": [f"{kind} step" if kind else "step" for kind in steps.kind],
            "step": steps.number,
            "tokens": pl.Series(steps.tokens, dtype=pl.UInt64),
            "batch": pl.Series(steps.batch, dtype=pl.UInt64),
        }
    )
    if (window := tables.window) is not None:
        frame = frame.filter(pl.col("start") < window.end_ns, pl.col("end") >= window.start_ns)
    if frame.is_empty():
        return
    starts, ends = frame["start"].to_numpy(), frame["end"].to_numpy()
    track = groups.stage_line(steps.process, "steps", "begin of a step → begin of the next").place(starts, ends)
    arguments = tuple(column_argument(frame, column) for column in ("step", "tokens", "batch"))
    put_named(groups, frame["name"], track, (starts, ends - starts), arguments)
