"""What records say while they are being written: counts and sums over the raw files, as far as the drain has come.

Nothing is joined and no clock is converted: a recorder has no polars. Durations of stages are in ticks of one clock,
which is enough for their shares.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from efaprof import native
from efaprof.session.tally import PARENT, read_header
from efaprof.trace import layout
from efaprof.trace.layout import HEADER_BYTES, SLOT_BYTES, OpClass, Phase, Shape, Span, Stage
from efaprof.trace.rundir import RAW_DIR, RAW_SUFFIX

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_MOST_SLOTS = 1 << 17  # of one file (4 MiB) that are looked at in one turn; what lies beyond is estimated from them
# The stages of an operation, by the layer that they stand for.
LAYER_OF = {
    Stage.KERNEL: "kernel",
    Stage.RING: "ring",
    Stage.FENCE: "fence",
    Stage.PROXY: "proxy",
    Stage.TOLD: "proxy",
    Stage.LIBFABRIC: "libfabric",
    Stage.NIC: "nic",
}
LAYERS = tuple(dict.fromkeys(LAYER_OF.values()))
_RECEIVES = np.array(
    [
        (what & 31) < len(names := layout.OP_FUNCTIONS.get(OpClass(what >> 5), ()))
        and names[what & 31].startswith(("recv", "cancel"))
        if what >> 5 < len(OpClass)
        else False
        for what in range(256)
    ]
)


@dataclass(slots=True)
class Seen:
    """Sums over everything that was followed."""

    issued: float = 0.0  # operations of a dispatch path of ours: begun by a kernel or its stand-in
    calls: float = 0.0  # libfabric calls of the program that send, read or write
    steps: float = 0.0  # that began, of all processes together
    ticks: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LAYERS, 0.0))  # by layer, operations overlap

    @property
    def operations(self) -> float:
        """Those of the dispatch path where there is one, else libfabric calls."""
        return self.issued or self.calls

    def add(self, slots: NDArray[np.uint8], scale: float) -> int:
        """Count the records in whole slots, each `scale` times; the slot where they end."""
        index = native.index_records(slots)
        starts = index.starts.astype(np.int64) * SLOT_BYTES
        kinds = _field(slots, starts, layout.HEAD, "kind", np.uint16)
        shape, what = kinds >> 8, kinds & 0xFF
        is_stage = shape == Shape.STAGE
        durations = _field(slots, starts[is_stage], layout.HEAD, "dur", np.uint32)
        of = what[is_stage]
        for stage, layer in LAYER_OF.items():
            self.ticks[layer] += scale * float(durations[of == stage].sum(dtype=np.float64))
        posts = shape == Shape.POST  # a kernel's own post: all of it is the kernel's
        self.ticks["kernel"] += scale * float(
            _field(slots, starts[posts], layout.HEAD, "dur", np.uint32).sum(dtype=np.float64)
        )
        self.issued += scale * (int((of == Stage.KERNEL).sum()) + int(posts.sum()))
        calls = starts[(shape == Shape.OP) & ~_RECEIVES[what]]
        self.calls += scale * int((_field(slots, calls, layout.OP, "nest", np.uint8) == 0).sum())
        marks = starts[shape == Shape.MARK]
        begins = _field(slots, marks, layout.MARK, "phase", np.uint16) == Phase.STEP
        is_first = _field(slots, marks, layout.MARK, "ring", np.uint16) < layout.RINGS_APART  # of a rank's rings
        self.steps += scale * int((begins & is_first).sum())
        ranges = starts[(shape == Shape.RANGE) & (what == Span.STEP)]
        spans = int(((shape == Shape.SPAN) & (what == Span.STEP)).sum())
        self.steps += scale * (len(ranges) + spans)
        return index.next


def _field(
    slots: NDArray[np.uint8],
    starts: NDArray[np.int64],
    record: np.dtype[np.void],
    name: str,
    kind: type[np.unsignedinteger],
) -> NDArray[np.int64]:
    """One field of the records at these bytes."""
    assert record.fields is not None
    offset = record.fields[name][1]
    width = np.dtype(kind).itemsize
    raw = slots[starts[:, None] + offset + np.arange(width)] if starts.size else np.empty((0, width), np.uint8)
    return np.ascontiguousarray(raw).view(kind)[:, 0].astype(np.int64)


@dataclass(slots=True)
class Follower:
    """Reads on where it stopped in every raw file of a run."""

    run: Path
    seen: Seen = field(default_factory=Seen)
    _next: dict[str, int] = field(default_factory=dict)  # by file: the slot that comes next; a record begins there
    _left_out: set[str] = field(default_factory=set)

    def turn(self) -> None:
        """Take in what was written since the last turn; of a file that grew much, its first part for all of it."""
        for path in (self.run / RAW_DIR).glob(f"*{RAW_SUFFIX}"):
            if path.name in self._left_out:
                continue
            if path.name not in self._next:
                header = read_header(path)
                if header is None:
                    continue
                if bytes(header["producer"]) == PARENT.encode():
                    self._left_out.add(path.name)
                    continue
                self._next[path.name] = int(header["first"])
            self._follow(path)

    def _follow(self, path: Path) -> None:
        first = self._next[path.name]
        try:
            # Where the file ends, a record ends: the drain copies what was published, which is whole records.
            end = (path.stat().st_size - HEADER_BYTES) // SLOT_BYTES
            count = min(end - first, _MOST_SLOTS)
            if count <= 0:
                return
            slots = np.fromfile(path, np.uint8, count * SLOT_BYTES, offset=HEADER_BYTES + first * SLOT_BYTES)
        except OSError:
            return
        slots = slots[: slots.size // SLOT_BYTES * SLOT_BYTES]
        is_all = count == end - first
        read = self.seen.add(slots, 1.0 if is_all else (end - first) / count)
        self._next[path.name] = first + read if is_all and read else end
