"""Operations by kind, or by another key: counts, bytes, and time in libfabric and NIC, summed up chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.analyzers.activity import ActiveTime, Outstanding
from efaprof.analyzers.spread import Spread, add_counts, code_counts, spreads
from efaprof.trace.layers import Match

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from efaprof.analyzers.by import By

# Columns of the operations table that are always used here; a key other than the kind needs its own beside them.
COLUMNS = (
    "kind",
    "direction",
    "nest",
    "bytes",
    "eagain",
    "post_ns",
    "return_ns",
    "doorbell_ns",
    "done_ns",
    "match",
    "error",
)
_MATCHES = tuple(Match)
_MATCH = {match: code for code, match in enumerate(_MATCHES)}
_DIRECTIONS = ("tx", "rx", None)
_TX = 0
_SUMS = ("count", "bytes", "eagain", "errors", "overlap_clip_ns")
_MOST_PARTS = 64  # of sums, before they are added up
_FEW_KEYS = 1 << 20  # up to here keys are counted in an array, above they are sorted


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
        return self.count - self.matches.get(Match.FAILED_POST, 0)


@dataclass(frozen=True, slots=True)
class Timed:
    """One chunk of operations as arrays, its layers' times worked out."""

    chunk: pl.DataFrame
    nest: NDArray[np.uint8]
    direction: NDArray[np.uint8]  # index of _DIRECTIONS
    match: NDArray[np.uint8]  # index of _MATCHES
    bytes: NDArray[np.int64]  # 0 where nothing was posted
    post_ns: NDArray[np.int64]
    return_ns: NDArray[np.int64]
    done_ns: NDArray[np.int64]  # 0 where no completion came
    has_done: NDArray[np.bool_]
    libfabric_ns: NDArray[np.int64]
    has_nic: NDArray[np.bool_]
    nic_ns: NDArray[np.int64]  # never below 0
    clip_ns: NDArray[np.int64]  # what was cut to keep it so

    @staticmethod
    def of(chunk: pl.DataFrame) -> Timed:
        """Arrays of a chunk."""
        match = chunk["match"].to_physical().to_numpy().astype(np.uint8)
        post_ns, return_ns = chunk["post_ns"].to_numpy(), chunk["return_ns"].to_numpy()
        has_done = chunk["done_ns"].is_not_null().to_numpy()
        has_nic = has_done & chunk["doorbell_ns"].is_not_null().to_numpy()
        done_ns = chunk["done_ns"].fill_null(0).to_numpy()
        nic_ns = np.where(has_nic, done_ns - chunk["doorbell_ns"].fill_null(0).to_numpy(), 0)
        return Timed(
            chunk=chunk,
            nest=chunk["nest"].to_numpy(),
            direction=chunk["direction"].to_physical().fill_null(len(_DIRECTIONS) - 1).to_numpy().astype(np.uint8),
            match=match,
            bytes=np.where(match == _MATCH[Match.FAILED_POST], 0, chunk["bytes"].to_numpy().astype(np.int64)),
            post_ns=post_ns,
            return_ns=return_ns,
            done_ns=done_ns,
            has_done=has_done,
            libfabric_ns=return_ns - post_ns,
            has_nic=has_nic,
            nic_ns=np.maximum(nic_ns, 0),
            clip_ns=np.maximum(-nic_ns, 0),
        )


