"""Operations by kind, or by another key: counts, bytes, and time in libfabric and NIC, summed up chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from efaprof.analyzers.activity import ActiveTime, Outstanding
from efaprof.analyzers.spread import Spread, add_counts, bucket_counts, spreads
from efaprof.trace.layers import Match

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from efaprof.analyzers.by import By

# Columns of the operations table that are used here.
COLUMNS = (
    "process", "thread", "kind", "direction", "provider", "nest", "endpoint", "peer", "bytes", "eagain", "post_ns",
    "return_ns", "doorbell_ns", "done_ns", "match", "error",
)  # fmt: skip
_ALWAYS = ("nest", "direction")
_OPEN = (Match.IN_FLIGHT, Match.UNEXPLAINED)
_NO_POST = (Match.FAILED_POST,)


@dataclass(frozen=True, slots=True)
class OperationGroup:
    """Operations that have one thing in common."""

    key: str | int | None  # None: all of them
    nest: int  # 0: called by the program; 1…: called by a provider on a lower one
    direction: str | None  # "tx", "rx"; None for fi_cancel
    count: int
    bytes: int  # posted; of receives, their buffers
    eagain: int  # attempts that returned -FI_EAGAIN
    errors: int  # error completions
    matches: dict[Match, int]
    libfabric: Spread  # first attempt → return
    nic: Spread | None  # doorbell → completion read; of receives: until the message came
    overlap_clip_ns: int  # completions read before the post returned, and by how much

    @property
    def posts(self) -> int:
        """Operations that were really posted."""
        return self.count - sum(self.matches.get(match, 0) for match in _NO_POST)


@dataclass(slots=True)
class OperationTotals:
    """Sums over chunks of the operations table."""

    by: By
    _totals: list[pl.DataFrame] = field(default_factory=list)
    _libfabric: list[pl.DataFrame] = field(default_factory=list)
    _nic: list[pl.DataFrame] = field(default_factory=list)

    def add(self, timed: pl.DataFrame) -> None:
        """A chunk with the columns that `with_times` makes."""
        keys = (*_ALWAYS, self.by.value)
        self._totals.append(
            timed.group_by(*keys).agg(
                count=pl.len().cast(pl.Int64),
                bytes=(pl.col("bytes").cast(pl.Int64) * (pl.col("match") != Match.FAILED_POST.value)).sum(),
                eagain=pl.col("eagain").cast(pl.Int64).sum(),
                errors=(pl.col("error").fill_null(0) != 0).sum().cast(pl.Int64),
                overlap_clip_ns=pl.col("clip_ns").sum(),
                **{match.value: (pl.col("match") == match.value).sum().cast(pl.Int64) for match in Match},
            )
        )
        self._libfabric.append(bucket_counts(timed, keys, "libfabric_ns"))
        self._nic.append(bucket_counts(timed, keys, "nic_ns"))

    def groups(self) -> tuple[OperationGroup, ...]:
        """One group per key, most operations first within a nesting level."""
        return self._reduced((*_ALWAYS, self.by.value))

    def all(self) -> tuple[OperationGroup, ...]:
        """One group per nesting level and direction."""
        return self._reduced(_ALWAYS)

    def _reduced(self, keys: Sequence[str]) -> tuple[OperationGroup, ...]:
        if not self._totals:
            return ()
        totals = pl.concat(self._totals).group_by(*keys).agg(pl.selectors.numeric().exclude(*keys).sum())
        libfabric = spreads(add_counts(self._libfabric, keys), keys)
        nic = spreads(add_counts(self._nic, keys), keys)
        made = []
        for row in totals.sort("nest", "count", *keys, descending=[False, True, *[False] * len(keys)]).to_dicts():
            key = tuple(row[name] for name in keys)
            made.append(
                OperationGroup(
                    key=row[self.by.value] if self.by.value in keys else None,
                    libfabric=libfabric[key],
                    nic=nic.get(key),
                    matches={match: row[match.value] for match in Match if row[match.value]},
                    **{
                        name: row[name]
                        for name in ("nest", "direction", "count", "bytes", "eagain", "errors", "overlap_clip_ns")
                    },
                )
            )
        return tuple(made)


@dataclass(slots=True)
class Activity:
    """When the program's sends and RMA operations were under way, in one run."""

    operations: int = 0
    bytes: int = 0
    time: ActiveTime = field(default_factory=ActiveTime)
    outstanding: Outstanding = field(default_factory=Outstanding)

    def add(self, timed: pl.DataFrame) -> None:
        """A chunk, in order of post_ns; receives wait for others and do not count."""
        own = timed.filter(
            (pl.col("nest") == 0) & (pl.col("direction") == "tx") & (pl.col("match") != Match.FAILED_POST.value)
        )
        self.operations += own.height
        self.bytes += int(own["bytes"].cast(pl.Int64).sum())
        ends = pl.max_horizontal("return_ns", "done_ns")
        self.time.add(own["post_ns"].to_numpy(), own.select(ends).to_series().to_numpy())
        is_open = pl.col("match").is_in([match.value for match in _OPEN])
        waited = own.filter(is_open | pl.col("done_ns").is_not_null())
        self.outstanding.add(
            waited["post_ns"].to_numpy(),
            waited["done_ns"].fill_null(0).to_numpy(),
            waited.select(is_open).to_series().to_numpy(),
        )


def with_times(chunk: pl.DataFrame) -> pl.DataFrame:
    """The chunk with `libfabric_ns`, `nic_ns` (never below 0) and `clip_ns`, what was cut to keep it so."""
    nic = pl.col("done_ns") - pl.col("doorbell_ns")
    return chunk.with_columns(
        libfabric_ns=pl.col("return_ns") - pl.col("post_ns"),
        nic_ns=nic.clip(lower_bound=0),
        clip_ns=(-nic).clip(lower_bound=0).fill_null(0),
    )


def sum_up(
    chunks: Iterable[pl.DataFrame],
    kinds: OperationTotals,
    activity: Activity,
    *,
    groups: OperationTotals | None = None,
    label: pl.Expr | None = None,
) -> None:
    """Feed the chunks of one run, in order, to everything that sums; `label` rewrites the key that `groups` is by."""
    for chunk in chunks:
        timed = with_times(chunk)
        kinds.add(timed)
        activity.add(timed)
        if groups is not None:
            groups.add(timed if label is None else timed.with_columns(label))
