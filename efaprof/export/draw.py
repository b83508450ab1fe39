"""Draws a run on a timeline: every table of it, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from efaprof.export.batch import keys_of
from efaprof.export.board import Board
from efaprof.export.dispatch import DispatchTracks
from efaprof.export.groups import Groups
from efaprof.export.meters import EmptyPolls, InFlight, Sampled, draw_counters
from efaprof.export.operations import OperationTracks
from efaprof.export.spans import draw_spans, draw_steps
from efaprof.export.surroundings import ReadTracks, draw_arrivals, draw_device_work, draw_stacks
from efaprof.trace.layout import name_id

if TYPE_CHECKING:
    from efaprof.export.source import RunTables
    from efaprof.export.timeline import Sink


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a picture leaves out or bends."""

    not_drawn: dict[str, int]  # slices that found no free lane, by line
    early_done: int  # completions read before their post returned: drawn with no length
    missing_stamps: int  # of operations that went on all the same: that stage of theirs is not drawn
    counters: Sampled

    def facts(self) -> dict[str, int]:
        """Those that are not zero, for the picture itself."""
        counts = {
            "slices not drawn (no free lane)": sum(self.not_drawn.values()),
            "completions read before their post returned": self.early_done,
            "stages without a record": self.missing_stamps,
            "counters that went back": self.counters.resets,
            "counters that never moved (not drawn)": self.counters.still,
        }
        return {name: count for name, count in counts.items() if count}


def draw(tables: RunTables, sink: Sink) -> Drawn:
    """Put a run on a sink: the program's spans, operations, what arrived, completion-queue reads, counters."""
    window = tables.window or tables.extent()
    keys = keys_of(tables.named()["ops"])
    board = Board(sink)
    dispatching = tables.dispatch.processes if tables.dispatch is not None else frozenset()
    groups = Groups(board, tables.processes, tables.threads, keys, dispatching)
    facts_track = board.track("efaprof run")
    draw_spans(tables, groups)
    draw_steps(tables, groups)
    draw_stacks(tables, groups)
    draw_device_work(tables, groups)
    stages = DispatchTracks(groups, window, name_id(f"dispatch {tables.identity}".encode()))
    if tables.dispatch is not None:
        stages.draw(tables.dispatch)
    operations = OperationTracks(groups, keys, name_id(tables.identity.encode()))
    in_flight = InFlight(window, keys)
    for chunk in tables.chunks("ops", tables.ops):
        operations.draw(chunk)
        in_flight.add(chunk)
    operations.finish()
    draw_arrivals(tables, groups)
    reads, empty_polls = ReadTracks(groups), EmptyPolls(window)
    for chunk in tables.chunks("reads", tables.reads):
        reads.draw(chunk)
        empty_polls.add(chunk)
    in_flight.draw(groups)
    empty_polls.draw(groups)
    sampled = draw_counters(tables, groups)
    drawn = Drawn(board.not_drawn, operations.early_done, stages.missing, sampled)
    facts = tables.facts | {"slices": sink.written.slices} | drawn.facts()
    sink.facts(facts_track, window.start_ns, "efaprof run", facts)
    return drawn
