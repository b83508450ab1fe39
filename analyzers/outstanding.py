"""What was in flight when an operation was posted: per-step sums from which window and queueing features follow.

Operations of one ring share one window and one completion queue. An operation's time in the NIC that grows with what
is in flight before it is a queue (a rate); one that does not is a latency.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.analyzers.batches import LEVEL, Batching
from efaprof.analyzers.counts import posted_by_kernel
from efaprof.analyzers.intervals import count_until, side_by_side
from efaprof.analyzers.rules import Feature
from efaprof.analyzers.stamps import in_order
from efaprof.analyzers.student import t_quantile
from efaprof.native_wide import NO_TIME

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from efaprof.analyzers.by_step import ByStep
    from efaprof.trace.widerow import Columns, DispatchChunk

    Times = NDArray[np.int64]
    Floats = NDArray[np.float64]

GROWS, FLAT = 0.5, 0.2  # d ln(nic time) / d ln(in flight): at least, under; between them neither is claimed
LEAST_SPREAD = 0.01  # variance of ln(in flight), under which nothing can be said of growth
ALONE = 1.5  # mean in flight, itself included: under it nothing waits for another
MOMENTS = ("nic_x", "nic_y", "nic_xx", "nic_xy")


def step_outstanding(chunk: DispatchChunk, window: int | None) -> pl.DataFrame:
    """Per (rank, step): operations posted, in flight and at the limit, and moments of ln nic time by ln in flight."""
    found = pl.DataFrame(_stretches(chunk, window))
    return found.group_by("rank", "step").agg(pl.all().sum())


def outstanding_at(chunk: DispatchChunk, window: int | None, rank: Times, step: Times) -> Columns:
    """The same for these rows, of which each (rank, step) has one; 0 where nothing was posted."""
    found = _stretches(chunk, window)
    key, asked = found["rank"] << 32 | found["step"], rank << 32 | step
    order = np.argsort(asked, kind="stable")
    place = order[np.minimum(np.searchsorted(asked[order], key), len(asked) - 1)]
    return {
        name: np.bincount(place, values, len(asked)) for name, values in found.items() if name not in ("rank", "step")
    }


def _stretches(chunk: DispatchChunk, window: int | None) -> Columns:
    """Sums over stretches of one ring's operations of one step."""
    columns = in_order(chunk.columns)
    seen, returned, done, told = (columns[f"{stamp}_ns"] for stamp in ("seen", "return", "done", "told"))
    if (is_posted := posted_by_kernel(columns)).any():
        seen, told = np.where(is_posted, columns["enter_ns"], seen), np.where(is_posted, done, told)
    known = np.flatnonzero((seen != NO_TIME) & (returned != NO_TIME) & (done != NO_TIME) & (told != NO_TIME))
    ring = columns["ring"][known]
    cuts = [0, *(np.flatnonzero(ring[1:] != ring[:-1]) + 1).tolist(), len(ring)]
    parts = []
    for low, high in itertools.pairwise(cuts):
        if low < high:
            rows = side_by_side(known[low:high])
            place = {name: columns[name][rows] for name in ("rank", "step")}
            parts.append(_of_ring(place, seen[rows], returned[rows], done[rows], told[rows], window))
    if not parts:
        return {name: np.empty(0, np.int64) for name in ("rank", "step")}
    return {name: np.concatenate([one[name] for one in parts]) for name in parts[0]}


def _of_ring(place: Columns, seen: Times, returned: Times, done: Times, told: Times, window: int | None) -> Columns:
    """Sums over one ring's operations, a row for each stretch of one step."""
    posted = count_until(_sorted(returned), returned)
    # In a provider that delivers before the post returns, an operation is still its own company.
    in_flight = np.maximum(posted - count_until(_sorted(done), returned), 1)
    logarithm = np.log(np.arange(1, int(in_flight.max()) + 1))
    x, y = logarithm[in_flight - 1], np.log(np.maximum(done - returned, 1).astype(np.float64))
    found: dict[str, Floats] = {
        "posted": np.ones(len(seen)),
        "in_flight": in_flight.astype(np.float64),
        "nic_x": x,
        "nic_y": y,
        "nic_xx": x * x,
        "nic_xy": x * y,
    }
    if window:
        is_limited = np.zeros(len(seen))
        is_limited[window:] = told[:-window] > seen[window:]
        found |= {"in_window": in_flight / window, "at_limit": is_limited}
    step = place["step"]
    starts = np.flatnonzero(np.append(True, step[1:] != step[:-1]))
    return {name: values[starts].astype(np.int64) for name, values in place.items()} | {
        name: np.add.reduceat(values, starts) for name, values in found.items()
    }


def _sorted(times: Times) -> Times:
    return np.sort(times) if (times[1:] < times[:-1]).any() else times


def outstanding_features(by_step: ByStep | pl.DataFrame, batching: Batching) -> dict[str, Feature]:
    """Features of decode steps with those sums, in order of time; empty without them."""
    if "posted" not in by_step.columns or not _column(by_step, "posted").sum() > 0:
        return {}
    sums = {name: _batches(_column(by_step, name), batching) for name in ("posted", "in_flight", *MOMENTS)}
    found = {}
    grows = _grows(sums)
    if grows is not None:
        note = "1: time in the NIC grows with what is in flight, 0: it does not"
        found["nic_grows_with_outstanding"] = Feature("nic_grows_with_outstanding", grows, grows, grows, note=note)
    for name, column in (("outstanding_over_limit", "in_window"), ("at_window_limit", "at_limit")):
        if column in by_step.columns:
            counted = _column(by_step, column)
            ratios = _batches(counted, batching) / np.maximum(sums["posted"], 1)
            value = float(counted.sum() / _column(by_step, "posted").sum())
            half = _half(ratios)
            lo, hi = (0.0, 1.0) if half is None else (value - half, value + half)
            found[name] = Feature(name, value, lo, hi, note="of operations posted")
    return found


def _grows(sums: dict[str, Floats]) -> float | None:
    """1, 0, or None where the interval of the slope claims neither."""
    count = np.maximum(sums["posted"], 1)
    spread = sums["nic_xx"] / count - (sums["nic_x"] / count) ** 2
    if float(spread.mean()) < LEAST_SPREAD:
        return 0.0 if float((sums["in_flight"] / count).mean()) < ALONE else None
    shared = sums["nic_xy"] / count - sums["nic_x"] * sums["nic_y"] / count**2
    slope = float(shared.mean() / spread.mean())
    half = _half(shared / np.maximum(spread, LEAST_SPREAD / 10))
    if half is None:
        return None
    if slope - half >= GROWS:
        return 1.0
    return 0.0 if slope + half < FLAT else None


def _column(by_step: ByStep | pl.DataFrame, name: str) -> Floats:
    """A step in which nothing was posted has no row of its own."""
    values: Floats = by_step[name].fill_null(0).to_numpy()
    return values


def _batches(values: Floats, batching: Batching) -> Floats:
    whole = len(values) // batching.batch_steps
    summed: Floats = values[: whole * batching.batch_steps].reshape(whole, -1).sum(axis=1)
    return summed


def _half(values: Floats) -> float | None:
    if len(values) < 2:
        return None
    return t_quantile((1 + LEVEL) / 2, len(values) - 1) * float(values.std(ddof=1) / np.sqrt(len(values)))
