"""Stages of operations as columns and as nodes of an event graph: what each of them followed (METHOD §2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from efaprof.native_wide import NO_TIME, NONE
from efaprof.trace.layers import Layer
from efaprof.trace.layout import RINGS_APART

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from efaprof.trace.widerow import Columns

    Times = NDArray[np.int64]
    Ids = NDArray[np.int32]
    Mask = NDArray[np.bool_]

LAYERS: tuple[Layer, ...] = tuple(layer for layer in Layer if layer is not Layer.NIC_SKEW)
LABEL = {layer: number for number, layer in enumerate(LAYERS)}


class Stamp(IntEnum):
    """Stages of an operation in a graph; CLEARED: this and all earlier operations to that peer have completed."""

    ENTER = 0
    PUBLISH = 1
    SEEN = 2
    FENCED = 3
    CALL = 4
    RETURN = 5
    ARRIVAL = 6
    SIGNAL = 7
    DONE = 8
    TOLD = 9
    CLEARED = 10


_STAMPED = tuple(stamp for stamp in Stamp if stamp is not Stamp.CLEARED)
_NAMES = (
    "rank", "ring", "seq", "step", "layer", "peer", "channel", "phase", "kind", "is_fenced", "is_posted", "wire_seq",
    "bytes",
)  # fmt: skip
# From which stage to which a host takes an operation, and whose time that is.
_HOST = (
    (Stamp.SEEN, Layer.RING),
    (Stamp.FENCED, Layer.NIC),  # a fence's wait is the time of what it waits for
    (Stamp.CALL, Layer.PROXY),
    (Stamp.RETURN, Layer.LIBFABRIC),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that made operations wait; None where there is none or it is not known."""

    ring: int | None = None  # commands in a ring
    window: int | None = None  # operations in flight
    rate_ops_s: float | None = None  # calibrated, of one rank's NIC
    line_rate_bytes_s: float | None = None  # of one rank's NIC

    def service_ns(self, size: NDArray[Any]) -> Times | None:
        """Least time that a NIC is busy with each operation; None without any ceiling."""
        if not self.rate_ops_s and not self.line_rate_bytes_s:
            return None
        least = np.full(len(size), 1e9 / self.rate_ops_s if self.rate_ops_s else 0.0)
        if self.line_rate_bytes_s:
            np.maximum(least, size * (1e9 / self.line_rate_bytes_s), out=least)
        whole: Times = np.floor(least).astype(np.int64)
        return whole


@dataclass(slots=True)
class Stamps:
    """Operations of a stretch of steps, those of one ring side by side in order of seq."""

    columns: dict[str, NDArray[Any]]
    stages: int  # of each
    time: Times  # stage-major, then room for other nodes
    before: Ids
    also: Ids
    label: NDArray[np.uint8]
    starts_ring: Mask
    is_context: Mask
    _ids: dict[Stamp, Ids] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Operations."""
        return len(self.starts_ring)

    def at(self, stamp: Stamp) -> Times:
        """Times of one stage; NO_TIME where it was not recorded."""
        return self.time[stamp * self.count : (stamp + 1) * self.count]

    def ids(self, stamp: Stamp) -> Ids:
        """Node of each operation's stage, NONE where it was not recorded."""
        if stamp not in self._ids or stamp is Stamp.CLEARED:  # whose times are made later
            own = np.arange(stamp * self.count, (stamp + 1) * self.count, dtype=np.int32)
            is_missing = self.at(stamp) == NO_TIME
            self._ids[stamp] = np.where(is_missing, np.int32(NONE), own) if is_missing.any() else own
        return self._ids[stamp]

    def sent_before(self) -> Ids:
        """The return of the operation that the NIC sent before each: of its rank, where that has several rings."""
        if not (self.columns["ring"] >= RINGS_APART).any():
            return _earlier(self, Stamp.RETURN, 1)
        found = np.full(self.count, NONE, np.int32)
        rank, returned = self.columns["rank"], self.at(Stamp.RETURN)
        rows = np.flatnonzero(returned != NO_TIME)
        rows = rows[np.lexsort((returned[rows], rank[rows]))]
        is_same = rank[rows[1:]] == rank[rows[:-1]]
        found[rows[1:]] = np.where(is_same, self.ids(Stamp.RETURN)[rows[:-1]], NONE)
        return found

    def put(self, stamp: Stamp, *, before: Ids | None = None, also: Ids | None = None, label: Any = None) -> None:
        """Set what nodes of one stage followed, and whose time the lag is."""
        place = slice(stamp * self.count, (stamp + 1) * self.count)
        for values, target in ((before, self.before), (also, self.also), (label, self.label)):
            if values is not None:
                target[place] = values


