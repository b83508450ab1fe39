"""libfabric operations as slices: the call on a libfabric track, its way through the NIC in lanes, a flow between."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from efaprof.export.batch import Batch, CallKey, batch_of, flow_ids
from efaprof.export.board import NOT_DRAWN, LaneTrack
from efaprof.export.lanes import FOREVER
from efaprof.export.timeline import UNFINISHED, Argument, Slices
from efaprof.trace.layers import Layer, Match
from efaprof.trace.schema import OP_KINDS

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from efaprof.export.groups import Groups


class Outcome(IntEnum):
    """What a slice's name says beside the kind of the operation."""

    DONE = 0
    FAILED = 1
    ERROR = 2
    UNEXPLAINED = 3
    CANCELLED = 4


NAMES = tuple(
    kind if outcome is Outcome.DONE else f"{kind} {outcome.name.lower()}" for outcome in Outcome for kind in OP_KINDS
)


@dataclass(slots=True)
class OperationTracks:
    """Draws batches in order of post_ns; `finish` draws what was held back."""

    groups: Groups
    keys: list[CallKey]
    salt: int  # sets the flows of this run apart from those of others
    early_done: int = 0  # completions read before the post returned: drawn with no length
    _calls: dict[int, LaneTrack] = field(default_factory=dict)
    _flights: dict[int, LaneTrack] = field(default_factory=dict)
    _held: Batch | None = None

    def draw(self, frame: pl.DataFrame) -> None:
        """Draw a chunk of the ops table."""
        batch = batch_of(frame, self.keys)
        flies = ~batch.is_match(Match.EXPECTED_NONE, Match.FAILED_POST)
        self._draw_calls(batch, flies)
        self._fly(batch.take(flies), int(batch.post_ns[-1]))

    def finish(self) -> None:
        """Draw the flights that still wait for earlier doorbells."""
        self._fly(None, int(FOREVER))

    def _draw_calls(self, batch: Batch, flies: NDArray[np.bool_]) -> None:
        ends = np.maximum(batch.return_ns, batch.post_ns)
        track = np.zeros(len(batch), np.uint64)
        for code, rows in _by_value(batch.key):
            line = self._calls.get(code)
            if line is None:
                line = self._calls[code] = self.groups.call_line(self.keys[code])
            track[rows] = line.place(batch.post_ns[rows], ends[rows])
        outcome = np.where(batch.is_match(Match.FAILED_POST), np.uint32(Outcome.FAILED), np.uint32(Outcome.DONE))
        slices = Slices(
            track=track,
            start_ns=batch.post_ns,
            dur_ns=ends - batch.post_ns,
            name=_names(batch, outcome),
            names=NAMES,
            arguments=(
                Argument("op", batch.op),
                Argument("bytes", batch.bytes),
                Argument("peer", batch.peer, batch.no_peer),
                Argument("eagain", batch.eagain, batch.eagain == 0),
                Argument("errno", batch.call_errno, batch.call_errno == 0),
            ),
            flow=np.where(flies, flow_ids(batch.op, self.salt), np.uint64(0)),
        )
        self.groups.board.sink.slices(slices.where(track != NOT_DRAWN))

    def _fly(self, batch: Batch | None, until_ns: int) -> None:
        """Draw flights that start before `until_ns`; later ones wait, since one with an earlier doorbell may come."""
        waiting = [part for part in (self._held, batch) if part is not None]
        if not waiting:
            return
        merged = Batch.concat(waiting)
        merged = merged.take(np.argsort(merged.doorbell_ns, kind="stable"))
        cut = int(np.searchsorted(merged.doorbell_ns, until_ns, side="left"))
        self._held = merged.take(np.arange(cut, len(merged)))
        if cut:
            self._draw_flights(merged.take(np.arange(cut)))

    def _draw_flights(self, batch: Batch) -> None:
        self.early_done += int((batch.done_ns < batch.doorbell_ns).sum())
        ends = np.maximum(batch.done_ns, batch.doorbell_ns)
        track = np.zeros(len(batch), np.uint64)
        flights = np.array([key.flight for key in self.keys], np.int64)
        for code, rows in _by_value(2 * flights[batch.key] + batch.is_rx):
            line = self._flights.get(code)
            if line is None:
                layer = Layer.RX if code % 2 else Layer.NIC
                line = self._flights[code] = self.groups.flight_line(self.keys[code // 2], layer)
            track[rows] = line.place(batch.doorbell_ns[rows], ends[rows])
        slices = Slices(
            track=track,
            start_ns=batch.doorbell_ns,
            dur_ns=np.where(batch.is_match(Match.IN_FLIGHT), np.int64(UNFINISHED), ends - batch.doorbell_ns),
            name=_names(batch, _outcomes(batch)),
            names=NAMES,
            arguments=(
                Argument("op", batch.op),
                Argument("bytes", batch.bytes),
                Argument("errno", batch.completion_errno, batch.completion_errno == 0),
            ),
            last_flow=flow_ids(batch.op, self.salt),
        )
        self.groups.board.sink.slices(slices.where(track != NOT_DRAWN))


def _by_value(codes: NDArray[np.int64]) -> list[tuple[int, NDArray[np.intp]]]:
    """Rows of each value that occurs, ascending."""
    return [(code, np.flatnonzero(codes == code)) for code in np.unique(codes).tolist()]


def _outcomes(batch: Batch) -> NDArray[np.uint32]:
    outcome = np.full(len(batch), Outcome.DONE, np.uint32)
    outcome[batch.completion_errno != 0] = Outcome.ERROR
    outcome[batch.is_match(Match.UNEXPLAINED)] = Outcome.UNEXPLAINED
    outcome[batch.is_match(Match.CANCELLED)] = Outcome.CANCELLED
    return outcome


def _names(batch: Batch, outcome: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return batch.kind + np.uint32(len(OP_KINDS)) * outcome
