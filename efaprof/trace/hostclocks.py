"""Clocks of several hosts put side by side, from the messages that their ranks sent each other; how wrong that can be.

A message never arrives before it left. So what the receiver's clock shows more at arrival than the sender's showed at
the call is at least the difference of the two clocks, and with messages both ways the difference lies between two
convex hulls. The line in the middle of what is left between them is taken; how far any other line that fits could be
from it, at its worst, is the error: about half a round trip, plus what drift leaves open.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from efaprof.native_wide import NO_TIME
from efaprof.trace import dispatch
from efaprof.trace.clocks import Shift
from efaprof.trace.marks import read_marks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from efaprof.trace.survey import Survey

    Boot = tuple[int, int]
    Times = NDArray[np.int64]
    Floats = NDArray[np.float64]

BINS = 256  # of a chunk's time; in each the tightest message is kept
_NS = 1e9


@dataclass(frozen=True, slots=True)
class Line:
    """What a clock shows more than another: `offset_ns` when that one shows `at_ns`, and `drift` for every ns more."""

    at_ns: int
    offset_ns: float
    drift: float
    error_ns: float  # at most, anywhere between the first and the last message


@dataclass(frozen=True, slots=True)
class Alignment:
    """A survey in which all hosts show the first one's time."""

    survey: Survey
    hosts: int
    error_ns: float  # of the time between an event on one host and one on another
    drift: float  # the largest, ns per ns


@dataclass(slots=True)
class Bounds:
    """Points that the difference of two clocks lies below, or above: when, and how much, ns."""

    below: list[tuple[Times, Times]] = field(default_factory=list)
    above: list[tuple[Times, Times]] = field(default_factory=list)

    def line(self) -> Line | None:
        """The line in the middle; None without messages both ways, or when no line fits."""
        if not self.below or not self.above:
            return None
        (x_below, below), (x_above, above) = _joined(self.below), _joined(self.above)
        at, offset = int(min(x_below.min(), x_above.min())), int(below[0])
        return _middle((x_below - at) / _NS, below - offset, (x_above - at) / _NS, above - offset, at, offset)


def _joined(parts: list[tuple[Times, Times]]) -> tuple[Times, Times]:
    return np.concatenate([one for one, _ in parts]), np.concatenate([two for _, two in parts])


def _middle(x_below: Floats, below: Times, x_above: Floats, above: Times, at: int, offset: int) -> Line | None:
    """Of all lines between the points, the one that is farthest from them; x in s, the others in ns."""
    from scipy.optimize import linprog  # half a second of start-up, for several hosts alone

    ones = np.ones
    rows = np.concatenate(
        [np.stack([ones(len(x_below)), x_below], axis=1), -np.stack([ones(len(x_above)), x_above], axis=1)]
    )
    limits = np.concatenate([below, -above]).astype(np.float64)
    free = (None, None)
    found = linprog([0, 0, -1], np.column_stack([rows, ones(len(rows))]), limits, bounds=[free, free, (0, None)])
    if not found.success:
        return None
    offset_ns, slope, _ = (float(one) for one in found.x)
    error = 0.0
    for end in (0.0, float(max(x_below.max(), x_above.max()))):
        here = offset_ns + slope * end
        for sign in (1, -1):
            extreme = linprog([sign, sign * end], rows, limits, bounds=[free, free])
            if not extreme.success:
                return None
            error = max(error, abs(sign * float(extreme.fun) - here))
    return Line(at, offset + offset_ns, slope / _NS, error)


def align(surveyed: Survey) -> Alignment | str:
    """All hosts on the clock of the first rank's; or why that cannot be done."""
    boot_of = _boots(surveyed)
    if not boot_of:
        return "their clocks are not aligned, as no message between them is known"
    boots = list(dict.fromkeys(boot_of[rank] for rank in sorted(boot_of)))
    offsets = surveyed.realtime_of
    if any(boot not in offsets for boot in boots):
        return "a host's clock was never compared with the time of day"
    rough = {boot: Shift(0, offsets[boot] - offsets[boots[0]], 1.0) for boot in boots[1:]}
    moved = _moved(surveyed, rough)
    lines = _lines(moved, boot_of)
    reached = reach(boots[0], lines)
    for boot in boots[1:]:
        if boot not in reached:
            return "no line fits between their clocks: messages went one way only, or a clock was set"
    for boot in boots[1:]:
        for step in reached[boot].shifts:
            moved = _moved(moved, {boot: step})
    errors = sorted((one.error_ns for one in reached.values()), reverse=True)
    return Alignment(moved, len(boots), sum(errors[:2]), max(abs(one.drift) for one in lines.values()))