def read_stamps(context: Columns, operations: Columns, limits: Limits, *, room: int = 0) -> Stamps:
    """Operations with their chains; `context` are those of the step before, in which nothing is counted.

    `room`: nodes that others add behind the stages.
    """
    pieces = _pieces([in_order(context), in_order(operations)])
    columns = {name: np.concatenate([part[name][rows] for part, rows, _ in pieces]) for name in _NAMES}
    count = len(columns["seq"])
    stages = len(Stamp) if columns["is_fenced"].any() else len(_STAMPED)
    nodes = stages * count + room
    time = np.empty(nodes, np.int64)
    time[len(_STAMPED) * count :] = NO_TIME
    for stamp in _STAMPED:
        name, own = f"{stamp.name.lower()}_ns", time[stamp * count : (stamp + 1) * count]
        np.concatenate([part[name][rows] for part, rows, _ in pieces], out=own)
    ring = columns["ring"]
    starts_ring = np.ones(count, np.bool_)
    starts_ring[1:] = ring[1:] != ring[:-1]
    stamps = Stamps(
        columns=columns | {"is_sequenced": columns["wire_seq"] != NONE, "bytes": np.maximum(columns["bytes"], 0)},
        stages=stages,
        time=time,
        before=np.full(nodes, NONE, np.int32),
        also=np.full(nodes, NONE, np.int32),
        label=np.full(nodes, LABEL[Layer.UNATTRIBUTED], np.uint8),
        starts_ring=starts_ring,
        is_context=np.repeat([is_context for _, _, is_context in pieces], [_length(rows) for _, rows, _ in pieces]),
    )
    _chain(stamps)
    _servers(stamps, limits)
    if stages > len(_STAMPED):
        _fences(stamps)
    return stamps


def in_order(columns: Columns) -> Columns:
    """Operations of one ring side by side in order of seq."""
    key = columns["ring"].astype(np.int64) << 48 | columns["seq"]
    if not (key[1:] < key[:-1]).any():
        return columns
    order = np.argsort(key, kind="stable")
    return {name: values[order] for name, values in columns.items()}


