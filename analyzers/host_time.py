"""What the host was doing while a rank had nothing else on record: sampled stacks within stretches of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from efaprof.analyzers.intervals import IntervalSet

GAPS, STEPS, RECORDING = "launch and idle gaps", "decode steps", "recording"


@dataclass(frozen=True, slots=True)
class HostFunction:
    """A function that was on top of the stack."""

    function: str
    file: str
    caller: str  # the function that most often stood below it; empty for none
    ns: int
    share: float  # of the time within the stretches that has stacks


@dataclass(frozen=True, slots=True)
class HostTime:
    """Sampled stacks of the threads that drive the steps, within some stretches of their processes."""

    window: str  # GAPS, STEPS or RECORDING
    note: str  # why it is not the gaps; empty when it is
    window_ns: int  # summed over processes
    sampled_ns: int  # of it with a stack
    threads: tuple[str, ...]
    functions: tuple[HostFunction, ...]  # the longest first


def driving_threads(frames: pl.DataFrame, marked: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """The thread of each process whose stacks answer for it.

    The one that marked the steps where it ran Python (`marked`: process id → thread ids), else the main thread, else
    the one with stacks for the longest time.
    """
    chosen = {}
    length = (
        frames.filter(pl.col("depth") == 0).group_by("pid", "tid").agg(ns=(pl.col("end_ns") - pl.col("begin_ns")).sum())
    )
    for (pid,), rows in length.sort("ns", "tid", descending=[True, False]).group_by("pid", maintain_order=True):
        tids = rows["tid"].to_list()
        wanted = [tid for tid in (*marked.get(int(str(pid)), ()), pid) if tid in tids]
        chosen[int(str(pid))] = int(str(wanted[0] if wanted else tids[0]))
    return chosen


def host_time(
    frames: pl.DataFrame,
    stretches: Mapping[int, IntervalSet],
    threads: Mapping[int, int],
    *,
    window: str,
    note: str = "",
) -> HostTime:
    """Time on top of the stack by function, of one thread a process, inside that process's stretches.

    Needs the columns of `efaprof.trace.python_stacks.FRAMES`, in their order.
    """
    inside = np.zeros(frames.height, np.int64)
    begin, end = frames["begin_ns"].to_numpy(), frames["end_ns"].to_numpy()
    for pid, tid in threads.items():
        rows = np.flatnonzero(((frames["pid"] == pid) & (frames["tid"] == tid)).to_numpy())
        if pid in stretches:
            inside[rows] = stretches[pid].covered_within(begin[rows], end[rows])
    parent = frames["parent"].to_numpy()
    called = np.bincount(parent[parent >= 0], inside[parent >= 0], frames.height).astype(np.int64)
    on_top = np.maximum(inside - called, 0)
    sampled = int(inside[frames["depth"].to_numpy() == 0].sum())
    return HostTime(
        window=window,
        note=note,
        window_ns=sum(stretches[pid].covered_ns for pid in threads if pid in stretches),
        sampled_ns=sampled,
        threads=_names(frames, threads),
        functions=_functions(frames, on_top, sampled),
    )


def _functions(
    frames: pl.DataFrame, on_top: np.ndarray[tuple[int], np.dtype[np.int64]], sampled: int
) -> tuple[HostFunction, ...]:
    names = frames["function"]
    parent = frames["parent"].to_numpy()
    callers = names.gather(np.maximum(parent, 0)).set(pl.Series(parent < 0), "")
    by_caller = (
        frames.select("function", "file", caller=callers, ns=pl.Series(on_top))
        .filter(pl.col("ns") > 0)
        .group_by("function", "file", "caller")
        .agg(pl.sum("ns"))
        .sort("ns", "function", "file", "caller", descending=[True, False, False, False])
    )
    total = (
        by_caller.group_by("function", "file", maintain_order=True)
        .agg(pl.col("caller").first(), pl.sum("ns"))
        .sort("ns", "function", "file", descending=[True, False, False])
    )
    return tuple(
        HostFunction(row["function"], row["file"], row["caller"], row["ns"], row["ns"] / sampled if sampled else 0.0)
        for row in total.to_dicts()
    )


def _names(frames: pl.DataFrame, threads: Mapping[int, int]) -> tuple[str, ...]:
    wanted = pl.DataFrame(list(threads.items()), schema={"pid": pl.UInt32(), "tid": pl.UInt32()}, orient="row")
    found = wanted.join(frames.select("pid", "tid", "thread").unique(("pid", "tid")), on=["pid", "tid"], how="left")
    return tuple(row["thread"] or f"thread {row['tid']}" for row in found.sort("pid").to_dicts())
