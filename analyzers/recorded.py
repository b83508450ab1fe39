"""What one or several recorded runs say about their libfabric operations, taken together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from efaprof.analyzers.by import By
from efaprof.analyzers.labels import KEY_COLUMNS, labelled
from efaprof.analyzers.nic import Asked, Movement, devices_of, movement
from efaprof.analyzers.operations import COLUMNS, Activity, OperationGroup, OperationTotals, sum_up
from efaprof.trace.layers import Match

if TYPE_CHECKING:
    from collections.abc import Sequence

    from efaprof.trace.reader import Tables

COMM_ACTIVE = "comm-active"
WHOLE_RUN = "whole run"
_NS_PER_S = 1e9
_FETCHES = "rma.read"
# No completion is to be explained for these.
_EXPLAINED = (
    Match.EXACT, Match.FIFO, Match.EXPECTED_NONE, Match.IN_FLIGHT, Match.FAILED_POST, Match.CANCELLED,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WindowRates:
    """Rates over one window; of several runs, their sum over windows of each."""

    window: str
    length_ns: int  # of several runs, the longest
    operations_s: float
    bytes_s: float


@dataclass(frozen=True, slots=True)
class Polling:
    """Completion-queue reads by the program itself."""

    reads: int  # that returned something
    entries: int
    empty_reads: int


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Completion-queue entries that ended no operation of ours."""

    explained: int  # remote writes with data, messages into a multi-receive
    unexplained: int


@dataclass(frozen=True, slots=True)
class HostLoad:
    """How the machine treated the recorded threads; None where nothing was sampled."""

    run_delay: float | None  # worst thread: time runnable without a core, over the run
    throttled: float | None  # time the cgroup was throttled, over the run


@dataclass(frozen=True, slots=True)
class Recorded:
    """Everything that is said about operations."""

    runs: int
    processes: int
    by: By
    everything: tuple[OperationGroup, ...]  # one per nesting level and direction
    kinds: tuple[OperationGroup, ...]
    groups: tuple[OperationGroup, ...]  # by `by`; the same as `kinds` for By.KIND
    windows: tuple[WindowRates, ...]  # of sends and RMA operations of the program itself
    outstanding_mean: float | None
    outstanding_highest: int
    polling: Polling
    arrivals: Arrivals
    unexplained: dict[str, int]  # by kind, "arrival" for completion-queue entries
    dropped: int
    movement: Movement | None
    host: HostLoad
    clock_error_ns: int
    overlap_clip_ns: int

    @property
    def own(self) -> tuple[OperationGroup, ...]:
        """Operations that the program itself called, one group per direction."""
        return tuple(group for group in self.everything if group.nest == 0)

    @property
    def sent(self) -> OperationGroup | None:
        """The program's sends and RMA operations."""
        return next((group for group in self.own if group.direction == "tx"), None)

    @property
    def count(self) -> int:
        """Operations that the program itself called."""
        return sum(group.count for group in self.own)

    @property
    def eagain_per_post(self) -> float | None:
        """Attempts that returned -FI_EAGAIN, per operation posted."""
        posts = sum(group.posts for group in self.own)
        return sum(group.eagain for group in self.own) / posts if posts else None

    @property
    def empty_reads_per_completion(self) -> float | None:
        """Empty completion-queue reads per entry."""
        return self.polling.empty_reads / self.polling.entries if self.polling.entries else None

    @property
    def coverage(self) -> float | None:
        """Part of the operations and completions, lost ones counted, that is explained."""
        posts = sum(group.count for group in self.everything)
        everything = posts + self.arrivals.explained + self.arrivals.unexplained + self.dropped
        lost = sum(self.unexplained.values()) + self.dropped
        return 1 - lost / everything if everything else None

    @property
    def utilisation(self) -> dict[str, float]:
        """Bytes over what the line could have carried, by window; empty when no line rate is known."""
        rate = self.movement.line_rate_bytes_s if self.movement else None
        return {one.window: one.bytes_s / rate for one in self.windows} if rate else {}

    @property
    def delivery_level(self) -> int:
        """0: posts returned, 1: and completions came, 2: and the NICs' counters moved by the right bytes."""
        if not any(group.matches.get(match) for group in self.own for match in (Match.EXACT, Match.FIFO)):
            return 0
        return 2 if self.movement is not None and self.movement.agrees else 1


