"""Sampled counters as lines: monotone ones as rates, the others as they are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from efaprof.analyzers.growth import growth

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WORDS = re.compile(r"port_(xmit|rcv)_data$")  # InfiniBand counts words of four bytes here
_UNITS = (
    (re.compile(r"bytes_s$"), "B/s"),
    (re.compile(r"bytes$"), "B"),
    (re.compile(r"(packets|pkts)$"), "packets"),
    (re.compile(r"_wrs$"), "operations"),
    (re.compile(r"_ns(\.\d+)?$"), "ns"),
    (re.compile(r"_us(\.\d+)?$"), "µs"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """Points of one counter, each held until the next, and how often the count went back."""

    unit: str
    time_ns: NDArray[np.int64]
    values: NDArray[np.int64] | NDArray[np.float64]
    resets: int = 0


def counter_line(name: str, time_ns: NDArray[np.int64], values: NDArray[np.int64], *, is_monotone: bool) -> Line:
    """Line of a counter's samples in order of time.

    A rate stands at the start of the interval that it was measured over. It is 0 where none is known: after the last
    sample, and where a count began anew (a reset); one that wrapped at 32 bits goes on.
    """
    scale = 4 if _WORDS.search(name) else 1
    unit = "B" if scale == 4 else next((unit for pattern, unit in _UNITS if pattern.search(name)), "")
    if not is_monotone:
        return Line(unit, time_ns, values)
    distinct = np.concatenate((time_ns[1:] > time_ns[:-1], [True])) if time_ns.size else np.empty(0, np.bool_)
    times, counts = time_ns[distinct], values[distinct]
    if times.size < 2:
        return Line(f"{unit}/s", np.empty(0, np.int64), np.empty(0, np.float64))
    grown = growth(counts)
    rates = np.append(np.where(grown.is_reset, 0, grown.steps) * (scale * 1e9) / np.diff(times), 0.0)
    return Line(f"{unit}/s", times, rates, int(grown.is_reset.sum()))
