"""What GPUs did: kernels, graphs and copies, as CUPTI told them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.trace import schema
from efaprof.trace.events import names_of, of_shape
from efaprof.trace.frames import empty, frame, named
from efaprof.trace.layout import DEVICE, Shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from efaprof.trace.frames import Column
    from efaprof.trace.merge import Window
    from efaprof.trace.survey import Survey


def device_work(window: Window, survey: Survey) -> pl.DataFrame:
    """Frame of what GPUs did, in order of its begin within what CUPTI told together."""
    made = []
    for part, kind, body, time_ns in of_shape(window, survey, Shape.DEVICE, DEVICE):
        begin = part.loaded.ring.clock.to_ns(body["t_begin"].astype(np.int64))
        columns: dict[str, Column] = {
            "process": np.full(len(body), part.loaded.ring.process), "device": body["x"], "stream": body["stream"],
            "kind": _kinds((kind & 0xFF).astype(np.uint16)), "name": names_of(survey, body["name"]),
            "begin_ns": np.minimum(begin, time_ns), "end_ns": time_ns, "correlation": body["correlation"],
            "graph": body["graph"], "bytes": body["bytes"], "context": body["context"],
        }  # fmt: skip
        null = {"name": body["name"] == 0, "graph": body["graph"] == 0}
        made.append(frame(schema.DEVICE_WORK, columns, null=null))
    return pl.concat(made).sort("begin_ns", maintain_order=True) if made else empty(schema.DEVICE_WORK)


def _kinds(what: NDArray[np.uint16]) -> pl.Series:
    words = tuple(schema.DeviceKind.categories)
    return named(words, schema.DeviceKind, np.where(what < len(words), what, 0))
