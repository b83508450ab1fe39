"""The sink that writes a Perfetto trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from efaprof.export.perfetto import tracks
from efaprof.export.perfetto.counters import encode_counter
from efaprof.export.perfetto.slices import encode_slices
from efaprof.export.timeline import UNFINISHED, Written

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    from numpy.typing import NDArray

    from efaprof.export.perfetto.tracks import ClockReading
    from efaprof.export.timeline import Fact, Slices, Track

    class ByteSink(Protocol):
        """Where bytes go."""

        def write(self, data: memoryview | bytes, /) -> object:
            """Take the bytes."""


class PerfettoWriter:
    """Writes packets as they come; holds nothing but the names seen.

    Without `clocks` the file has no clock snapshot and its times are taken as they are.
    """

    def __init__(self, out: ByteSink, *, clocks: ClockReading | None = None) -> None:
        self.written = Written()
        self._out = out
        self._event_names: dict[str, int] = {}
        self._argument_names: dict[str, int] = {}
        out.write(tracks.preamble(clocks))

    def track(self, track: Track) -> None:
        """Declare a track, before anything on it."""
        self._out.write(tracks.descriptor(track))
        self.written.tracks += 1

    def slices(self, chunk: Slices) -> None:
        """Add slices."""
        if not len(chunk):
            return
        used = np.flatnonzero(np.bincount(chunk.name, minlength=len(chunk.names)))
        iids = np.zeros(len(chunk.names), np.uint64)
        iids[used] = self._intern(tracks.EVENT_NAMES, self._event_names, [chunk.names[index] for index in used])
        argument_iids = self._intern(
            tracks.ANNOTATION_NAMES, self._argument_names, [argument.name for argument in chunk.arguments]
        )
        for block in encode_slices(chunk, iids, tuple(argument_iids)):
            self._out.write(block.data)
        self.written.slices += len(chunk)
        self.written.unfinished += int((chunk.dur_ns == UNFINISHED).sum())

    def counter(self, track: int, time_ns: NDArray[np.int64], values: NDArray[np.int64] | NDArray[np.float64]) -> None:
        """Add points of a counter; each holds until the next."""
        for block in encode_counter(track, time_ns, values):
            self._out.write(block.data)
        self.written.counter_points += time_ns.size

    def facts(self, track: int, time_ns: int, name: str, facts: Mapping[str, Fact]) -> None:
        """Put one mark with named facts on a track, and the same facts on the trace as a whole."""
        self._out.write(tracks.instant(track, time_ns, name, facts))
        self._out.write(tracks.attributes(facts))

    def _intern(self, kind: int, known: dict[str, int], names: list[str]) -> list[int]:
        fresh: dict[str, int] = {}
        for name in names:
            if name not in known:
                fresh[name] = known[name] = len(known) + 1
        if fresh:
            self._out.write(tracks.interned(kind, fresh))
        return [known[name] for name in names]
