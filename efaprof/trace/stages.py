"""Records beside an operation's own stages, kept until their step is whole: own computing, gates, arrivals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from efaprof.native_wide import ARRIVALS
from efaprof.trace.layout import WAIT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from efaprof.native_wide import Taken
    from efaprof.trace.clocks import ClockMap

    Column = NDArray[Any]

_COMPUTES = ("end_ns", "begin_ns", "head", "ring")


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
class OtherParts:
    """Arrivals, gates and computing of one process."""

    arrivals: Parts = field(default_factory=lambda: Parts(ARRIVALS))
    computes: Parts = field(default_factory=lambda: Parts(_COMPUTES))
    waits: list[NDArray[np.uint64]] = field(default_factory=list)  # a row of words each

    def take(self, slots: NDArray[np.uint64], clock: ClockMap, taken: Taken) -> None:
        """Add gates, computing and arrivals that were found among these slots."""
        if len(taken.waits):
            self.waits.append(np.concatenate([slots[taken.waits], slots[taken.waits + 1]], axis=1))
        if len(taken.computes):
            self.computes.pieces.append(_computes(slots[taken.computes], clock))
        self.give_back(taken.arrivals)

    def split_waits(self, step: int) -> NDArray[np.void]:
        """Gates of the steps before this number; the others stay."""
        words = np.concatenate(self.waits) if self.waits else np.empty((0, WAIT.itemsize // 8), np.uint64)
        is_later = words.view(WAIT).reshape(-1)["step"] >= step
        self.waits = [words[is_later]]
        return words[~is_later].view(WAIT).reshape(-1)

    def split_computes(self, ring: int, end_ns: int) -> dict[str, Column]:
        """Computing of one ring's lane that ended by this time; the rest stays."""
        whole = self.computes.joined()
        return self.computes.split((whole["ring"] != ring) | (whole["end_ns"] > end_ns))

    def take_arrivals(self) -> dict[str, Column]:
        """Every arrival that is pending."""
        found = self.arrivals.joined()
        self.arrivals.pieces = []
        return found

    def give_back(self, arrivals: dict[str, Column]) -> None:
        """Arrivals of later operations."""
        if len(arrivals["seq"]):
            self.arrivals.pieces.append(arrivals)


def _computes(words: NDArray[np.uint64], clock: ClockMap) -> dict[str, Column]:
    end, head = words[:, 0].view(np.int64), words[:, 1]
    dur = (head & np.uint64(0xFFFFFFFF)).view(np.int64)
    return {
        "end_ns": clock.to_ns(end),
        "begin_ns": clock.to_ns(end - dur),
        "head": np.ascontiguousarray(head),
        "ring": (words[:, 2] >> np.uint64(48)).view(np.int64),
    }
