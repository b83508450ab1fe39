"""Polars frames of a table's schema out of numpy columns."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Column = NDArray[Any] | pl.Series


def frame(
    schema: Mapping[str, pl.DataType],
    columns: Mapping[str, Column],
    *,
    null: Mapping[str, NDArray[np.bool_]] | None = None,
) -> pl.DataFrame:
    """Rows with exactly the schema's columns and types; null where a column's mask says so."""
    null = null or {}
    made = []
    for name, dtype in schema.items():
        values = columns[name]
        series = values.alias(name) if isinstance(values, pl.Series) else pl.Series(name, np.ascontiguousarray(values))
        if series.dtype != dtype:
            series = series.cast(dtype)
        mask = null.get(name)
        if mask is not None and mask.any():
            series = (
                pl.repeat(None, len(mask), dtype=dtype, eager=True).alias(name)
                if mask.all()
                else series.set(pl.Series(mask), None)
            )
        made.append(series)
    return pl.DataFrame(made)


def empty(schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """No rows."""
    return pl.DataFrame(schema=dict(schema))


@cache
def _words(words: tuple[str | None, ...], dtype: pl.DataType) -> pl.Series:
    return pl.Series(list(words), dtype=dtype)


def named(words: tuple[str | None, ...], dtype: pl.DataType, codes: NDArray[Any]) -> pl.Series:
    """Column of words by their index, as an enum, category or string."""
    return _words(words, dtype).gather(codes.astype(np.uint32))
