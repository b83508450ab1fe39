"""Lines drawn from frames of stretches, in order although the chunks that they come in overlap a little in time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.export.board import NOT_DRAWN, LaneTrack
from efaprof.export.lanes import FOREVER
from efaprof.export.timeline import UNFINISHED, Argument, Slices

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


@dataclass(slots=True)
class StretchLines:
    """One line a process.

    Frames have the columns `process`, `start`, `end` (null: not ended), `name` (String), the arguments, and where there
    are flows `flow` and `last_flow` (UInt64, 0 for none).
    """

    open_line: Callable[[int], LaneTrack]
    arguments: tuple[str, ...] = ()
    _lines: dict[int, LaneTrack] = field(default_factory=dict)
    _held: pl.DataFrame | None = None

    def draw(self, frame: pl.DataFrame | None, until_ns: int) -> None:
        """Take a frame in, and draw what starts before `until_ns`: nothing that comes later may start before that."""
        parts = [part for part in (self._held, frame) if part is not None and part.height]
        if not parts:
            return
        waiting = pl.concat(parts).sort("start", maintain_order=True)
        cut = int(waiting["start"].search_sorted(until_ns, side="left"))
        self._held = waiting.slice(cut)
        for (process,), rows in sorted(waiting.head(cut).partition_by("process", as_dict=True).items()):
            self._draw(int(process), rows)

    def _draw(self, process: int, rows: pl.DataFrame) -> None:
        line = self._lines.get(process)
        if line is None:
            line = self._lines[process] = self.open_line(process)
        starts = rows["start"].to_numpy()
        ends = np.maximum(rows["end"].fill_null(int(FOREVER)).to_numpy(), starts)
        names = rows["name"].unique().sort().to_list()
        track = line.place(starts, ends)
        slices = Slices(
            track=track,
            start_ns=starts,
            dur_ns=np.where(ends == FOREVER, np.int64(UNFINISHED), ends - starts),
            name=rows["name"].cast(pl.Enum(names)).to_physical().cast(pl.UInt32).to_numpy(),
            names=tuple(names),
            arguments=tuple(column_argument(rows, column) for column in self.arguments),
            flow=rows["flow"].to_numpy() if "flow" in rows.columns else None,
            last_flow=rows["last_flow"].to_numpy() if "last_flow" in rows.columns else None,
        )
        line.board.sink.slices(slices.where(track != NOT_DRAWN))


def column_argument(frame: pl.DataFrame, column: str) -> Argument:
    """A column of unsigned numbers as an argument, absent where it is null."""
    values = frame[column]
    absent: NDArray[np.bool_] | None = values.is_null().to_numpy() if values.null_count() else None
    return Argument(column, values.fill_null(0).cast(pl.UInt64).to_numpy(), absent)
