"""What each step of each rank did, counted over its operations' columns: operations, bytes, queues, busy time."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from efaprof.analyzers.gates import sorted_rows
from efaprof.analyzers.intervals import merge, side_by_side, union
from efaprof.native_wide import NO_TIME
from efaprof.trace import schema
from efaprof.trace.layers import Layer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from efaprof.trace.widerow import Columns, DispatchChunk

    Times = NDArray[np.int64]
    Mask = NDArray[np.bool_]


def operation_spans(columns: Columns) -> dict[Layer, tuple[Times, Times]]:
    """From … to … of each operation in each layer of its path, as OPERATION_SPANS of efaprof.analyzers.layers says."""
    enter, publish, seen, fenced, call, returned, done, arrival, signal = (
        columns[f"{stamp}_ns"]
        for stamp in ("enter", "publish", "seen", "fenced", "call", "return", "done", "arrival", "signal")
    )
    kernel = enter, publish
    if (is_posted := posted_by_kernel(columns)).any():
        kernel = np.where(is_posted, _coalesce(fenced, enter), enter), np.where(is_posted, returned, publish)
    return {
        Layer.KERNEL: kernel,
        Layer.RING: (publish, seen),
        Layer.PROXY: (_coalesce(fenced, seen), call),
        Layer.LIBFABRIC: (call, returned),
        Layer.NIC: (returned, _coalesce(arrival, done)),
        Layer.RX: (arrival, signal),
    }


def step_counts(chunk: DispatchChunk) -> pl.DataFrame:
    """`count_steps` as a table."""
    found = count_steps(chunk)
    words = pl.Series(schema.StepKind.categories, dtype=schema.StepKind)
    return pl.DataFrame(found | {"kind": words.gather(found["kind"])})


def count_steps(chunk: DispatchChunk) -> Columns:
    """One row per (rank, step) by rank and time: `kind`, `begin_ns`, `wall_ns`, and sums over the rank's operations.

    `queue_ns`: commands that waited in a ring while its proxy served earlier ones, summed over operations;
    `proxy_busy_ns`: seen → returned and completion → told, their union, of the rank's busiest proxy;
    `kernel_busy_ns`: the same of issuing;
    `clip_ns`: by how much deliveries preceded the return of their post, summed.
    """
    steps = sorted_rows([chunk.step_rows], ("rank", "begin_ns", "end_ns", "step", "kind"), by=2)
    columns, parts = chunk.columns, []
    for rank in np.unique(steps["rank"]):
        rows = _rows(steps["rank"], rank)
        of_rank = _rows(columns["rank"], rank)
        own = {name: values[of_rank] for name, values in columns.items()}
        begin, end, number = steps["begin_ns"][rows], steps["end_ns"][rows], steps["step"][rows]
        rings = _by_ring(own)
        busy = [merge(union(one["seen_ns"], one["return_ns"]), union(one["done_ns"], one["told_ns"])) for one in rings]
        sums = [_sums(one, number) for one in rings]
        parts.append(
            {
                "proxy_busy_ns": np.max([one.covered_within(begin, end) for one in busy], axis=0),
                "kernel_busy_ns": union(*operation_spans(own)[Layer.KERNEL]).covered_within(begin, end),
                **{name: np.sum([one[name] for one in sums], axis=0) for name in sums[0]},
            }
        )
    summed = {name: np.concatenate([one[name] for one in parts]) for name in parts[0]} if parts else {}
    wall = steps["end_ns"] - steps["begin_ns"]
    return {**{name: steps[name] for name in ("rank", "step", "kind", "begin_ns")}, "wall_ns": wall, **summed}


def _by_ring(own: Columns) -> list[Columns]:
    """Operations of one rank by ring; each of them has a proxy of its own."""
    ring = own["ring"]
    cuts = np.flatnonzero(ring[1:] != ring[:-1]) + 1
    if not len(cuts):
        return [own]
    bounds = [0, *cuts.tolist(), len(ring)]
    return [{name: values[low:high] for name, values in own.items()} for low, high in pairwise(bounds)]


def _rows(values: NDArray[np.int64], wanted: int) -> slice | NDArray[np.intp]:
    """Where a column has this value."""
    return side_by_side(np.flatnonzero(values == wanted))


def _sums(own: Columns, steps: Times) -> dict[str, Times]:
    """Sums over the operations of each of these steps."""
    step = own["step"]
    starts = np.flatnonzero(np.append(True, step[1:] != step[:-1])[: len(step)])
    order = np.argsort(steps, kind="stable")
    # Every operation stands in one of the steps, and those of a ring's step side by side.
    place = order[np.minimum(np.searchsorted(steps[order], step[starts]), max(len(steps) - 1, 0))]

    def total(values: NDArray[Any]) -> Times:
        if not values.any():
            return np.zeros(len(steps), np.int64)
        by_stretch = np.add.reduceat(values, starts, dtype=np.int64) if len(starts) else starts
        summed: Times = np.rint(np.bincount(place, by_stretch, len(steps))).astype(np.int64)
        return summed

    publish, seen, returned = own["publish_ns"], own["seen_ns"], own["return_ns"]
    is_served = (publish != NO_TIME) & (seen != NO_TIME) & (returned != NO_TIME)
    served: slice | NDArray[np.intp] = slice(None) if is_served.all() else np.flatnonzero(is_served)
    waited, is_waiting = np.zeros(len(step), np.int64), np.zeros(len(step), np.bool_)
    waited[served] = union(seen[served], returned[served]).covered_within(publish[served], seen[served])
    # In the order of service: was the next command there before this one's call returned?
    is_waiting[served] = np.append(publish[served][1:] <= returned[served][:-1], False)[: np.count_nonzero(is_served)]
    delivered = _coalesce(own["arrival_ns"], own["done_ns"])
    taken_up = np.where(posted_by_kernel(own), own["enter_ns"], seen)
    return {
        "operations": total(np.ones(len(step), np.bool_)),
        "bytes": total(np.maximum(own["bytes"], 0)),
        "eagain": total(np.maximum(own["eagain"], 0)),
        "unfinished": total(own["done_ns"] == NO_TIME),
        "clip_ns": total(_beyond(returned, delivered)),
        "fence_wait_ns": total(_beyond(own["fenced_ns"], taken_up)),
        "queue_ns": total(waited),
        "waiting": total(is_waiting),
        "served": total(is_served),
    }


def _beyond(later: Times, earlier: Times) -> Times:
    """By how much one time is after another; 0 where it is not, or one of them is not known."""
    is_known = (later > earlier) & (earlier != NO_TIME)
    if not is_known.any():
        return np.zeros(len(later), np.int64)
    return np.where(is_known, later, 0) - np.where(is_known, earlier, 0)


def posted_by_kernel(columns: Columns) -> Mask:
    """By the kernel itself: no ring, no proxy, no library."""
    posted: Mask = columns.get("is_posted", np.zeros(len(columns["seq"]), np.bool_))
    return posted


def _coalesce(first: Times, second: Times) -> Times:
    is_missing = first == NO_TIME
    return second if is_missing.all() else np.where(is_missing, second, first)
