"""The sink that writes Chrome's trace event format (JSON), for tools that read nothing else.

Complete events ("X") of one thread that overlap without nesting are dropped by readers, so only a thread's own nested
spans become those. Everything on lanes becomes asynchronous begin and end events ("b", "e") with the lane as their id.
Arrows between slices, nesting of tracks and their order have no reliable form there and are left out.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from efaprof.export.timeline import UNFINISHED, Written

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from efaprof.export.output import OutputFile
    from efaprof.export.timeline import Argument, Fact, Slices, Track

_BLOCK_ROWS = 50_000


class ChromeWriter:
    """Writes one JSON document; `close` ends it."""

    def __init__(self, out: OutputFile) -> None:
        self.written = Written()
        self._out = out
        self._tracks: dict[int, Track] = {}
        self._separator = b""
        out.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')

    def track(self, track: Track) -> None:
        """Remember a track; processes and threads get their names."""
        self._tracks[track.uuid] = track
        self.written.tracks += 1
        if track.process is not None:
            self._metadata("process_name", track.process.pid, 0, name=track.name)
            self._metadata("process_labels", track.process.pid, 0, labels=", ".join(track.process.labels))
        elif track.thread is not None:
            self._metadata("thread_name", track.thread.pid, track.thread.tid, name=track.name)

    def slices(self, chunk: Slices) -> None:
        """Add slices."""
        for first in range(0, len(chunk), _BLOCK_ROWS):
            self._block(chunk, slice(first, first + _BLOCK_ROWS))
        self.written.slices += len(chunk)
        self.written.unfinished += int((chunk.dur_ns == UNFINISHED).sum())

    def counter(self, track: int, time_ns: NDArray[np.int64], values: NDArray[np.int64] | NDArray[np.float64]) -> None:
        """Add points of a counter; each holds until the next."""
        about = self._tracks[track]
        unit = f" ({about.unit})" if about.unit else ""
        frame = pl.DataFrame({"time": time_ns, "value": values}).select(
            pl.concat_str(
                pl.lit(f'{{"ph":"C","name":{_json(about.name + unit)},"pid":{self._pid(track)},"ts":'),
                _microseconds(pl.col("time")),
                pl.lit(',"args":{"value":'),
                pl.col("value"),
                pl.lit("}}"),
            )
        )
        self._write(frame.to_series())
        self.written.counter_points += time_ns.size

    def facts(self, track: int, time_ns: int, name: str, facts: Mapping[str, Fact]) -> None:
        """Put one mark with named facts on the trace."""
        event = {"ph": "i", "s": "g", "name": name, "pid": self._pid(track), "tid": 0, "ts": time_ns / 1e3}
        self._event(event | {"args": dict(facts)})

    def close(self) -> None:
        """End the document."""
        self._out.write(b"\n]}\n")

    def _block(self, chunk: Slices, rows: slice) -> None:
        track = chunk.track[rows]
        used = np.unique(track).tolist()
        heads = pl.DataFrame(
            {"track": used, "head": [self._head(uuid) for uuid in used], "nests": [self._nests(uuid) for uuid in used]},
            schema_overrides={"track": pl.UInt64},
        )
        names = pl.DataFrame({"name": range(len(chunk.names)), "text": [_json(name) for name in chunk.names]})
        frame = (
            pl.DataFrame(
                {"track": track, "start": chunk.start_ns[rows], "dur": chunk.dur_ns[rows], "name": chunk.name[rows]}
            )
            .join(heads, on="track", how="left", maintain_order="left")
            .join(names.with_columns(pl.col("name").cast(pl.UInt32)), on="name", how="left", maintain_order="left")
            .with_columns(arguments=_arguments(chunk.arguments, rows))
        )
        named = pl.concat_str(pl.lit('"name":'), "text", pl.lit(',"ts":'), _microseconds(pl.col("start")))
        complete = pl.concat_str(
            pl.lit('{"ph":"X",'),
            "head",
            named,
            pl.lit(',"dur":'),
            _microseconds(pl.col("dur")),
            "arguments",
            pl.lit("}"),
        )
        begin = pl.concat_str(pl.lit('{"ph":"b",'), "head", named, "arguments", pl.lit("}"))
        begin_nested = pl.concat_str(pl.lit('{"ph":"B",'), "head", named, "arguments", pl.lit("}"))
        end = pl.concat_str(
            pl.lit(',\n{"ph":"e",'),
            "head",
            pl.lit('"name":'),
            "text",
            pl.lit(',"ts":'),
            _microseconds(pl.col("start") + pl.col("dur")),
            pl.lit("}"),
        )
        unfinished = pl.col("dur") == UNFINISHED
        nests = pl.col("nests")
        event = (
            pl.when(nests & unfinished).then(begin_nested)
            .when(nests).then(complete)
            .when(unfinished).then(begin)
            .otherwise(pl.concat_str(begin, end))
        )  # fmt: skip
        self._write(frame.select(event).to_series())

    def _head(self, uuid: int) -> str:
        """The part that says where an event lies, ready to be followed by its name."""
        track = self._tracks[uuid]
        if track.thread is not None:
            return f'"pid":{track.thread.pid},"tid":{track.thread.tid},"cat":"thread",'
        return f'"pid":{self._pid(uuid)},"tid":0,"cat":{_json(track.name)},"id":"{uuid:#x}",'

    def _nests(self, uuid: int) -> bool:
        return self._tracks[uuid].thread is not None

    def _pid(self, uuid: int) -> int:
        """Process that a track belongs to; 0 for those of the whole trace."""
        while uuid:
            track = self._tracks[uuid]
            if track.process is not None:
                return track.process.pid
            uuid = track.parent
        return 0

    def _metadata(self, kind: str, pid: int, tid: int, **arguments: str) -> None:
        self._event({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": arguments})

    def _event(self, event: dict[str, Any]) -> None:
        self._write(pl.Series([_json(event)]))

    def _write(self, events: pl.Series) -> None:
        if events.len():
            self._out.write(self._separator + ",\n".join(events.to_list()).encode())
            self._separator = b",\n"


def _microseconds(nanoseconds: pl.Expr) -> pl.Expr:
    """Decimal microseconds with all three places, so that no nanosecond is lost to a float."""
    return pl.concat_str(nanoseconds // 1000, pl.lit("."), (nanoseconds % 1000).cast(pl.String).str.zfill(3))


def _arguments(arguments: tuple[Argument, ...], rows: slice) -> pl.Expr:
    """`,"args":{…}` of each row, without what is absent."""
    parts = []
    for argument in arguments:
        values = pl.Series(argument.values[rows]).cast(pl.String)
        if argument.absent is not None:
            values = values.zip_with(pl.Series(~argument.absent[rows]), pl.Series([None], dtype=pl.String))
        parts.append(pl.lit(f"{_json(argument.name)}:") + pl.lit(values))
    if not parts:
        return pl.lit("")
    return pl.concat_str(pl.lit(',"args":{'), pl.concat_str(parts, separator=",", ignore_nulls=True), pl.lit("}"))


def _json(value: object) -> str:
    """Text of a value, names left readable: some readers do not undo escapes."""
    return json.dumps(value, ensure_ascii=False)
