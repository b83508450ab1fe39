"""Parts of several rings in turns, so that all of them are read up to about one time: bounded memory, no sorting."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from efaprof.trace.survey import Ring
    from efaprof.trace.walk import Part

NEVER = np.iinfo(np.int64).max
_BEFORE = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Turn:
    """The next part to be read."""

    ring: Ring
    part: Part
    reached_ns: int  # with it, everything up to here has been read


def turns(rings: Sequence[Ring]) -> Iterator[Turn]:
    """All parts of all rings, always one of the ring that has been read least far."""
    reach = [ring.clock.to_ns(np.array([part.last_ticks for part in ring.parts], np.int64)).tolist() for ring in rings]
    # How far a ring has been read, which one it is, and its next part.
    heads = [(_BEFORE, at, 0) for at, ring in enumerate(rings) if ring.parts]
    while heads:
        _, at, part = heads[0]
        if part + 1 < len(rings[at].parts):
            heapq.heapreplace(heads, (reach[at][part], at, part + 1))
        else:
            heapq.heappop(heads)
        yield Turn(rings[at], rings[at].parts[part], heads[0][0] if heads else NEVER)
