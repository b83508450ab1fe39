"""A report as one HTML file that needs nothing else: no script, no font, no address; every string is escaped."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from efaprof.report.sections import Section, Table
from efaprof.report.svg import colours

if TYPE_CHECKING:
    from collections.abc import Sequence

    from efaprof.trace.layers import Layer

# The browser itself then refuses whatever would be fetched or run.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light; --line: #d9d9d6; --soft: #5c5f66; }
body { font: 15px/1.45 system-ui, sans-serif; color: #1c1e21; background: #fff; margin: 0 auto; padding: 1.2rem;
  max-width: 1080px; }
h1 { font-size: 1.25rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.02rem; margin: 1.7rem 0 .4rem; }
p { margin: .3rem 0; overflow-wrap: anywhere; white-space: pre-wrap; }
p.soft, figcaption { color: var(--soft); font-size: .87rem; }
figure { margin: 0; }
.wide { overflow-x: auto; }
.wide svg { display: block; width: 100%; min-width: 720px; }
svg text { font: 11px system-ui, sans-serif; fill: #1c1e21; }
svg line { stroke: var(--line); stroke-width: 1; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .87rem; }
th, td { padding: .16rem .6rem .16rem 0; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { font-weight: 600; } .left { text-align: left; }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1rem; list-style: none; padding: 0; margin: .4rem 0;
  font-size: .87rem; }
.key i { display: inline-block; width: .8em; height: .8em; margin-right: .35em; }
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture with its heading, and what it shows; `svg` is markup already, the rest is words."""

    title: str
    svg: str
    caption: str


def html_page(
    heading: str,
    *,
    first: Sequence[Section],
    figures: Sequence[Figure],
    layers: Sequence[Layer],
    rest: Sequence[Section],
) -> str:
    """The page: what came out first, then pictures with a key of their layers, then every other table and note."""
    body = [f"<h1>{escape(heading)}</h1>", *(_section(one) for one in first)]
    if figures:
        body.append(_key(layers))
    body += [_figure(one) for one in figures]
    body += [_section(one) for one in rest]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(heading)}</title>\n<style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _key(layers: Sequence[Layer]) -> str:
    found = colours(layers)
    items = "".join(f'<li><i style="background:{found[layer]}"></i>{escape(layer.value)}</li>' for layer in layers)
    return f'<ul class="key">{items}</ul>'


def _figure(one: Figure) -> str:
    return (
        f'<h2>{escape(one.title)}</h2>\n<figure><div class="wide">{one.svg}</div>'
        f"<figcaption>{escape(one.caption)}</figcaption></figure>"
    )


def _section(section: Section) -> str:
    title = f"<h2>{escape(section.title)}</h2>\n"
    if isinstance(section, Table):
        return title + _table(section)
    # What is indented below its heading in a terminal stands under it here.
    return title + "\n".join(f"<p>{escape(line.strip())}</p>" for line in section.lines)


def _table(table: Table) -> str:
    left = [' class="left"' if name in table.left else "" for name in table.columns]
    head = "".join(f"<th{side}>{escape(name)}</th>" for side, name in zip(left, table.columns, strict=True))
    rows = "".join(
        "<tr>" + "".join(f"<td{side}>{escape(cell)}</td>" for side, cell in zip(left, row, strict=True)) + "</tr>\n"
        for row in table.rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>'
