"""Dataclasses whose fields are arrays of one length: rows without an object each."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Columns:
    """Base of frozen dataclasses of arrays."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(getattr(self, _names(self)[0]))

    def where(self, rows: NDArray[Any]) -> Self:
        """The chosen rows, by mask or number."""
        if rows.dtype == np.bool_:
            if rows.all():
                return self
            rows = np.flatnonzero(rows)
        return type(self)(**{name: getattr(self, name).take(rows) for name in _names(self)})

    def split(self, rows: int) -> tuple[Self, Self]:
        """The first rows, and the others."""
        cls, names = type(self), _names(self)
        return (
            cls(**{name: getattr(self, name)[:rows] for name in names}),
            cls(**{name: getattr(self, name)[rows:] for name in names}),
        )

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Rows of all parts."""
        filled = [part for part in parts if len(part)] or list(parts[:1])
        if len(filled) == 1:
            return filled[0]
        return cls(**{name: np.concatenate([getattr(part, name) for part in filled]) for name in _names(cls)})


def _names(owner: Any) -> list[str]:
    return [field.name for field in fields(owner)]
