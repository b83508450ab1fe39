"""The longest decode step of a run, and how the Perfetto UI is told to show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from efaprof.analyzers.steps import asked_pattern, find_steps
from efaprof.errors import NothingToAnalyse
from efaprof.export.queries import prelude
from efaprof.trace import dispatch
from efaprof.trace.reader import open_tables
from efaprof.trace.survey import survey

if TYPE_CHECKING:
    from efaprof.trace.rundir import Run

_LINES = "^(steps|compute|kernel|(ring|proxy|fence|libfabric)( [1-9])?|nic|rx|waits)$"
_MOST_PINNED_RANKS = 4
_MARGIN = 0.05  # of the step, on both sides


@dataclass(frozen=True, slots=True)
class Focus:
    """A step of one rank."""

    step: int
    rank: int
    begin_ns: int
    end_ns: int
    ranks: int
    has_split: bool = True  # the stages of a dispatch path are on record

    @property
    def dur_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.begin_ns

    @property
    def parameters(self) -> str:
        """What of the UI's URL shows the step and selects its slice."""
        margin = round(self.dur_ns * _MARGIN)
        return f"&visStart={self.begin_ns - margin}&visEnd={self.end_ns + margin}&ts={self.begin_ns}&dur={self.dur_ns}"

    @property
    def commands(self) -> list[dict[str, Any]]:
        """What the UI does at its start: the lines of the path on top, our views, the step's split in a tab."""
        if not self.has_split:
            return []
        split = f"SELECT rank, layer, ns / 1e3 AS us FROM efaprof_step_layers WHERE step = {self.step}"
        pin = {"id": "dev.perfetto.PinTracksByRegex", "args": [_LINES]}
        return [
            *([pin] if self.ranks <= _MOST_PINNED_RANKS else []),
            {"id": "dev.perfetto.RunQuery", "args": [prelude()]},
            {"id": "dev.perfetto.RunQueryAndShowTab", "args": [f"{split} ORDER BY rank, us DESC;"]},
        ]

    def words(self) -> str:
        """Which step it is."""
        return f"the longest decode step is {self.step} of rank {self.rank}: {self.dur_ns / 1e3:,.1f} µs"


def worst_step(run: Run) -> Focus:
    """The longest decode step of any rank; NothingToAnalyse when no steps are marked or named."""
    found: pl.DataFrame | None = None
    ranks: set[int] = set()
    for chunk in dispatch.chunks(survey(run.raw_files)):
        decode = chunk.steps.filter(pl.col("kind") == "decode")
        ranks |= set(decode["rank"].to_list())
        longest = decode.sort(pl.col("end_ns") - pl.col("begin_ns"), descending=True).head(1)
        parts = [part for part in (found, longest) if part is not None]
        found = pl.concat(parts).sort(pl.col("end_ns") - pl.col("begin_ns"), descending=True).head(1)
    if found is not None and not found.is_empty():
        row = found.row(0, named=True)
        return Focus(row["step"], row["rank"], row["begin_ns"], row["end_ns"], len(ranks))
    if (named := _worst_named(run)) is not None:
        return named
    raise NothingToAnalyse(
        f"{run.path} has no marked decode steps", hint="leave out --worst-step; efaprof info says what was recorded"
    )


def _worst_named(run: Run) -> Focus | None:
    """The same where the program says where its steps are, by annotations or NVTX; without kinds, of all steps."""
    tables = open_tables(run)
    found = find_steps(tables.spans, asked_pattern(run.manifest.options))
    if found is None:
        return None
    rank_of = dict(tables.processes.select("process", "rank").iter_rows())
    candidates = [
        Focus(
            int(number), rank_of.get(steps.process) or 0, int(begin), int(until), len(found.processes), has_split=False
        )
        for steps in found.processes
        for number, begin, until, kind in zip(steps.number, steps.begin_ns, steps.until_ns, steps.kind, strict=True)
        if kind in (None, "decode")
    ]
    return max(candidates, key=lambda focus: focus.dur_ns, default=None)
