"""Counter points as packets."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from efaprof.export.perfetto.rows import Template, TemplateBuilder
from efaprof.export.perfetto.slices import (
    BLOCK_ROWS,
    COUNTER,
    EVENT_TYPE,
    PACKET,
    SEQUENCE,
    TIMESTAMP,
    TRACK_EVENT,
    TRACK_UUID,
)
from efaprof.export.perfetto.wire import uint_field, width_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

COUNTER_VALUE, DOUBLE_COUNTER_VALUE = 30, 44
DOUBLE = 0


@lru_cache(maxsize=64)
def _template(time_width: int, value_width: int) -> Template:
    row = TemplateBuilder()
    with row.message(PACKET):
        row.raw(SEQUENCE)
        row.varint("time", TIMESTAMP, time_width)
        with row.message(TRACK_EVENT):
            row.raw(uint_field(EVENT_TYPE, COUNTER))
            row.varint("track", TRACK_UUID, 8)
            if value_width == DOUBLE:
                row.fixed64("value", DOUBLE_COUNTER_VALUE)
            else:
                row.varint("value", COUNTER_VALUE, value_width)
    return row.build()


def encode_counter(
    track: int, time_ns: NDArray[np.int64], values: NDArray[np.int64] | NDArray[np.float64]
) -> Iterator[NDArray[np.uint8]]:
    """Packets of one counter's points, block by block."""
    columns: dict[str, NDArray[np.uint64] | NDArray[np.float64]]
    times = time_ns.view(np.uint64)
    if values.dtype.kind == "f":
        columns, value_width = {"value": values.astype(np.float64)}, DOUBLE
    else:
        bits = values.astype(np.int64).view(np.uint64)
        columns, value_width = {"value": bits}, width_of(bits)
    columns |= {"time": times, "track": np.full(times.size, track, np.uint64)}
    template = _template(max(8, width_of(times)), value_width)
    for first in range(0, times.size, BLOCK_ROWS):
        yield template.fill({key: column[first : first + BLOCK_ROWS] for key, column in columns.items()}, {})