def summarise(runs: Sequence[Tables], by: By = By.KIND) -> Recorded:
    """Operations of all runs together. Times of different runs are never compared with each other."""
    kinds = OperationTotals(By.KIND)
    grouped = None if by is By.KIND else OperationTotals(by)
    activities = []
    for tables in runs:
        activity = Activity()
        chunks = tables.chunks("ops", [*COLUMNS, *KEY_COLUMNS[by]])
        sum_up(chunks, kinds, activity, groups=grouped, label=labelled(tables, by))
        activities.append(activity)
    everything, by_kind = kinds.all(), kinds.groups()
    arrivals = _arrivals(runs)
    return Recorded(
        runs=len(runs),
        processes=sum(tables.processes.filter(pl.col("producer") != "parent").height for tables in runs),
        by=by,
        everything=everything,
        kinds=by_kind,
        groups=by_kind if grouped is None else grouped.groups(),
        windows=_windows(runs, activities),
        outstanding_mean=_outstanding(activities),
        outstanding_highest=max((one.outstanding.highest for one in activities), default=0),
        polling=_polling(runs),
        arrivals=arrivals,
        unexplained=_unexplained(by_kind, arrivals),
        dropped=sum(tables.facts.losses.dropped for tables in runs),
        movement=_movement(runs, by_kind),
        host=_host(runs),
        clock_error_ns=max((tables.facts.clock_error_ns for tables in runs), default=0),
        overlap_clip_ns=sum(group.overlap_clip_ns for group in everything if group.direction == "tx"),
    )


def _windows(runs: Sequence[Tables], activities: Sequence[Activity]) -> tuple[WindowRates, ...]:
    """Rates of what was sent, while something was under way and over the whole run."""
    lengths = {
        COMM_ACTIVE: [one.time.active_ns for one in activities],
        WHOLE_RUN: [tables.facts.last_ns - tables.facts.first_ns for tables in runs],
    }
    made = []
    for window, each in lengths.items():
        moved = [(one.operations, one.bytes, ns) for one, ns in zip(activities, each, strict=True) if ns > 0]
        if moved:
            made.append(
                WindowRates(
                    window,
                    max(ns for _, _, ns in moved),
                    sum(count / ns for count, _, ns in moved) * _NS_PER_S,
                    sum(size / ns for _, size, ns in moved) * _NS_PER_S,
                )
            )
    return tuple(made) if any(one.operations for one in activities) else ()


def _outstanding(activities: Sequence[Activity]) -> float | None:
    """Mean number of operations under way, over the time in which any was."""
    active = sum(one.time.active_ns for one in activities)
    return sum(one.outstanding.summed_ns for one in activities) / active if active else None


def _polling(runs: Sequence[Tables]) -> Polling:
    own = [
        tables.reads.filter(pl.col("nest") == 0)
        .select(
            (pl.col("entries") > 0).sum().alias("reads"),
            pl.col("entries").cast(pl.Int64).sum(),
            pl.col("empties").cast(pl.Int64).sum(),
        )
        .collect(engine="streaming")
        .row(0)
        for tables in runs
    ]
    return Polling(*(int(sum(column)) for column in zip(*own, strict=True)))


def _arrivals(runs: Sequence[Tables]) -> Arrivals:
    counted = [
        tables.arrivals.select(
            pl.col("is_explained").sum().cast(pl.Int64).alias("explained"), pl.len().cast(pl.Int64).alias("all")
        )
        .collect(engine="streaming")
        .row(0)
        for tables in runs
    ]
    explained = int(sum(row[0] for row in counted))
    return Arrivals(explained, int(sum(row[1] for row in counted)) - explained)


def _unexplained(kinds: Sequence[OperationGroup], arrivals: Arrivals) -> dict[str, int]:
    found: dict[str, int] = {}
    for group in kinds:
        if lost := sum(count for match, count in group.matches.items() if match not in _EXPLAINED):
            found[str(group.key)] = found.get(str(group.key), 0) + lost
    if arrivals.unexplained:
        found["arrival"] = arrivals.unexplained
    return found


def _movement(runs: Sequence[Tables], kinds: Sequence[OperationGroup]) -> Movement | None:
    """NIC counters of one run only: those of several may be of one NIC, counted twice."""
    if len(runs) != 1:
        return None
    sent = [group for group in kinds if group.nest == 0 and group.direction == "tx"]
    fetched = sum(group.bytes for group in sent if str(group.key).startswith(_FETCHES))
    asked = Asked(sum(group.bytes for group in sent) - fetched, fetched, sum(group.count for group in sent))
    domains = runs[0].objects.filter(pl.col("kind") == "domain")["detail"].drop_nulls().unique().to_list()
    return movement(devices_of(runs[0].counters), domains, asked)


def _host(runs: Sequence[Tables]) -> HostLoad:
    delays, throttles = [], []
    for tables in runs:
        length = tables.facts.last_ns - tables.facts.first_ns
        grown = (
            tables.counters.filter(pl.col("name").cast(pl.String).str.starts_with("cpu."))
            .group_by(pl.col("name").cast(pl.String))
            .agg(pl.col("value").last() - pl.col("value").first())
            .collect()
        )
        for name, value in grown.iter_rows():
            if length > 0 and name.startswith("cpu.run_delay_ns."):
                delays.append(value / length)
            elif length > 0 and name == "cpu.throttled_ns":
                throttles.append(value / length)
    return HostLoad(max(delays, default=None), max(throttles, default=None))
