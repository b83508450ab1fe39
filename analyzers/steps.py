"""Steps of real programs: annotated ones, NVTX ranges that are named so, or launches of CUDA graphs (METHOD §7).

Of the steps that a program names, the outermost of its process count, whichever thread they ran on. A step lasts until
the next one begins: the host's time between two steps belongs to the earlier one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.errors import UsageError
from efaprof.trace.layout import UNSAID_COUNT, AnnotatedStep, Payload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Times = NDArray[np.int64]

UNCLASSIFIED = "unclassified"
PREFILL = 4.0  # times the running median of data operations a step: no decode step
RUNNING = 31  # steps of that median, half of them before and half after
_MOST_NAMES = 4
_KINDS = {
    AnnotatedStep.DECODE: "decode",
    AnnotatedStep.PREFILL: "prefill",
    AnnotatedStep.MIXED: "mixed",
    AnnotatedStep.WARM_UP: "warm-up",
    AnnotatedStep.OTHER: UNCLASSIFIED,
}
_HALF = 32
_REPEATED = 0.5  # of a process' launches that are of the graph before it: each of them is a step


class FoundBy(StrEnum):
    """What says where steps are."""

    ANNOTATION = "annotation"
    NVTX = "nvtx"
    GRAPH = "cuda graph"


@dataclass(frozen=True, slots=True)
class ProcessSteps:
    """Steps of one process in order of time; arrays are as long as there are steps."""

    process: int
    number: Times  # of the step in its process, from the program's start where that is known
    begin_ns: Times
    end_ns: Times  # of the named stretch; the next begin where steps have no end of their own
    until_ns: Times  # the next step's begin; of the last one its end, when nothing began after it
    kind: tuple[str | None, ...]  # None: the program did not say
    tokens: tuple[int | None, ...]
    batch: tuple[int | None, ...]
    has_ends: bool

    @property
    def count(self) -> int:
        """How many."""
        return len(self.begin_ns)


@dataclass(frozen=True, slots=True)
class FoundSteps:
    """Steps of a run, and how they were found."""

    by: tuple[FoundBy, ...]
    names: tuple[str, ...]  # what they are called, the most frequent first
    processes: tuple[ProcessSteps, ...]
    unfinished: int  # begun, and not ended when the recording did


def asked_pattern(options: Mapping[str, object]) -> str | None:
    """Names of ranges that are steps, as `record --step` was given them: in the options of a run's manifest."""
    kept = options.get("step")
    return kept if isinstance(kept, str) else None


def find_steps(spans: pl.LazyFrame, pattern: str | None = None) -> FoundSteps | None:
    """Steps in a table of spans; `pattern` is all of the names of ranges that are steps too. None where there are none.

    Launches of CUDA graphs are looked at only when nothing is named.
    """
    named = _named(spans, pattern)
    if named.is_empty():
        return _launched(spans.filter(pl.col("what") == "graph").select(_COLUMNS).collect())
    began = (
        spans.filter(pl.col("what") == "step began").select("process", "begin_ns", "payload").sort("begin_ns").collect()
    )
    processes, unfinished = [], 0
    for (process,), own in named.sort("process", "begin_ns", maintain_order=True).group_by(
        "process", maintain_order=True
    ):
        steps, left = _of_process(int(str(process)), _outermost(own), began.filter(pl.col("process") == process))
        processes.append(steps)
        unfinished += left
    sources = named["source"].cast(pl.String).unique().to_list()
    by = tuple(one for one in (FoundBy.ANNOTATION, FoundBy.NVTX) if one.value in sources)
    return FoundSteps(by or (FoundBy.ANNOTATION,), _names(named), tuple(processes), unfinished)


_COLUMNS = ("process", "name", "begin_ns", "end_ns", "is_step", "source", "category", "payload", "payload_type")


def _named(spans: pl.LazyFrame, pattern: str | None) -> pl.DataFrame:
    is_named = pl.col("is_step")
    if pattern is not None:
        wanted = _compiled(pattern)
        names = spans.select(pl.col("name").cast(pl.String).unique()).collect().to_series().to_list()
        matching = [name for name in names if wanted.fullmatch(name)]
        is_named |= (pl.col("what") == "range") & pl.col("name").cast(pl.String).is_in(matching)
    return spans.filter(is_named).select(_COLUMNS).collect()


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--step {pattern!r} is no regular expression: {error}", hint="--step 'decode.*'") from error