def _pieces(parts: Sequence[Columns]) -> list[tuple[Columns, slice, bool]]:
    """Ring after ring the operations of the first part, then of the second: (part, its rows, is the first)."""
    found = []
    for number, part in enumerate(parts):
        ring = part["ring"]
        starts = np.flatnonzero(np.append(True, ring[1:] != ring[:-1])[: len(ring)])
        ends = np.append(starts, len(ring))[1:]
        found += [
            (int(ring[low]), number, slice(low, high)) for low, high in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
    found = found or [(0, 1, slice(0, 0))]
    return [(parts[number], rows, number == 0) for _, number, rows in sorted(found, key=lambda one: one[:2])]


def _length(rows: slice) -> int:
    return int(rows.stop - rows.start)


def _chain(stamps: Stamps) -> None:
    """What each stage of an operation followed on its own way."""
    posted = stamps.columns["is_posted"]
    has_posted = bool(posted.any())
    enter, fenced = stamps.ids(Stamp.ENTER), stamps.ids(Stamp.FENCED)
    before = np.where(posted & (fenced != NONE), fenced, enter) if has_posted else enter
    stamps.put(Stamp.PUBLISH, before=before, label=LABEL[Layer.KERNEL])
    last = stamps.ids(Stamp.PUBLISH)
    has_hole = last == NONE
    starts = np.flatnonzero(stamps.starts_ring)
    lengths = np.diff(np.append(starts, stamps.count))
    for stamp, layer in _HOST:
        own = stamps.ids(stamp)
        is_there = own != NONE
        stamps.put(stamp, before=last, label=_label(layer, has_hole))
        # A stage that no operation of the ring has is no part of its path.
        if stamp is Stamp.FENCED:
            # A kernel that posts by itself waits before it writes.
            stamps.put(stamp, before=np.where(posted, enter, last) if has_posted else last)
            is_there, of_path = is_there & ~posted, stamps.columns["is_fenced"] & ~posted
        elif is_there.all():
            has_hole, last = np.zeros(stamps.count, np.bool_), own
            continue
        else:
            of_path = np.repeat(np.logical_or.reduceat(is_there, starts), lengths) if len(starts) else is_there
        has_hole = (has_hole | of_path) & ~is_there
        last = np.where(is_there, own, last) if is_there.any() else last
    if has_posted:
        _doorbells(stamps, posted)
    for first, second, layer in (
        (Stamp.ARRIVAL, Stamp.SIGNAL, Layer.RX),
        (Stamp.DONE, Stamp.TOLD, Layer.PROXY),
    ):
        _sent(stamps, first, last, has_hole)
        own = stamps.ids(first)
        is_missing = own == NONE
        before = np.where(is_missing, last, own) if is_missing.any() else own
        stamps.put(second, before=before, label=_label(layer, is_missing))


def _doorbells(stamps: Stamps, posted: Mask) -> None:
    """A kernel's doorbell announces the entries written before it, so it followed the last of them."""
    rung, ring = stamps.at(Stamp.RETURN), stamps.columns["ring"]
    ends = np.ones(stamps.count, np.bool_)
    ends[:-1] = (rung[1:] != rung[:-1]) | (ring[1:] != ring[:-1])
    rows = np.flatnonzero(ends)
    last = stamps.ids(Stamp.PUBLISH)[rows[np.searchsorted(rows, np.arange(stamps.count))]]
    place = slice(Stamp.RETURN * stamps.count, (Stamp.RETURN + 1) * stamps.count)
    label = np.where(posted, LABEL[Layer.KERNEL], stamps.label[place])
    stamps.put(Stamp.RETURN, also=np.where(posted, last, NONE), label=label)


def _sent(stamps: Stamps, stamp: Stamp, last: Ids, has_hole: Mask) -> None:
    """Arrivals and completions follow the return, or the call where they came before it had returned.

    Where a kernel posts by itself there is no call: what came before the doorbell's stamp follows the written entry.
    """
    posted, returned = stamps.columns["is_posted"], stamps.at(Stamp.RETURN)
    call = stamps.ids(Stamp.CALL)
    if posted.any():
        call = np.where(posted, stamps.ids(Stamp.PUBLISH), call)
    is_early = (stamps.at(stamp) < returned) & (call != NONE)
    if not is_early.any():
        stamps.put(stamp, before=last, label=_label(Layer.NIC, has_hole))
        return
    early = np.where(posted, LABEL[Layer.KERNEL], LABEL[Layer.LIBFABRIC])
    label = np.where(is_early, early, _label(Layer.NIC, has_hole))
    stamps.put(stamp, before=np.where(is_early, call, last), label=label)


def _label(layer: Layer, has_hole: Mask) -> NDArray[np.uint8] | np.uint8:
    if not has_hole.any():
        return np.uint8(LABEL[layer])
    return np.where(has_hole, np.uint8(LABEL[Layer.UNATTRIBUTED]), np.uint8(LABEL[layer]))


def _servers(stamps: Stamps, limits: Limits) -> None:
    """What else a stage waited for: its first-in-first-out server, a place in the ring, a place in the window."""
    stamps.put(Stamp.SEEN, also=_earlier(stamps, Stamp.RETURN, 1))
    stamps.put(Stamp.TOLD, also=_earlier(stamps, Stamp.TOLD, 1))
    if limits.ring:
        stamps.put(Stamp.PUBLISH, also=_earlier(stamps, Stamp.SEEN, limits.ring))
    if limits.window and stamps.columns["is_posted"].any():
        ended = _earlier(stamps, Stamp.DONE, limits.window)
        place = slice(Stamp.PUBLISH * stamps.count, (Stamp.PUBLISH + 1) * stamps.count)
        stamps.put(Stamp.PUBLISH, also=np.where(stamps.columns["is_posted"], ended, stamps.also[place]))
    if limits.window:
        stamps.put(Stamp.CALL, also=_earlier(stamps, Stamp.TOLD, limits.window))
    signal = stamps.at(Stamp.SIGNAL)
    # Proxy i talks to proxy i of the peer, which hands over one after the other.
    receiver = (stamps.columns["ring"] & -RINGS_APART) << 8 | stamps.columns["peer"]
    also = np.full(stamps.count, NONE, np.int32)
    for one in _distinct(receiver):
        rows = np.flatnonzero((receiver == one) & (signal != NO_TIME))
        rows = rows[np.argsort(signal[rows], kind="stable")]
        also[rows[1:]] = rows[:-1] + Stamp.SIGNAL * stamps.count
    stamps.put(Stamp.SIGNAL, also=also)


def _earlier(stamps: Stamps, stamp: Stamp, back: int) -> Ids:
    """That stage of the operation so many places before in the same ring."""
    ids, ring = stamps.ids(stamp), stamps.columns["ring"]
    found = np.full(stamps.count, NONE, np.int32)
    if back < stamps.count:
        found[back:] = np.where(ring[back:] == ring[:-back], ids[:-back], NONE)
    return found


def _distinct(values: NDArray[np.int64]) -> list[int]:
    """Values that there are; for a column of few runs of few different ones."""
    return sorted(set(values[np.append(True, values[1:] != values[:-1])].tolist())) if len(values) else []


def _fences(stamps: Stamps) -> None:
    """A fenced operation waited for the completions of all earlier ones to its peer."""
    key = stamps.columns["ring"] << 16 | stamps.columns["peer"] & 0xFFFF
    done, cleared = stamps.at(Stamp.DONE), stamps.at(Stamp.CLEARED)
    earlier = np.full(stamps.count, NONE, np.int32)
    for one in _distinct(key):
        rows = np.flatnonzero(key == one)
        cleared[rows] = np.maximum.accumulate(done[rows])
        ids = (rows + Stamp.CLEARED * stamps.count).astype(np.int32)
        earlier[rows[1:]] = np.where(cleared[rows[:-1]] == NO_TIME, NONE, ids[:-1])
    stamps.put(Stamp.CLEARED, before=stamps.ids(Stamp.DONE), also=earlier, label=LABEL[Layer.NIC])
    stamps.put(Stamp.FENCED, also=earlier)
