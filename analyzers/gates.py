"""Gates of all ranks as nodes of an event graph: waits that ended, and the operations that each of them waited for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from efaprof.analyzers.stamps import LABEL, Stamp
from efaprof.native_wide import NO_TIME, NONE
from efaprof.trace.layers import Layer
from efaprof.trace.schema import CommandKind, WaitKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from efaprof.analyzers.stamps import Stamps
    from efaprof.trace.widerow import Rows

    Times = NDArray[np.int64]
    Ids = NDArray[np.int32]
    Numbers = dict[str, NDArray[np.int64]]

_BARRIER = CommandKind.categories.to_list().index("barrier")
_SIGNAL = CommandKind.categories.to_list().index("signal")


@dataclass(frozen=True, slots=True)
class Gates:
    """Waits by rank and time, with the nodes that let each of them go."""

    rank: NDArray[np.int64]
    layer: NDArray[np.int64]
    phase: NDArray[np.int64]
    begin: Times
    end: Times
    first: Ids  # edges of gate g: also[first[g] : first[g + 1]]
    also: Ids
    label: NDArray[np.uint8]  # POLL, or UNATTRIBUTED where what let it go is not there

    @property
    def count(self) -> int:
        """Gates."""
        return len(self.rank)


def sorted_rows(parts: Sequence[Rows], names: Sequence[str], *, by: int) -> Numbers:
    """Columns of several tables as one, in order of the first ones; `part` says which table a row is of.

    Enums are numbers; nulls are NO_TIME.
    """
    filled = [(number, part) for number, part in enumerate(parts) if len(part)]
    columns = {name: [part.numbers(name) for _, part in filled] for name in names}
    columns["part"] = [np.full(len(part), number) for number, part in filled]
    whole = {name: np.concatenate([np.empty(0, np.int64), *values]) for name, values in columns.items()}
    order = np.lexsort([whole[name] for name in reversed(names[:by])])
    return {name: values[order] for name, values in whole.items()}


def read_gates(waits: Sequence[Rows], stamps: Stamps) -> Gates:
    """Gates with their edges: signals or barriers of the same layer and phase; for a flush the own completions."""
    names = ("rank", "end_ns", "begin_ns", "step", "layer", "phase", "kind", "signal_ns")
    column = sorted_rows(waits, names, by=3)
    phase, kind = column["phase"], column["kind"]
    begin, end = column["begin_ns"], column["end_ns"]
    is_flush = kind == WaitKind.categories.to_list().index("flush")
    is_barrier = kind == WaitKind.categories.to_list().index("barrier")
    asked = _key(column["step"], column["layer"], phase, is_barrier, column["rank"])
    first, also = _inbound(np.where(is_flush, NONE, asked), end, stamps)
    rows = np.flatnonzero(is_flush)
    flush, node = _flushed(column["rank"][rows], begin[rows], stamps)
    first, also = _with_own(first, also, rows[flush], node)
    ready = _latest(first, also, stamps.time)
    # The wait itself says when it was let go: when nothing found here came so late, the operation is missing.
    is_known = (ready != NO_TIME) & (ready >= column["signal_ns"])
    return Gates(
        rank=column["rank"],
        layer=column["layer"],
        phase=phase,
        begin=begin,
        end=end,
        first=first,
        also=also,
        label=np.where(is_known, LABEL[Layer.POLL], LABEL[Layer.UNATTRIBUTED]).astype(np.uint8),
    )


def _key(
    step: NDArray[np.int64],
    layer: NDArray[np.int64],
    phase: NDArray[np.int64],
    is_barrier: NDArray[np.bool_],
    rank: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Key: step │ layer:12 │ phase:3 │ barrier:1 │ rank:16 of the receiver."""
    return step << 32 | (layer & 0xFFF) << 20 | phase << 17 | is_barrier.astype(np.int64) << 16 | rank


