"""A chunk of the ops table as numpy columns, and the numbers that tie its slices together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.export.lanes import FOREVER
from efaprof.trace.layers import Match
from efaprof.trace.schema import Direction, MatchKind, OpKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MATCH = {match: index for index, match in enumerate(MatchKind.categories)}
_RX = list(Direction.categories).index("rx")
_KEY = ("process", "nest", "provider", "thread")


@dataclass(frozen=True, slots=True)
class CallKey:
    """Who called: operations of one key are drawn on one libfabric line."""

    process: int
    thread: int
    nest: int
    provider: str
    flight: int  # the first key of the same process, level and provider: threads share the lanes of the NIC


@dataclass(frozen=True, slots=True)
class Batch:
    """The columns that are drawn, of operations in order of post_ns."""

    op: NDArray[np.uint64]
    key: NDArray[np.int64]  # index into the list of CallKey
    kind: NDArray[np.uint32]
    is_rx: NDArray[np.bool_]
    match: NDArray[np.uint32]
    post_ns: NDArray[np.int64]
    return_ns: NDArray[np.int64]
    doorbell_ns: NDArray[np.int64]
    done_ns: NDArray[np.int64]  # doorbell_ns where no completion came, FOREVER in flight
    bytes: NDArray[np.uint64]
    peer: NDArray[np.uint64]
    no_peer: NDArray[np.bool_]
    eagain: NDArray[np.int64]
    call_errno: NDArray[np.int64]
    completion_errno: NDArray[np.int64]

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Batch:
        """These rows, in this order."""
        return Batch(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    @staticmethod
    def concat(parts: list[Batch]) -> Batch:
        """Rows of all parts, one after another."""
        return Batch(*(np.concatenate([getattr(part, name) for part in parts]) for name in Batch.__dataclass_fields__))

    def __len__(self) -> int:
        return int(self.op.size)

    def is_match(self, *matches: Match) -> NDArray[np.bool_]:
        """Rows with one of these."""
        return np.isin(self.match, [_MATCH[match.value] for match in matches])


def keys_of(ops: pl.LazyFrame) -> list[CallKey]:
    """Every caller in the ops table, in the order of process, level, provider and thread."""
    rows = ops.select(*_KEY).unique().with_columns(pl.col("provider").cast(pl.String)).sort(*_KEY).collect()
    keys: list[CallKey] = []
    flights: dict[tuple[int, int, str], int] = {}
    for process, nest, provider, thread in rows.rows():
        flight = flights.setdefault((process, nest, provider or ""), len(keys))
        keys.append(CallKey(process, thread, nest, provider or "", flight))
    return keys


def batch_of(frame: pl.DataFrame, keys: list[CallKey]) -> Batch:
    """The batch of a chunk of the ops table."""
    numbers = pl.DataFrame(
        [(key.process, key.nest, key.provider, key.thread, index) for index, key in enumerate(keys)],
        schema={"process": pl.UInt32, "nest": pl.UInt8, "provider": pl.String, "thread": pl.UInt32, "key": pl.Int64},
        orient="row",
    )
    doorbell = pl.coalesce("doorbell_ns", "return_ns")
    in_flight = pl.col("match").cast(pl.String) == Match.IN_FLIGHT.value
    columns = (
        frame.with_columns(pl.col("provider").cast(pl.String).fill_null(""))
        .join(numbers, on=list(_KEY), how="left", maintain_order="left")
        .select(
            "op", "key", "post_ns", "return_ns", "match",
            kind=pl.col("kind").cast(OpKind).to_physical().cast(pl.UInt32),
            is_rx=pl.col("direction").cast(Direction).to_physical() == _RX,
            doorbell_ns=doorbell,
            done_ns=pl.when(in_flight).then(int(FOREVER)).otherwise(pl.coalesce("done_ns", doorbell)),
            bytes=pl.col("bytes").fill_null(0).cast(pl.UInt64),
            peer=pl.col("peer").fill_null(0),
            no_peer=pl.col("peer").is_null(),
            eagain=pl.col("eagain").cast(pl.Int64),
            call_errno=pl.col("ret").cast(pl.Int64).abs(),
            completion_errno=pl.col("error").fill_null(0).cast(pl.Int64).abs(),
        )
        .with_columns(match=pl.col("match").cast(MatchKind).to_physical().cast(pl.UInt32))
    )  # fmt: skip
    return Batch(*(columns[name].to_numpy() for name in Batch.__dataclass_fields__))


def flow_ids(op: NDArray[np.uint64], salt: int) -> NDArray[np.uint64]:
    """A number per operation that no other operation of any run has, never 0 (splitmix64 of op + salt)."""
    with np.errstate(over="ignore"):
        mixed = (op + np.uint64(salt)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    mixed[mixed == 0] = 1
    return mixed