def _names(named: pl.DataFrame) -> tuple[str, ...]:
    counted = named.group_by(pl.col("name").cast(pl.String)).len().sort("len", "name", descending=[True, False])
    return tuple(counted["name"].head(_MOST_NAMES).to_list())


def _outermost(own: pl.DataFrame) -> pl.DataFrame:
    """Steps of one process that no other one contains."""
    own = own.sort("begin_ns", "end_ns", descending=[False, True])
    end = own["end_ns"].to_numpy()
    reach = np.maximum.accumulate(end)
    is_outer = np.ones(len(end), np.bool_)
    is_outer[1:] = end[1:] > reach[:-1]
    return own.filter(pl.Series(is_outer))


def _of_process(process: int, own: pl.DataFrame, began: pl.DataFrame) -> tuple[ProcessSteps, int]:
    """Its steps, and how many more had begun."""
    begin, end = own["begin_ns"].to_numpy(), own["end_ns"].to_numpy()
    said, number = began["begin_ns"].to_numpy(), began["payload"].to_numpy().astype(np.int64)
    # What says that a step began lies right before it.
    at = np.searchsorted(said, begin, side="right") - 1
    is_said = (at >= 0) & (np.diff(at, prepend=-1) > 0)
    is_numbered = len(said) > 0 and bool(is_said.all() and (np.diff(number[at]) > 0).all())
    after = said[said > begin[-1]]
    last = int(after[0]) if len(after) else int(end[-1])
    numbers = number[at] if is_numbered else np.arange(len(begin))
    # Between steps that do not follow each other, others were not recorded.
    follows = np.append(np.diff(numbers) == 1, [True])
    until = np.where(follows, np.append(begin[1:], last), end)
    is_annotated = (own["is_step"] & (own["source"] == "annotation")).to_list()
    counts = [
        (payload if kind == Payload.STEP else None)
        for payload, kind in zip(own["payload"].to_list(), own["payload_type"].to_list(), strict=True)
    ]
    steps = ProcessSteps(
        process=process,
        number=numbers,
        begin_ns=begin,
        end_ns=np.minimum(end, until),  # steps of two threads may overlap
        until_ns=until,
        kind=tuple(
            _KINDS.get(AnnotatedStep(category)) if known and category in set(AnnotatedStep) else None
            for known, category in zip(is_annotated, own["category"].to_list(), strict=True)
        ),
        tokens=tuple(_count(payload, 0) for payload in counts),
        batch=tuple(_count(payload, _HALF) for payload in counts),
        has_ends=True,
    )
    return steps, len(after)


def _count(payload: int | None, shift: int) -> int | None:
    """One of the two counts in a step's payload, None where the program gave none."""
    if payload is None:
        return None
    found = payload >> shift & UNSAID_COUNT
    return None if found == UNSAID_COUNT else found


def _launched(launches: pl.DataFrame) -> FoundSteps | None:
    """Steps from launches of graphs. A program that launches several of them in turn begins a step with the first."""
    processes = []
    for (process,), own in launches.sort("process", "begin_ns").group_by("process", maintain_order=True):
        graph = own["payload"].to_numpy()
        begin = own["begin_ns"].to_numpy()
        if len(begin) > 1 and float(np.mean(graph[1:] == graph[:-1])) < _REPEATED:
            ids, first, counts = np.unique(graph, return_index=True, return_counts=True)
            often = counts >= counts.max()
            begin = begin[graph == graph[first[often].min()]] if len(ids) > 1 else begin
        if len(begin) < 2:
            continue
        none = (None,) * (len(begin) - 1)
        processes.append(
            ProcessSteps(
                process=int(str(process)),
                number=np.arange(len(begin) - 1),
                begin_ns=begin[:-1],
                end_ns=begin[1:],
                until_ns=begin[1:],
                kind=none,
                tokens=none,
                batch=none,
                has_ends=False,
            )
        )
    return FoundSteps((FoundBy.GRAPH,), _names(launches), tuple(processes), 0) if processes else None


def classified(kind: tuple[str | None, ...], operations: Times) -> tuple[str, ...]:
    """Kinds of steps; those without one are decode unless they move much more than the steps around them do."""
    usual = pl.Series(operations.astype(np.float64)).rolling_median(RUNNING, min_samples=1, center=True).to_numpy()
    is_usual = operations <= PREFILL * usual
    return tuple(
        said if said is not None else "decode" if likely else UNCLASSIFIED
        for said, likely in zip(kind, is_usual.tolist(), strict=True)
    )