def _boots(surveyed: Survey) -> dict[int, Boot]:
    """The boot of each rank's process."""
    return {marks.rank: surveyed.processes[marks.process].identity.boot for marks in read_marks(surveyed)}


def _lines(surveyed: Survey, boot_of: Mapping[int, Boot]) -> dict[tuple[Boot, Boot], Line]:
    """Lines between pairs of hosts that sent each other messages, in one direction each."""
    number = {boot: at for at, boot in enumerate(dict.fromkeys(boot_of.values()))}
    host = np.full(max(boot_of) + 2, -1)
    for rank, boot in boot_of.items():
        host[rank] = number[boot]
    bounds: dict[tuple[int, int], Bounds] = {}
    for chunk in dispatch.chunks(surveyed):
        columns = chunk.columns
        left = np.where(columns["call_ns"] == NO_TIME, columns["publish_ns"], columns["call_ns"])
        peer = np.minimum(np.maximum(columns["peer"], -1), len(host) - 1)  # −1 takes the last cell, which is nobody's
        source, target = host[columns["rank"]], host[peer]
        rows = np.flatnonzero(
            (source != target) & (target >= 0) & (left != NO_TIME) & (columns["arrival_ns"] != NO_TIME)
        )
        _add(bounds, source[rows], target[rows], left[rows], columns["arrival_ns"][rows])
    boots = list(number)
    found = {pair: line for pair, one in bounds.items() if (line := one.line()) is not None}
    return {(boots[first], boots[second]): line for (first, second), line in found.items()}


def _add(bounds: dict[tuple[int, int], Bounds], source: Times, target: Times, left: Times, arrived: Times) -> None:
    """The tightest messages of each pair of hosts and each bin of time."""
    pair = source * (1 + int(max(source.max(initial=0), target.max(initial=0)))) + target
    for one in np.unique(pair):
        rows = np.flatnonzero(pair == one)
        begin, length = left[rows].min(), max(int(np.ptp(left[rows])), 1)
        flight = arrived[rows] - left[rows]
        place = ((left[rows] - begin) * (BINS - 1) // length).astype(np.int64)
        order = np.lexsort((flight, place))
        tightest = rows[order[np.append(True, place[order][1:] != place[order][:-1])]]
        first, second = int(source[rows[0]]), int(target[rows[0]])
        if first < second:
            own = bounds.setdefault((first, second), Bounds())
            own.below.append((left[tightest], arrived[tightest] - left[tightest]))
        else:
            own = bounds.setdefault((second, first), Bounds())
            own.above.append((arrived[tightest], left[tightest] - arrived[tightest]))


@dataclass(frozen=True, slots=True)
class Reached:
    """How a host's time becomes the reference's: shifts one after the other."""

    shifts: tuple[Shift, ...]
    error_ns: float


def reach(reference: Boot, lines: Mapping[tuple[Boot, Boot], Line]) -> dict[Boot, Reached]:
    """Every host that lines lead to from the reference, over those with the least error."""
    reached = {reference: Reached((), 0.0)}
    while True:
        best: tuple[float, Boot, Reached] | None = None
        for (first, second), line in lines.items():
            for known, new in ((first, second), (second, first)):
                if known not in reached or new in reached:
                    continue
                error = reached[known].error_ns + line.error_ns
                if best is None or error < best[0]:
                    shift = _onto(line) if known == first else _back(line)
                    best = error, new, Reached((shift, *reached[known].shifts), error)
        if best is None:
            return reached
        reached[best[1]] = best[2]


def _onto(line: Line) -> Shift:
    """From the second clock of a line to the first."""
    return Shift(line.at_ns + round(line.offset_ns), line.at_ns, 1 / (1 + line.drift))


def _back(line: Line) -> Shift:
    """From the first clock of a line to the second."""
    return Shift(line.at_ns, line.at_ns + round(line.offset_ns), 1 + line.drift)


def _moved(surveyed: Survey, shifts: Mapping[Boot, Shift]) -> Survey:
    """The survey with the clocks of these hosts shifted."""
    shift_of = [shifts.get(one.identity.boot) for one in surveyed.processes]
    clocks = {
        id(ring.clock): shift.moved(ring.clock) for ring in surveyed.rings
        if (shift := shift_of[ring.process]) is not None
    }  # fmt: skip
    rings = tuple(
        ring if shift_of[ring.process] is None else replace(ring, clock=clocks[id(ring.clock)])
        for ring in surveyed.rings
    )
    marks = tuple(
        one if (shift := shift_of[one.process]) is None
        else replace(one, step_ns=shift.to_ns_of(one.step_ns), clock=clocks[id(one.clock)])
        for one in surveyed.marks
    )  # fmt: skip
    return replace(surveyed, rings=rings, marks=marks)
