"""Tracks as they are needed: numbers for them, and lanes that open when spans overlap."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from efaprof.export.lanes import NO_LANE, Lanes, nesting_order, place_nested
from efaprof.export.timeline import ProcessFacts, Sink, ThreadFacts, Track

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOT_DRAWN = np.uint64(0)  # "track" of a span that found no free lane


@dataclass(slots=True)
class Board:
    """Declares tracks to a sink and counts what found no place on them."""

    sink: Sink
    not_drawn: dict[str, int] = field(default_factory=dict)  # spans without a lane, by track
    _used: int = 0

    def track(
        self,
        name: str,
        *,
        parent: int = 0,
        order: int | None = None,
        orders_children: bool = False,
        description: str = "",
        process: ProcessFacts | None = None,
        thread: ThreadFacts | None = None,
        unit: str | None = None,
    ) -> int:
        """Number of a new track."""
        self._used += 1
        self.sink.track(Track(self._used, name, parent, order, orders_children, description, process, thread, unit))
        return self._used

    def lose(self, where: str, spans: int) -> None:
        """Count spans that are not drawn."""
        if spans:
            self.not_drawn[where] = self.not_drawn.get(where, 0) + spans


@dataclass(slots=True)
class LaneTrack:
    """One line of the picture whose spans may overlap: as many tracks of one name as there are spans at once."""

    board: Board
    name: str
    parent: int
    order: int
    where: str  # names the line in messages
    description: str = ""
    _lanes: Lanes = field(default_factory=Lanes)
    _tracks: list[int] = field(default_factory=list)

    def place(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Track of each span, NOT_DRAWN where there is none; `starts` ascend, also from call to call."""
        lanes = self._lanes.place(starts, ends)
        while len(self._tracks) <= int(lanes.max(initial=NO_LANE)):
            self._tracks.append(
                self.board.track(self.name, parent=self.parent, order=self.order, description=self.description)
            )
        self.board.lose(self.where, int((lanes == NO_LANE).sum()))
        return _numbers(self._tracks, lanes)


def place_on_thread(
    board: Board, thread: int, where: str, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.intp], NDArray[np.uint64]]:
    """Order in which a thread's spans are written, and each one's track: the thread where they nest, else one below."""
    order = nesting_order(starts, ends)
    lanes = place_nested(starts[order], ends[order])
    tracks = [thread]
    while len(tracks) <= int(lanes.max(initial=0)):
        tracks.append(board.track("overlapping spans", parent=thread))
    board.lose(where, int((lanes == NO_LANE).sum()))
    return order, _numbers(tracks, lanes)


def _numbers(tracks: list[int], lanes: NDArray[np.int16]) -> NDArray[np.uint64]:
    numbers = np.array([*tracks, NOT_DRAWN], np.uint64)
    return numbers[lanes]  # NO_LANE, -1, is the last entry
