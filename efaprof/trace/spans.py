"""Named stretches of host time, out of SPAN and RANGE records: annotations, steps, NVTX, launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from efaprof.trace import schema
from efaprof.trace.events import names_of, of_shape, positions_of
from efaprof.trace.frames import empty, frame, named
from efaprof.trace.layout import RANGE, RANGE_UNORDERED, SPAN, Shape, Span

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from efaprof.trace.frames import Column
    from efaprof.trace.merge import Slice, Window
    from efaprof.trace.survey import Survey

_KINDS = tuple(schema.SpanKind.categories)
_SOURCES = tuple(schema.SpanSource.categories)


def spans(window: Window, survey: Survey) -> pl.DataFrame:
    """Frame of the named stretches of a window, in order of their begin."""
    made = []
    for part, kind, body, time_ns in of_shape(window, survey, Shape.SPAN, SPAN):
        begin = body["t_end"].astype(np.int64) - body["dur"]
        none = np.zeros(len(body), np.uint64)
        more: dict[str, NDArray[Any]] = dict.fromkeys(
            ("source", "domain", "category", "payload_type", "flags", "correlation"), none
        )
        made.append(_frame(part, survey, Shape.SPAN, kind, body, begin, time_ns, more))
    for part, kind, body, time_ns in of_shape(window, survey, Shape.RANGE, RANGE):
        more = {name: body[name] for name in ("source", "domain", "category", "payload_type", "flags", "correlation")}
        made.append(_frame(part, survey, Shape.RANGE, kind, body, body["t_begin"].astype(np.int64), time_ns, more))
    return pl.concat(made).sort("begin_ns", maintain_order=True) if made else empty(schema.SPANS)


def _frame(
    part: Slice,
    survey: Survey,
    shape: Shape,
    kind: NDArray[np.uint16],
    body: NDArray[np.void],
    begin: NDArray[np.int64],
    time_ns: NDArray[np.int64],
    more: dict[str, NDArray[Any]],
) -> pl.DataFrame:
    what = kind & 0xFF
    loaded = part.loaded
    columns: dict[str, Column] = {
        "process": np.full(len(body), loaded.ring.process), "thread": part.threads(positions_of(part, shape)),
        "name": names_of(survey, body["name"]), "begin_ns": np.minimum(loaded.ring.clock.to_ns(begin), time_ns),
        "end_ns": time_ns, "depth": body["x"], "is_step": what == Span.STEP, "payload": body["payload"],
        "what": named(_KINDS, schema.SPANS["what"], np.where(what < len(_KINDS), what, 0)),
        "source": named(_SOURCES, schema.SPANS["source"], np.where(more["source"] < len(_SOURCES), more["source"], 0)),
        "domain": names_of(survey, more["domain"].astype(np.uint64)), "category": more["category"],
        "payload_type": more["payload_type"], "is_unordered": more["flags"].astype(np.uint64) & RANGE_UNORDERED != 0,
        "correlation": more["correlation"],
    }  # fmt: skip
    return frame(schema.SPANS, columns, null={"domain": more["domain"] == 0})