def _inbound(asked: NDArray[np.int64], end: Times, stamps: Stamps) -> tuple[Ids, Ids]:
    """Edges from the hand-over of every signal (or barrier) that each gate asks for."""
    columns = stamps.columns
    is_barrier = columns["kind"] == _BARRIER
    signal = stamps.at(Stamp.SIGNAL)
    is_gate = (is_barrier | (columns["kind"] == _SIGNAL)) & columns["is_sequenced"] & (signal != NO_TIME)
    rows = np.flatnonzero(is_gate & (columns["peer"] >= 0))
    key = _key(
        columns["step"][rows], columns["layer"][rows], columns["phase"][rows], is_barrier[rows], columns["peer"][rows]
    )
    order = np.argsort(key, kind="stable")
    key, rows = key[order], rows[order]
    low, high = np.searchsorted(key, asked, side="left"), np.searchsorted(key, asked, side="right")
    lengths = np.where(asked == NONE, 0, high - low)
    gate = np.repeat(np.arange(len(asked)), lengths)
    within = np.arange(len(gate)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    found = rows[np.repeat(low, lengths) + within]
    # What came after the gate had ended did not let it go: a later gate of the same place asks for it.
    is_early = signal[found] <= end[gate]
    lengths = np.bincount(gate[is_early], minlength=len(asked))
    also = (found[is_early] + Stamp.SIGNAL * stamps.count).astype(np.int32)
    return np.append(0, np.cumsum(lengths)).astype(np.int32), also


def _flushed(rank: NDArray[np.int64], begin: Times, stamps: Stamps) -> tuple[NDArray[np.intp], Ids]:
    """(flush, node): of each ring the last operation that it waited for, told: all earlier ones were told before.

    Who posts by itself is not told, it sees: then the one that ended last. In order of flushes.
    """
    flushes, nodes = [np.empty(0, np.intp)], [np.empty(0, np.int32)]
    publish, own = stamps.at(Stamp.PUBLISH), stamps.columns["rank"]
    told = stamps.ids(Stamp.TOLD)
    starts = np.flatnonzero(stamps.starts_ring)
    ends = np.append(starts, stamps.count)[1:]
    for low, high in zip(starts.tolist(), ends.tolist(), strict=True):
        mine = np.flatnonzero(rank == own[low])
        rows = low + np.flatnonzero(publish[low:high] != NO_TIME)
        if not len(rows) or not len(mine):
            continue
        rows = rows[np.argsort(publish[rows], kind="stable")]
        at = np.searchsorted(publish[rows], begin[mine], side="right") - 1
        last = rows[np.maximum(at, 0)]
        ended = rows[_last_so_far(stamps.at(Stamp.DONE)[rows])][np.maximum(at, 0)]
        node = np.where(stamps.columns["is_posted"][last], stamps.ids(Stamp.DONE)[ended], told[last])
        is_there = (at >= 0) & (node != NONE)
        flushes.append(mine[is_there])
        nodes.append(node[is_there])
    flush, node = np.concatenate(flushes), np.concatenate(nodes)
    order = np.argsort(flush, kind="stable")
    return flush[order], node[order]


def _last_so_far(time: Times) -> NDArray[np.intp]:
    """Up to and with each place, where the latest of these times stands."""
    is_latest = time >= np.maximum.accumulate(time)
    return np.maximum.accumulate(np.where(is_latest, np.arange(len(time)), 0))


def _with_own(first: Ids, also: Ids, gate: NDArray[np.intp], node: Ids) -> tuple[Ids, Ids]:
    """Edges, and those of gates that wait for own operations; such a gate has no others."""
    merged = np.insert(also, first[gate], node)
    lengths = np.diff(first) + np.bincount(gate, minlength=len(first) - 1)
    return np.append(0, np.cumsum(lengths)).astype(np.int32), merged.astype(np.int32)


def _latest(first: Ids, also: Ids, time: Times) -> Times:
    """When the last edge of each gate came; NO_TIME without edges."""
    found = np.full(len(first) - 1, NO_TIME, np.int64)
    rows = np.flatnonzero(np.diff(first))
    if len(rows):
        found[rows] = np.maximum.reduceat(time[also], first[rows])
    return found
