"""What became of a run's operations, counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from efaprof.trace.layers import Match

if TYPE_CHECKING:
    from efaprof.trace.reader import Tables

ARRIVAL = "arrival"


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Counts of operations by what became of them, nested ones too."""

    operations: int
    by_match: dict[Match, int]
    unmatched: dict[str, int]  # unexplained only: by kind of operation, ARRIVAL for completions


def outcomes(tables: Tables) -> Outcomes:
    """Counts over the whole run."""
    counted = (
        tables.ops.group_by(pl.col("kind").cast(pl.String), pl.col("match").cast(pl.String))
        .agg(pl.len().cast(pl.Int64))
        .sort("kind", "match")
        .collect(engine="streaming")
    )
    by_match: dict[Match, int] = {}
    unmatched: dict[str, int] = {}
    for kind, match, count in counted.iter_rows():
        by_match[Match(match)] = by_match.get(Match(match), 0) + count
        if match == Match.UNEXPLAINED:
            unmatched[kind] = count
    arrivals = int(tables.arrivals.select((~pl.col("is_explained")).sum()).collect(engine="streaming").item())
    if arrivals:
        unmatched[ARRIVAL] = arrivals
    return Outcomes(sum(by_match.values()), by_match, unmatched)