@dataclass(slots=True)
class OperationTotals:
    """Sums over chunks of the operations table."""

    by: By
    _keys: dict[tuple[object, int, int], int] = field(default_factory=dict)  # (key, nest, direction) → code
    _sums: list[pl.DataFrame] = field(default_factory=list)
    _libfabric: list[pl.DataFrame] = field(default_factory=list)
    _nic: list[pl.DataFrame] = field(default_factory=list)

    def add(self, timed: Timed, key: pl.Series) -> None:
        """A chunk, and the key of each of its rows."""
        rows, local = _distinct(_as_numbers(key), timed.nest, timed.direction)
        codes = [
            self._keys.setdefault((key[row], int(timed.nest[row]), int(timed.direction[row])), len(self._keys))
            for row in rows.tolist()
        ]
        code = np.array(codes, np.uint32).take(local)
        count = len(self._keys)
        error = timed.chunk["error"].fill_null(0).to_numpy() != 0
        weights = (None, timed.bytes, timed.chunk["eagain"].to_numpy(), error, timed.clip_ns)
        sums = {
            name: np.rint(np.bincount(code, weight, count)).astype(np.int64)
            for name, weight in zip(_SUMS, weights, strict=True)
        }
        by_match = np.bincount(code * len(_MATCHES) + timed.match, minlength=count * len(_MATCHES))
        matches = by_match.reshape(count, len(_MATCHES)).astype(np.int64)
        sums |= {match.value: matches[:, column] for column, match in enumerate(_MATCHES)}
        self._sums.append(pl.DataFrame({"code": np.arange(count, dtype=np.uint32), **sums}))
        self._libfabric.append(code_counts(code, timed.libfabric_ns))
        self._nic.append(code_counts(code[timed.has_nic], timed.nic_ns[timed.has_nic]))
        if len(self._sums) > _MOST_PARTS:
            self._sums = [pl.concat(self._sums).group_by("code").agg(pl.all().sum())]
            self._libfabric = [add_counts(self._libfabric, ["code"])]
            self._nic = [add_counts(self._nic, ["code"])]

    def groups(self) -> tuple[OperationGroup, ...]:
        """One group per key, most operations first within a nesting level."""
        return self._reduced(("nest", "direction", "key"))

    def all(self) -> tuple[OperationGroup, ...]:
        """One group per nesting level and direction."""
        return self._reduced(("nest", "direction"))

    def _reduced(self, keys: Sequence[str]) -> tuple[OperationGroup, ...]:
        if not self._sums:
            return ()
        named = pl.DataFrame(
            [(code, nest, _DIRECTIONS[direction], key) for (key, nest, direction), code in self._keys.items()],
            schema={"code": pl.UInt32, "nest": pl.Int64, "direction": pl.String, "key": pl.String},
            orient="row",
            strict=False,
        )
        totals = pl.concat(self._sums).join(named, on="code").group_by(*keys).agg(pl.sum(*_SUMS, *_MATCHES))
        libfabric, nic = (
            spreads(add_counts([pl.concat(parts).join(named, on="code")], keys), keys)
            for parts in (self._libfabric, self._nic)
        )
        falling = [False, True, True, *[False] * (len(keys) - 2)]  # most operations first, sent before received
        order = totals.sort("nest", "count", *keys[1:], descending=falling, nulls_last=True)
        return tuple(_group(row, tuple(row[name] for name in keys), libfabric, nic) for row in order.to_dicts())


def _group(
    row: dict[str, object],
    key: tuple[object, ...],
    libfabric: dict[tuple[object, ...], Spread],
    nic: dict[tuple[object, ...], Spread],
) -> OperationGroup:
    values = {name: row.get(name) for name in ("key", "nest", "direction", *_SUMS)}
    matches = {match: count for match in Match if isinstance(count := row[match.value], int) and count}
    return OperationGroup(matches=matches, libfabric=libfabric[key], nic=nic.get(key), **values)  # type: ignore[arg-type]


def _as_numbers(key: pl.Series) -> NDArray[np.int64]:
    """A number for each value of a column; the same only for the same value."""
    physical = key.cast(pl.Categorical).to_physical() if key.dtype == pl.String else key.to_physical()
    return physical.cast(pl.Int64).fill_null(-1).to_numpy() + 1


def _distinct(
    key: NDArray[np.int64], nest: NDArray[np.uint8], direction: NDArray[np.uint8]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A row of each distinct combination, and which of them each row is."""
    combined = (key * 256 + nest) * len(_DIRECTIONS) + direction
    highest = int(combined.max())
    if highest >= _FEW_KEYS:
        _, rows, local = np.unique(combined, return_index=True, return_inverse=True)
        return rows, local
    present = np.flatnonzero(np.bincount(combined))
    number = np.zeros(highest + 1, np.int64)
    number[present] = np.arange(len(present))
    local = number.take(combined)
    rows = np.array([int(np.argmax(local == one)) for one in range(len(present))], np.int64)
    return rows, local


@dataclass(slots=True)
class Activity:
    """When the program's sends and RMA operations were under way, in one run."""

    operations: int = 0
    bytes: int = 0
    time: ActiveTime = field(default_factory=ActiveTime)
    outstanding: Outstanding = field(default_factory=Outstanding)

    def add(self, timed: Timed) -> None:
        """A chunk, in order of post_ns; receives wait for others and do not count."""
        own = (timed.nest == 0) & (timed.direction == _TX) & (timed.match != _MATCH[Match.FAILED_POST])
        rows = np.flatnonzero(own)
        post_ns, done_ns = timed.post_ns.take(rows), timed.done_ns.take(rows)
        self.operations += len(rows)
        self.bytes += int(timed.bytes.take(rows).sum())
        self.time.add(post_ns, np.maximum(timed.return_ns.take(rows), done_ns))
        match = timed.match.take(rows)
        is_open = (match == _MATCH[Match.IN_FLIGHT]) | (match == _MATCH[Match.UNEXPLAINED])
        waited = np.flatnonzero(is_open | timed.has_done.take(rows))
        self.outstanding.add(post_ns.take(waited), done_ns.take(waited), is_open.take(waited))


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
        if chunk.is_empty():
            continue
        timed = Timed.of(chunk)
        kinds.add(timed, chunk["kind"])
        activity.add(timed)
        if groups is not None:
            groups.add(timed, chunk[groups.by.value] if label is None else chunk.select(label).to_series())
