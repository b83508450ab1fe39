"""Stage records and the like as columns, kept until their step is whole: one gather per field, no structured copies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from efaprof.trace.decode import records
from efaprof.trace.layout import WAIT, Shape, Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from efaprof.trace.merge import Slice

    Column = NDArray[Any]

SEQ_MASK = np.uint64((1 << 48) - 1)
_RX_KIND = np.uint16(Shape.RX << 8 | 1)
# Fields kept of each stage. `head` is dur:32 | kind:16 | x:16, `tail` bytes:32 | peer:16 | status:8 | depth:8.
_PLAIN = ("seq", "end_ns")
_KEPT: dict[Stage, tuple[str, ...]] = {
    Stage.KERNEL: (*_PLAIN, "begin_ns", "head", "tail"),
    Stage.RING: (*_PLAIN, "head", "tail"),  # says what the operation is when its KERNEL record was lost
    Stage.FENCE: _PLAIN,
    Stage.PROXY: _PLAIN,
    Stage.LIBFABRIC: (*_PLAIN, "tail"),
    Stage.NIC: (*_PLAIN, "tail"),
    Stage.TOLD: _PLAIN,
    Stage.COMPUTE: ("end_ns", "begin_ns", "head"),
}


def u48(raw: NDArray[np.uint8]) -> NDArray[np.int64]:
    """48-bit little-endian numbers (n x 6 bytes) as int64."""
    wide = np.zeros((len(raw), 8), np.uint8)
    wide[:, :6] = raw
    return wide.view("<i8").reshape(-1)


@dataclass(slots=True)
class Parts:
    """Columns in pieces, joined when asked for."""

    names: tuple[str, ...]
    pieces: list[dict[str, Column]] = field(default_factory=list)

    def joined(self) -> dict[str, Column]:
        """Everything; the pieces become one."""
        if not self.pieces:
            return {name: np.empty(0, np.int64) for name in self.names}
        if len(self.pieces) > 1:
            self.pieces = [{name: np.concatenate([one[name] for one in self.pieces]) for name in self.names}]
        return self.pieces[0]

    def split(self, is_later: Column) -> dict[str, Column]:
        """Rows of `joined()` that are not later; the later ones stay."""
        whole = self.joined()
        if not is_later.any():
            self.pieces = []
            return whole
        self.pieces = [{name: values[is_later] for name, values in whole.items()}]
        return {name: values[~is_later] for name, values in whole.items()}


@dataclass(slots=True)
class StageParts:
    """Stages of one command ring."""

    parts: dict[Stage, Parts] = field(default_factory=lambda: {stage: Parts(kept) for stage, kept in _KEPT.items()})

    def completed_before(self, seq: int) -> int:
        """How many NIC stages of operations before this sequence are pending."""
        return sum(
            len(piece["seq"]) if int(piece["seq"].max()) < seq else int((piece["seq"] < seq).sum())
            for piece in self.parts[Stage.NIC].pieces
        )

    def split(self, seq: int, end_ns: int) -> dict[Stage, dict[str, Column]]:
        """Stages of operations before `seq`, computing that ended by `end_ns`; the others stay."""
        found = {}
        for stage, parts in self.parts.items():
            whole = parts.joined()
            found[stage] = parts.split(whole["end_ns"] > end_ns if stage is Stage.COMPUTE else whole["seq"] >= seq)
        return found


def take_stages(piece: Slice, rings: Mapping[int, StageParts]) -> None:
    """Add a slice's stages to the rings that they belong to; those of rings without marks are left out."""
    kinds = piece.loaded.chunk.kinds[piece.low : piece.high]
    for stage in _KEPT:
        rows = np.flatnonzero(kinds == np.uint16(Shape.STAGE << 8 | stage)) + piece.low
        if len(rows):
            _take(piece, rows, stage, rings)


def _take(piece: Slice, rows: NDArray[np.int64], stage: Stage, rings: Mapping[int, StageParts]) -> None:
    chunk = piece.loaded.chunk
    words = chunk.slots.reshape(-1)
    at = chunk.starts[rows] * 4
    op = words[at + 2]
    kept = _KEPT[stage]
    columns: dict[str, Column] = {"end_ns": piece.loaded.time_ns[rows]}
    if "seq" in kept:
        columns["seq"] = (op & SEQ_MASK).view(np.int64)
    if "head" in kept:
        columns["head"] = words[at + 1]
    if "tail" in kept:
        columns["tail"] = words[at + 3]
    if "begin_ns" in kept:
        dur = (words[at + 1] & np.uint64(0xFFFFFFFF)).view(np.int64)
        columns["begin_ns"] = piece.loaded.ring.clock.to_ns(chunk.t_end[rows] - dur)
    ring = (op >> np.uint64(48)).view(np.int64)
    low, high = int(ring.min()), int(ring.max())
    if low == high:
        if low in rings:
            rings[low].parts[stage].pieces.append(columns)
        return
    for one in np.unique(ring):
        if int(one) in rings:
            mine = ring == one
            rings[int(one)].parts[stage].pieces.append({name: values[mine] for name, values in columns.items()})


@dataclass(slots=True)
class OtherParts:
    """Arrivals and gates of one process."""

    arrivals: Parts = field(default_factory=lambda: Parts(("source", "channel", "seq", "seen_ns", "end_ns", "x")))
    waits: list[NDArray[np.void]] = field(default_factory=list)

    def take(self, piece: Slice) -> None:
        """Add a slice's arrivals and gates."""
        chunk = piece.loaded.chunk
        kinds = chunk.kinds[piece.low : piece.high]
        is_wait = np.zeros(len(chunk.kinds), np.bool_)
        is_wait[piece.low : piece.high] = (kinds >> 8) == Shape.WAIT
        if is_wait.any():
            self.waits.append(records(chunk, is_wait, WAIT))
        rows = np.flatnonzero(kinds == _RX_KIND) + piece.low
        if not len(rows):
            return
        words = chunk.slots.reshape(-1)
        at = chunk.starts[rows] * 4
        head, flow, rest = words[at + 1], words[at + 2], words[at + 3]
        dur = (head & np.uint64(0xFFFFFFFF)).view(np.int64)
        self.arrivals.pieces.append(
            {
                "source": (flow & np.uint64(0xFFFF)).view(np.int64),
                "channel": (flow >> np.uint64(16) & np.uint64(0xFFFF)).view(np.int64),
                "seq": (flow >> np.uint64(32) | (rest & np.uint64(0xFFFF)) << np.uint64(32)).view(np.int64),
                "seen_ns": piece.loaded.ring.clock.to_ns(chunk.t_end[rows] - dur),
                "end_ns": piece.loaded.time_ns[rows],
                "x": (head >> np.uint64(48)).view(np.int64),
            }
        )

    def split_waits(self, step: int) -> NDArray[np.void]:
        """Gates of the steps before this number; the others stay."""
        whole = np.concatenate(self.waits) if self.waits else np.empty(0, WAIT)
        is_later = whole["step"].astype(np.int64) >= step
        self.waits = [whole[is_later]]
        return whole[~is_later]

    def take_arrivals(self) -> dict[str, Column]:
        """Every arrival that is pending."""
        found = self.arrivals.joined()
        self.arrivals.pieces = []
        return found

    def give_back(self, arrivals: dict[str, Column]) -> None:
        """Arrivals of later operations."""
        if len(arrivals["seq"]):
            self.arrivals.pieces.append(arrivals)
