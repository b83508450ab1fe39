"""The critical path of each step on each rank: backward from its end through the gates that it waited at (METHOD §2).

A gate is a wait that ended at G; its window reaches back to the end of the gate before it, or to the step's begin. One
operation released it, and the window is cut at that operation's stamps:

    P ···· enter ── publish ── seen ═══════ returned ── arrival ── signal ── G
      rest    kernel      ring      service         nic        rx       poll

`enter` is where the lane began the uninterrupted run of issues that the operation belongs to, `seen` where the proxy
began the uninterrupted service that it belongs to: the walk goes on through the operations before it there. In the
service stretch, calls are libfabric, fence waits nic, the rest of serving proxy, and gaps between commands that were
waiting ring. The rest is the rank's own computing, and then skew: the sender had not issued yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.analyzers.intervals import IntervalSet, union
from efaprof.trace.layers import Layer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from efaprof.trace.widerow import DispatchChunk

    Times = NDArray[np.int64]

# Layers that a walk can end in, in the order of tables.
WALK_LAYERS = (
    Layer.COMPUTE, Layer.KERNEL, Layer.RING, Layer.PROXY, Layer.LIBFABRIC, Layer.NIC, Layer.RX, Layer.POLL, Layer.SKEW,
    Layer.UNATTRIBUTED, Layer.IDLE,
)  # fmt: skip
NO_TIME = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class _Sender:
    """What the lane and the proxy of one rank did, as time sets and as chains over its operations."""

    proxy: IntervalSet
    libfabric: IntervalSet
    fence: IntervalSet
    compute: IntervalSet
    row_of: Times  # row of the operations table → position here
    service_begin: Times  # per operation: where the service that it belongs to began …
    service_publish: Times  # … and when the first command of that service was published
    service_enter: Times  # … and where the run of issues of that first command began


def walk(chunk: DispatchChunk) -> pl.DataFrame:
    """One row per (rank, step): `<layer>_ns`, which sum to the step's wall time, `true_skew_ns`, `clip_ns`, `gates`.

    `true_skew_ns` is the part of skew in which the late sender computed; `clip_ns` is by how much stamps of one clock
    had to be moved to be in order. A gate whose operation or stamps are missing gives `unattributed`.
    """
    operations = chunk.operations.with_row_index("row")
    senders = {
        rank: _sender(operations.filter(pl.col("rank") == rank), chunk.computes.filter(pl.col("rank") == rank),
                      chunk.waits.filter(pl.col("rank") == rank))
        for rank in chunk.steps["rank"].unique().to_list()
    }  # fmt: skip
    frames = []
    for rank in senders:
        steps = chunk.steps.filter(pl.col("rank") == rank).sort("begin_ns")
        gates = _gates(chunk.waits.filter(pl.col("rank") == rank), operations, steps, rank)
        frames.append(_walk_rank(rank, steps, gates, senders))
    return pl.concat(frames)


def _sender(own: pl.DataFrame, computes: pl.DataFrame, waits: pl.DataFrame) -> _Sender:
    """Chains of one rank; its operations are in order of seq, which is the order of issue and of service."""
    t = {name: own[name].fill_null(NO_TIME).to_numpy() for name in
         ("enter_ns", "publish_ns", "seen_ns", "fenced_ns", "call_ns", "return_ns", "done_ns", "told_ns")}  # fmt: skip
    count = len(own)
    number = np.arange(count)
    # The proxy was still serving the command before when this one was published: one service.
    waited = np.zeros(count, np.bool_)
    waited[1:] = (t["publish_ns"][1:] < t["return_ns"][:-1]) & (t["return_ns"][:-1] != NO_TIME)
    first = np.maximum.accumulate(np.where(waited, 0, number)) if count else number
    # Nothing but issuing between this command's publication and the one before: one run.
    other = union(
        np.concatenate([waits["begin_ns"].to_numpy(), computes["begin_ns"].to_numpy()]),
        np.concatenate([waits["end_ns"].to_numpy(), computes["end_ns"].to_numpy()]),
    )
    joined = np.zeros(count, np.bool_)
    known = (t["publish_ns"][:-1] != NO_TIME) & (t["enter_ns"][1:] != NO_TIME)
    joined[1:] = known & (other.covered_within(t["publish_ns"][:-1], t["enter_ns"][1:]) == 0)
    run = np.maximum.accumulate(np.where(joined, 0, number)) if count else number
    fence_end = np.where(t["fenced_ns"] == NO_TIME, t["seen_ns"], t["fenced_ns"])
    return _Sender(
        proxy=_set(np.concatenate([fence_end, t["done_ns"]]), np.concatenate([t["call_ns"], t["told_ns"]])),
        libfabric=_set(t["call_ns"], t["return_ns"]),
        fence=_set(t["seen_ns"], t["fenced_ns"]),
        compute=union(computes["begin_ns"].to_numpy(), computes["end_ns"].to_numpy()),
        row_of=own["row"].to_numpy().astype(np.int64),
        service_begin=t["seen_ns"][first],
        service_publish=t["publish_ns"][first],
        service_enter=t["enter_ns"][run[first]],
    )


def _set(begin: Times, end: Times) -> IntervalSet:
    known = (begin != NO_TIME) & (end != NO_TIME)
    return union(begin[known], end[known])


@dataclass(frozen=True, slots=True)
class _Gates:
    """Gates of one rank in order of time; NO_TIME where the releasing operation or its stamp is missing."""

    end: Times  # G
    window: Times  # P
    step: Times  # position of the step
    sender: Times  # rank of the releasing operation, −1 unknown
    row: Times  # its row in the operations table
    signal: Times
    arrival: Times
    returned: Times
    is_flush: NDArray[np.bool_]


def _gates(waits: pl.DataFrame, operations: pl.DataFrame, steps: pl.DataFrame, rank: int) -> _Gates:
    stamps = [
        pl.col(name).alias(f"op_{name}")
        for name in ("row", "rank", "signal_ns", "arrival_ns", "return_ns", "done_ns", "told_ns")
    ]
    inbound = operations.filter(pl.col("peer") == rank).select("channel", *stamps, source="rank", seq="wire_seq")
    own = operations.filter(pl.col("rank") == rank).select("seq", *stamps)
    waits = waits.select("end_ns", "kind", "source", "channel", "seq")
    is_flush = pl.col("kind") == "flush"
    polled = waits.filter(~is_flush).join(inbound, on=["source", "channel", "seq"], how="left")
    both = pl.concat([polled, waits.filter(is_flush).join(own, on="seq", how="left")]).sort("end_ns")
    begin, end = steps["begin_ns"].to_numpy(), both["end_ns"].to_numpy()
    step = np.searchsorted(begin, end, side="right") - 1
    before = np.append(NO_TIME, end[:-1])
    is_flushed = (both["kind"] == "flush").to_numpy()
    known = {
        name: both[f"op_{name}"].fill_null(NO_TIME).to_numpy()
        for name in ("signal_ns", "arrival_ns", "return_ns", "done_ns", "told_ns")
    }
    return _Gates(
        end=end,
        window=np.maximum(before, begin[np.maximum(step, 0)]),
        step=step,
        sender=both["op_rank"].cast(pl.Int64).fill_null(-1).to_numpy(),
        row=both["op_row"].cast(pl.Int64).fill_null(-1).to_numpy(),
        signal=np.where(is_flushed, known["told_ns"], known["signal_ns"]),
        arrival=np.where(is_flushed, known["done_ns"], known["arrival_ns"]),
        returned=known["return_ns"],
        is_flush=is_flushed,
    )


def _walk_rank(rank: int, steps: pl.DataFrame, gates: _Gates, senders: dict[int, _Sender]) -> pl.DataFrame:
    count = len(steps)
    total = {layer: np.zeros(count, np.int64) for layer in WALK_LAYERS}
    extra = {name: np.zeros(count, np.int64) for name in ("true_skew", "clip")}
    own = senders[rank]
    for sender in np.unique(gates.sender):
        rows = np.flatnonzero(gates.sender == sender)
        if int(sender) in senders:
            costs = _cut(gates, rows, senders[int(sender)], own, is_own=int(sender) == rank)
        else:
            costs = {Layer.UNATTRIBUTED: gates.end[rows] - gates.window[rows]}
        for name, ns in costs.items():
            target = total[name] if isinstance(name, Layer) else extra[name]
            np.add.at(target, gates.step[rows], ns)
    begin, end = steps["begin_ns"].to_numpy(), steps["end_ns"].to_numpy()
    last = begin.copy()
    np.maximum.at(last, gates.step, gates.end)
    # After the last gate nothing is waited for: own computing, and what nothing known explains.
    computing = own.compute.covered_within(last, end)
    total[Layer.COMPUTE] += computing
    total[Layer.IDLE] += end - last - computing
    return steps.select("rank", "step", "kind", "begin_ns", wall_ns=pl.col("end_ns") - pl.col("begin_ns")).with_columns(
        **{f"{layer}_ns": pl.Series(ns) for layer, ns in total.items()},
        **{f"{name}_ns": pl.Series(ns) for name, ns in extra.items()},
        gates=pl.Series(np.bincount(gates.step, minlength=count)),
    )


def _cut(
    gates: _Gates, rows: NDArray[np.intp], sender: _Sender, own: _Sender, *, is_own: bool
) -> dict[Layer | str, Times]:
    """Nanoseconds of each layer in the windows of these gates, all released by one rank's operations."""
    at = np.searchsorted(sender.row_of, gates.row[rows])
    low, high = gates.window[rows], gates.end[rows]
    stamps = [
        gates.signal[rows], gates.arrival[rows], gates.returned[rows],
        sender.service_begin[at], sender.service_publish[at], sender.service_enter[at],
    ]  # fmt: skip
    cuts, clip, is_missing = [high], np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
    for stamp in stamps:
        # A missing stamp stops the walk there: what lies before it is not attributed.
        is_missing |= stamp == NO_TIME
        inside = np.clip(stamp, low, cuts[-1])
        clip += np.where(is_missing, 0, np.maximum(stamp - cuts[-1], 0))
        cuts.append(np.where(is_missing, cuts[-1], inside))
    _, signal, arrival, returned, seen, publish, enter = cuts
    calls = sender.libfabric.covered_within(seen, returned)
    fenced = sender.fence.covered_within(seen, returned)
    serving = sender.proxy.covered_within(seen, returned)
    gaps = (returned - seen) - calls - fenced - serving
    rest = enter - low
    computing = own.compute.covered_within(low, enter)
    late = sender.compute.covered_within(low, enter)
    costs: dict[Layer | str, Times] = {
        Layer.POLL: high - signal,
        Layer.RX: np.where(gates.is_flush[rows], 0, signal - arrival),
        Layer.PROXY: serving + np.where(gates.is_flush[rows], signal - arrival, 0),
        Layer.NIC: arrival - returned + fenced,
        Layer.LIBFABRIC: calls,
        Layer.RING: gaps + (seen - publish),
        Layer.KERNEL: publish - enter,
        Layer.COMPUTE: np.where(is_missing, 0, computing),
        Layer.UNATTRIBUTED: np.where(is_missing, rest, 0),
        "clip": clip,
    }
    waiting = np.where(is_missing, 0, rest - computing)
    if is_own:
        return costs | {Layer.IDLE: waiting}
    return costs | {Layer.SKEW: waiting, "true_skew": np.minimum(np.where(is_missing, 0, late), waiting)}
