"""Costs per (rank, step) as means over ranks, one step after the other: columns are made when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from efaprof.trace.steptable import StepTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Column = NDArray[Any]

Costs = pl.DataFrame | StepTable  # one row per (rank, step), of every kind
_KEYS = ("rank", "step", "kind")


class DecodeRows:
    """Rows of decode steps, column by column; what is null is 0."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        is_decode = (costs["kind"] == "decode").to_numpy()
        self._rows: slice | NDArray[np.intp] = slice(None) if is_decode.all() else np.flatnonzero(is_decode)
        self.count = int(np.count_nonzero(is_decode))

    @property
    def columns(self) -> list[str]:
        """Names of all columns."""
        return self._costs.columns

    def __getitem__(self, name: str) -> Column:
        if isinstance(self._costs, StepTable):
            return self._costs.column(name)[self._rows]
        values = self._costs[name]
        return (values.fill_null(0) if values.null_count() else values).to_numpy()[self._rows]


class ByStep:
    """Means over the ranks of each decode step, in order of the steps' begin."""

    def __init__(self, rows: DecodeRows, *, is_whole: bool = False) -> None:
        """`is_whole`: without the steps that not every rank has."""
        self._rows = rows
        numbers, place = np.unique(rows["step"], return_inverse=True)
        ranks = np.bincount(place, minlength=len(numbers))
        kept = np.flatnonzero(ranks == len(np.unique(rows["rank"]))) if is_whole else np.arange(len(numbers))
        begin = np.full(len(numbers), np.iinfo(np.int64).max)
        np.minimum.at(begin, place, rows["begin_ns"])
        self._kept = kept[np.argsort(begin[kept], kind="stable")]
        self._are_all = bool((self._kept == np.arange(len(numbers))).all()) if len(kept) == len(numbers) else False
        self._place, self._ranks, self._step = place, ranks, numbers

    def __len__(self) -> int:
        return len(self._kept)

    def is_empty(self) -> bool:
        """There is no such step."""
        return not len(self._kept)

    @property
    def columns(self) -> list[str]:
        """Names of the columns that have a mean."""
        return [name for name in self._rows.columns if name not in _KEYS]

    def __getitem__(self, name: str) -> pl.Series:
        return pl.Series(name, self.mean(name))

    def mean(self, name: str) -> NDArray[np.float64]:
        """Mean of a column in each step."""
        summed = np.bincount(self._place, self._rows[name], len(self._ranks))
        found: NDArray[np.float64] = summed / self._ranks
        return found if self._are_all else found[self._kept]
