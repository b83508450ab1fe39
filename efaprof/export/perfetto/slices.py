"""Slices as packets: the begin of a slice and its end, side by side, in the order in which they are given.

That order matters: a reader sorts packets by time only, keeps ties as written and pairs an end with the innermost
open begin. Begins first and ends afterwards would swap the durations of slices that touch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from efaprof.export.perfetto.rows import Template, TemplateBuilder
from efaprof.export.perfetto.wire import uint_field, width_of
from efaprof.export.timeline import UNFINISHED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from efaprof.export.timeline import Argument, Slices

# Field numbers of protos/perfetto/trace/trace_packet.proto and track_event/track_event.proto.
PACKET = 1
TIMESTAMP, SEQUENCE_ID, TRACK_EVENT, SEQUENCE_FLAGS = 8, 10, 11, 13
ANNOTATION, EVENT_TYPE, NAME_IID, TRACK_UUID = 4, 9, 10, 11
FLOW, TERMINATING_FLOW = 47, 48
ANNOTATION_NAME_IID, UINT_VALUE, INT_VALUE = 1, 3, 4
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4

SEQUENCE = uint_field(SEQUENCE_ID, 1)
USES_NAMES = uint_field(SEQUENCE_FLAGS, 2)  # SEQ_NEEDS_INCREMENTAL_STATE
BLOCK_ROWS = 32768  # rows that are filled at a time: the block stays in the cache


@lru_cache(maxsize=256)
def _template(
    time_width: int,
    track_width: int,
    name_width: int,
    arguments: tuple[tuple[int, int, int], ...],
    flows: tuple[tuple[str, int], ...],
) -> Template:
    """`arguments`: (iid of the name, field of the value, width) of each; `flows`: (key, field) of each kind."""
    row = TemplateBuilder()
    with row.message(PACKET):
        row.raw(SEQUENCE + USES_NAMES)
        row.varint("start", TIMESTAMP, time_width)
        with row.message(TRACK_EVENT):
            row.raw(uint_field(EVENT_TYPE, BEGIN))
            row.varint("track", TRACK_UUID, track_width)
            row.varint("name", NAME_IID, name_width)
            for index, (iid, value_field, width) in enumerate(arguments):
                with row.section(f"argument{index}"), row.message(ANNOTATION):
                    row.raw(uint_field(ANNOTATION_NAME_IID, iid))
                    row.varint(f"argument{index}", value_field, width)
            for key, flow_field in flows:
                with row.section(key):
                    row.fixed64(key, flow_field)
    with row.section("end"), row.message(PACKET):
        row.raw(SEQUENCE)
        row.varint("end", TIMESTAMP, time_width)
        with row.message(TRACK_EVENT):
            row.raw(uint_field(EVENT_TYPE, END))
            row.varint("track", TRACK_UUID, track_width)
    return row.build()


def encode_slices(
    chunk: Slices, name_iids: NDArray[np.uint64], argument_iids: tuple[int, ...]
) -> Iterator[NDArray[np.uint8]]:
    """Packets of a chunk, block by block; `name_iids` translates the chunk's name indices."""
    ends = chunk.start_ns + np.maximum(chunk.dur_ns, 0)
    columns = {
        "start": chunk.start_ns.view(np.uint64),
        "end": ends.view(np.uint64),
        "track": chunk.track,
        "name": name_iids[chunk.name],
    }
    absent: dict[str, NDArray[np.bool_]] = {"end": chunk.dur_ns == UNFINISHED}
    forms: list[tuple[int, int, int]] = []
    for argument, iid in zip(chunk.arguments, argument_iids, strict=True):
        key = f"argument{len(forms)}"
        if argument.absent is not None:
            if argument.absent.all():
                continue
            absent[key] = argument.absent
        columns[key], value_field = _bits(argument)
        forms.append((iid, value_field, width_of(columns[key])))
    flows = []
    for key, ids, flow_field in (("flow", chunk.flow, FLOW), ("last_flow", chunk.last_flow, TERMINATING_FLOW)):
        if ids is not None and ids.any():
            columns[key], absent[key] = ids, ids == 0
            flows.append((key, flow_field))
    widths = max(8, width_of(columns["end"])), width_of(chunk.track), width_of(columns["name"])
    template = _template(*widths, tuple(forms), tuple(flows))
    for first in range(0, len(chunk), BLOCK_ROWS):
        rows = slice(first, first + BLOCK_ROWS)
        yield template.fill(
            {key: values[rows] for key, values in columns.items()},
            {key: mask[rows] for key, mask in absent.items()},
        )


def _bits(argument: Argument) -> tuple[NDArray[np.uint64], int]:
    """Values as 64-bit patterns, and the field that reads them: negative ones need the signed field."""
    values = argument.values
    if argument.absent is not None:
        values = np.where(argument.absent, values.dtype.type(0), values)
    is_signed = values.dtype.kind == "i" and bool((values < 0).any())
    return values.view(np.uint64), INT_VALUE if is_signed else UINT_VALUE
