"""Tables and notes that a report is made of, and their two renderings as text: terminal and markdown."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LEGEND = "measured ● derived ○ assumed △"
_GAP = "  "


@dataclass(frozen=True, slots=True)
class Table:
    """A table; columns named in `left` are flushed left, the others right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Notes:
    """Sentences under one word."""

    title: str
    lines: tuple[str, ...]


Section = Table | Notes


def as_terminal(heading: str, sections: Sequence[Section]) -> str:
    """Plain text, readable without colour; ends with a newline."""
    parts = [heading]
    for section in sections:
        parts.append("")
        if isinstance(section, Table):
            parts += _terminal_table(section)
        else:
            indent = " " * (len(section.title) + len(_GAP))
            for number, line in enumerate(section.lines):
                parts.append((section.title + _GAP if number == 0 else indent) + line)
    return "\n".join(line.rstrip() for line in parts) + "\n"


def _terminal_table(table: Table) -> list[str]:
    columns = (table.title or table.columns[0], *table.columns[1:])
    widths = [max(_width(row[at]) for row in (columns, *table.rows)) for at in range(len(columns))]
    is_left = [name in table.left for name in table.columns]
    return [
        _GAP.join(_pad(cell, width, left=left) for cell, width, left in zip(row, widths, is_left, strict=True))
        for row in (columns, *table.rows)
    ]


def as_markdown(heading: str, sections: Sequence[Section]) -> str:
    """GitHub markdown; ends with a newline."""
    parts = [f"### {heading}"]
    for section in sections:
        parts.append("")
        if isinstance(section, Table):
            parts += _markdown_table(section)
        elif len(section.lines) == 1:
            parts.append(f"**{section.title}**: {_escape(section.lines[0])}")
        else:
            parts += [f"**{section.title}**", "", *(f"- {_escape(line)}" for line in section.lines)]
    return "\n".join(parts) + "\n"


def _markdown_table(table: Table) -> list[str]:
    head = [f"**{table.title}**", ""] if table.title and table.title != table.columns[0] else []
    rule = [":--" if name in table.left else "--:" for name in table.columns]
    return [*head, *("| " + " | ".join(map(_escape, row)) + " |" for row in (table.columns, rule, *table.rows))]


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _pad(text: str, width: int, *, left: bool) -> str:
    space = " " * (width - _width(text))
    return text + space if left else space + text
