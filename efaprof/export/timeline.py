"""What a timeline is made of, whatever file it goes to: tracks, slices on them, counter points."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

Fact: TypeAlias = str | int | float  # what a run says about itself; bool is an int

UNFINISHED = -1  # duration of a slice that has not ended


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """A process as a timeline knows it; `pid` is unique in the file."""

    pid: int
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ThreadFacts:
    """A thread as a timeline knows it; both numbers are unique in the file."""

    pid: int
    tid: int


@dataclass(frozen=True, slots=True)
class Track:
    """A line of the timeline. Tracks of one name under one parent are drawn as one, lane under lane."""

    uuid: int  # unique in the file, from 1
    name: str
    parent: int = 0  # uuid of the track above, 0 for none
    order: int | None = None  # place among its siblings where the parent orders them
    orders_children: bool = False
    description: str = ""
    process: ProcessFacts | None = None
    thread: ThreadFacts | None = None
    unit: str | None = None  # of a counter; None for a track of slices


@dataclass(frozen=True, slots=True)
class Argument:
    """A named integer per slice, in [-2**63, 2**64); rows of `absent` have none."""

    name: str
    values: NDArray[np.int64] | NDArray[np.uint64]
    absent: NDArray[np.bool_] | None = None

    def where(self, rows: NDArray[np.bool_]) -> Argument:
        """These rows only."""
        return Argument(self.name, self.values[rows], None if self.absent is None else self.absent[rows])


@dataclass(frozen=True, slots=True)
class Slices:
    """A chunk of slices.

    Those of one track are in the order (start, longest first) and nest or follow each other, within the chunk and from
    chunk to chunk; `lanes.py` makes them so.
    """

    track: NDArray[np.uint64]
    start_ns: NDArray[np.int64]
    dur_ns: NDArray[np.int64]  # UNFINISHED where there is no end
    name: NDArray[np.uint32]  # index into `names`
    names: tuple[str, ...]
    arguments: tuple[Argument, ...] = ()
    flow: NDArray[np.uint64] | None = None  # slices of one flow are joined by arrows; 0 = none
    last_flow: NDArray[np.uint64] | None = None  # flows that end with this slice; 0 = none

    def __len__(self) -> int:
        return int(self.start_ns.size)

    def where(self, rows: NDArray[np.bool_]) -> Slices:
        """These rows only."""
        if rows.all():
            return self
        return replace(
            self,
            track=self.track[rows],
            start_ns=self.start_ns[rows],
            dur_ns=self.dur_ns[rows],
            name=self.name[rows],
            arguments=tuple(argument.where(rows) for argument in self.arguments),
            flow=None if self.flow is None else self.flow[rows],
            last_flow=None if self.last_flow is None else self.last_flow[rows],
        )


@dataclass(slots=True)
class Written:
    """What went into a file so far."""

    slices: int = 0
    unfinished: int = 0
    counter_points: int = 0
    tracks: int = 0


class Sink(Protocol):
    """A timeline file that is being written."""

    written: Written

    def track(self, track: Track) -> None:
        """Declare a track, before anything on it."""

    def slices(self, chunk: Slices) -> None:
        """Add slices."""

    def counter(self, track: int, time_ns: NDArray[np.int64], values: NDArray[np.int64] | NDArray[np.float64]) -> None:
        """Add points of a counter; each holds until the next."""

    def facts(self, track: int, time_ns: int, name: str, facts: Mapping[str, Fact]) -> None:
        """Put one mark with named facts of any kind on a track."""
