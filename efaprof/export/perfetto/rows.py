"""Rows of equal length: packets drawn once as a template, then filled column by column.

    template   0A 2F 50 01 40 .. .. .. 5A 1C 48 01 58 .. .. 50 .. 22 06 08 01 18 .. .. F9 02 .. ..
                  ^length      ^column    ^length   ^column ^column └── section "arg0" ──┘

A section is a stretch that single rows may lack (an absent argument, no flow, no end); there the lengths of the
messages around it shrink and its bytes are left out.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from efaprof.export.perfetto.wire import put_fixed64, put_varints, tag

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

MAX_MESSAGE_BYTES = 127  # a length of one byte
FIXED64 = 0  # "width" of a column of eight little-endian bytes


@dataclass(frozen=True, slots=True)
class Section:
    """Bytes [start, end) of the row, inside the messages whose length bytes stand at `lengths`."""

    start: int
    end: int
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Template:
    """One row, and where its variable parts lie."""

    row: NDArray[np.uint8]
    columns: tuple[tuple[str, int, int], ...]  # key, offset, width
    sections: Mapping[str, Section]

    def fill(
        self,
        columns: Mapping[str, NDArray[np.uint64] | NDArray[np.float64]],
        absent: Mapping[str, NDArray[np.bool_]],
    ) -> NDArray[np.uint8]:
        """Bytes of all rows in order; `absent` marks, per section, the rows that lack it."""
        count = next(iter(columns.values())).size
        rows = np.empty((count, self.row.size), np.uint8)
        rows[:] = self.row
        for key, offset, width in self.columns:
            if width == FIXED64:
                put_fixed64(rows, offset, columns[key])
            else:
                put_varints(rows, offset, width, columns[key])  # type: ignore[arg-type]
        keep: NDArray[np.bool_] | None = None
        for key, section in self.sections.items():
            mask = absent.get(key)
            if mask is None or not mask.any():
                continue
            if keep is None:
                keep = np.ones(rows.shape, np.bool_)
            keep[mask, section.start : section.end] = False
            for length in section.lengths:
                rows[mask, length] -= section.end - section.start
        return rows.reshape(-1) if keep is None else rows[keep]


class TemplateBuilder:
    """Collects the parts of a row from left to right."""

    def __init__(self) -> None:
        self._row = bytearray()
        self._columns: list[tuple[str, int, int]] = []
        self._sections: dict[str, Section] = {}
        self._open: list[int] = []

    def raw(self, data: bytes) -> None:
        """Bytes that are the same in every row."""
        self._row += data

    def varint(self, key: str, number: int, width: int) -> None:
        """Varint field with a value per row."""
        self.raw(tag(number, 0))
        self._columns.append((key, len(self._row), width))
        self.raw(bytes(width))

    def fixed64(self, key: str, number: int) -> None:
        """64-bit or double field with a value per row."""
        self.raw(tag(number, 1))
        self._columns.append((key, len(self._row), FIXED64))
        self.raw(bytes(8))

    @contextmanager
    def message(self, number: int) -> Iterator[None]:
        """What is added inside is the content of a message field."""
        self.raw(tag(number, 2))
        position = len(self._row)
        self.raw(b"\0")
        self._open.append(position)
        yield
        self._open.pop()
        size = len(self._row) - position - 1
        if size > MAX_MESSAGE_BYTES:
            raise ValueError(
                f"an event of {size} bytes: the row template holds {MAX_MESSAGE_BYTES}, use fewer arguments"
            )
        self._row[position] = size

    @contextmanager
    def section(self, key: str) -> Iterator[None]:
        """What is added inside may be absent from single rows."""
        start, around = len(self._row), tuple(self._open)
        yield
        self._sections[key] = Section(start, len(self._row), around)

    def build(self) -> Template:
        """The finished template."""
        return Template(np.frombuffer(bytes(self._row), np.uint8), tuple(self._columns), self._sections)
