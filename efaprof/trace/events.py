"""Tables that need no pairing: arrivals, completion-queue reads, counters; and who took part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.trace import fabric, schema
from efaprof.trace.columns import Columns
from efaprof.trace.decode import records, shapes_of
from efaprof.trace.frames import empty, frame, named
from efaprof.trace.layout import COUNTER, Shape
from efaprof.trace.objects import NONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from efaprof.trace.frames import Column
    from efaprof.trace.merge import Slice, Window
    from efaprof.trace.pairing import Unpaired
    from efaprof.trace.survey import Survey


RANK = "job.rank"  # text of a note whose value is the rank
PARENT = "parent"  # producer name of the recorder's own ring


def arrivals(unpaired: Unpaired, survey: Survey) -> pl.DataFrame:
    """Frame of completion-queue entries that met no post."""
    rows = unpaired.completions
    if not len(rows):
        return empty(schema.ARRIVALS)
    flags, thread = rows.flags, rows.thread
    process_of = np.array([one.process for one in survey.threads], np.uint32)
    columns: dict[str, Column] = {
        "process": process_of[thread], "thread": thread, "cq": rows.cq.astype(np.uint32),
        "nest": rows.thread_nest.astype(np.uint8), "time_ns": rows.end_ns, "context": rows.context,
        "source": rows.source, "immediate": rows.data_flags.astype(np.uint32), "flags": flags,
        "bytes": rows.len_kind_err.astype(np.uint32), "error": rows.error, "is_explained": unpaired.is_explained,
    }  # fmt: skip
    null = {
        "cq": rows.cq == NONE, "source": rows.source == np.uint64(fabric.FI_ADDR_UNSPEC),
        "immediate": (flags & np.uint32(fabric.FI_REMOTE_CQ_DATA)) == 0,
    }  # fmt: skip
    return frame(schema.ARRIVALS, columns, null=null)


@dataclass(frozen=True, slots=True)
class _Reads(Columns):
    process: NDArray[np.uint32]
    thread: NDArray[np.uint32]
    cq: NDArray[np.int64]
    nest: NDArray[np.uint8]
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    entries: NDArray[np.uint16]
    empties: NDArray[np.uint32]


def reads(window: Window, survey: Survey) -> pl.DataFrame:
    """Frame of the completion-queue reads of a window, in order of their end."""
    parts = [_reads(part, survey) for part in window.slices if part.cq_range.start < part.cq_range.stop]
    if not parts:
        return empty(schema.READS)
    rows = _Reads.concat(parts)
    if len(parts) > 1:
        rows = rows.where(np.argsort(rows.end_ns, kind="stable"))
    columns = {name: getattr(rows, name) for name in schema.READS}
    return frame(schema.READS, {**columns, "cq": rows.cq.astype(np.uint32)}, null={"cq": rows.cq == NONE})


def _reads(part: Slice, survey: Survey) -> _Reads:
    loaded, rows = part.loaded, part.cq_range
    cq, process = loaded.cq, loaded.ring.process
    position = cq.position[rows]
    end_ns = loaded.time_ns[position]
    return _Reads(
        process=np.full(len(position), process, np.uint32),
        thread=part.threads(position).astype(np.uint32),
        cq=survey.objects.queues.find(process, cq.cq[rows], end_ns),
        nest=cq.nest[rows],
        begin_ns=np.minimum(loaded.ring.clock.to_ns(cq.begin[rows]), end_ns),
        end_ns=end_ns,
        entries=cq.entries[rows].astype(np.uint16),
        empties=cq.empties[rows],
    )


def counters(window: Window, survey: Survey) -> pl.DataFrame:
    """Frame of the counter samples of a window."""
    made = []
    for part, which, body, time_ns in of_shape(window, survey, Shape.COUNTER, COUNTER):
        columns: dict[str, Column] = {
            "process": np.full(len(body), part.loaded.ring.process), "name": names_of(survey, body["name"]),
            "time_ns": time_ns, "value": body["value"], "is_monotone": which & 0xFF == 1,
        }  # fmt: skip
        made.append(frame(schema.COUNTERS, columns))
    return pl.concat(made).sort("time_ns", maintain_order=True) if made else empty(schema.COUNTERS)


def positions_of(part: Slice, shape: Shape) -> NDArray[np.int64]:
    """Places of a shape's records in the loaded chunk."""
    return part.low + np.flatnonzero(shapes_of(part.loaded.chunk)[part.low : part.high] == shape)


def of_shape(
    window: Window, survey: Survey, shape: Shape, dtype: np.dtype[np.void]
) -> Iterator[tuple[Slice, NDArray[np.uint16], NDArray[np.void], NDArray[np.int64]]]:
    """(slice, kinds, record bodies, t_end in ns) of each slice that holds records of a shape."""
    for part in window.slices if shape in survey.records else ():
        position = positions_of(part, shape)
        if len(position):
            chosen = np.zeros(len(part.loaded.chunk.starts), np.bool_)
            chosen[position] = True
            loaded = part.loaded
            yield part, loaded.chunk.kinds[position], records(loaded.chunk, chosen, dtype), loaded.time_ns[position]


def names_of(survey: Survey, ids: NDArray[np.uint64]) -> pl.Series:
    """Texts of NAME ids; an id without a NAME record is shown as a number."""
    keys, codes = np.unique(ids, return_inverse=True)
    return named(tuple(survey.names.get(int(key), f"name {int(key):#x}") for key in keys), schema.SPANS["name"], codes)


def processes(survey: Survey, rank: int | None) -> pl.DataFrame:
    """One row per process; `rank` is the run's, of every process but the recorder, unless the process said its own."""
    ranks = [
        None if one.producer == PARENT else survey.facts.get((row, RANK), rank)
        for row, one in enumerate(survey.processes)
    ]
    rows = [
        (row, one.identity.host, one.identity.pid, own, one.comm, one.producer)
        for row, (one, own) in enumerate(zip(survey.processes, ranks, strict=True))
    ]
    return pl.DataFrame(rows, schema=dict(schema.PROCESSES), orient="row")


def threads(survey: Survey) -> pl.DataFrame:
    """One row per thread."""
    rows = [(row, one.process, one.tid, one.comm) for row, one in enumerate(survey.threads)]
    return pl.DataFrame(rows, schema=dict(schema.THREADS), orient="row")
