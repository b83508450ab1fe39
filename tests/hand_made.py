"""Dispatch chunks written by hand, in microseconds: the worked example of the method, and whatever a test draws."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl

from efaprof.trace import schema
from efaprof.trace.widerow import DispatchChunk

US = 1_000
STAGES = ("enter", "publish", "seen", "fenced", "call", "return", "arrival", "signal", "done", "told")


@dataclass
class HandMade:
    """Rows of the four tables; times are given in units of `unit` nanoseconds."""

    unit: int = US
    steps: list[dict[str, Any]] = field(default_factory=list)
    operations: list[dict[str, Any]] = field(default_factory=list)
    waits: list[dict[str, Any]] = field(default_factory=list)
    computes: list[dict[str, Any]] = field(default_factory=list)

    def step(self, rank: int, begin: int, end: int, *, number: int = 0, kind: str = "decode") -> None:
        """A step of one rank."""
        self.steps.append({"process": rank, "rank": rank, "step": number, "kind": kind, **self._span(begin, end)})

    def compute(self, rank: int, begin: int, end: int) -> None:
        """A stretch of computing."""
        self.computes.append({"process": rank, "rank": rank, "kind": "stand-in", **self._span(begin, end)})

    def operation(
        self, rank: int, seq: int, peer: int, *, ring: int | None = None, step: int = 0, layer: int = 0,
        phase: str = "dispatch", kind: str = "signal", channel: int = 0, wire_seq: int | None = 0,
        is_fenced: bool = False, is_posted: bool = False, **stamps: int | None,
    ) -> None:  # fmt: skip
        """One operation; stamps are named as in STAGES, those not given were not recorded."""
        known = {f"{stage}_ns": None if stamps.get(stage) is None else stamps[stage] * self.unit for stage in STAGES}
        self.operations.append(
            {
                "process": rank, "rank": rank, "ring": rank if ring is None else ring, "seq": seq, "step": step,
                "layer": layer, "phase": phase, "kind": kind, "peer": peer, "channel": channel, "bytes": 64,
                "is_fenced": is_fenced, "is_posted": is_posted, "wire_seq": wire_seq, "eagain": 0, "error": 0,
                "outstanding": 0, "is_held": False, **known,
            }
        )  # fmt: skip

    def wait(
        self, rank: int, begin: int, end: int, *, source: int, seq: int = 0, step: int = 0, layer: int = 0,
        phase: str = "dispatch", kind: str = "poll", channel: int = 0, signal: int | None = None,
    ) -> None:  # fmt: skip
        """A gate."""
        self.waits.append(
            {
                "process": rank, "rank": rank, "step": step, "layer": layer, "phase": phase, "kind": kind,
                "source": source, "channel": channel, "seq": seq, "polls": 1,
                "signal_ns": None if signal is None else signal * self.unit, **self._span(begin, end),
            }
        )  # fmt: skip

    def chunk(self) -> DispatchChunk:
        """The tables."""
        return DispatchChunk(
            steps=pl.DataFrame(self.steps, schema=schema.STEPS),
            operations=pl.DataFrame(self.operations, schema=schema.DISPATCH),
            waits=pl.DataFrame(self.waits, schema=schema.WAITS),
            computes=pl.DataFrame(self.computes, schema=schema.COMPUTES),
        )

    def _span(self, begin: int, end: int) -> dict[str, int]:
        return {"begin_ns": begin * self.unit, "end_ns": end * self.unit}


def worked_example(*, has_local_forward: bool = False) -> DispatchChunk:
    """METHOD's example: rank 0 is A, rank 1 is B. The local forward goes through a ring that no proxy serves."""
    made = HandMade()
    made.step(0, 0, 100)
    made.step(1, 0, 100)
    made.compute(0, 0, 30)
    made.operation(0, 0, 1, kind="put", enter=30, publish=32, seen=38, call=41, **{"return": 43}, arrival=58,
                   signal=58, done=58, told=58)  # fmt: skip
    made.operation(0, 1, 1, wire_seq=1, enter=32, publish=34, seen=43, call=46, **{"return": 48}, arrival=63,
                   signal=63, done=63, told=63)  # fmt: skip
    if has_local_forward:
        made.operation(0, 0, 0, ring=7, enter=34, publish=34, arrival=66, signal=66)
    made.compute(1, 0, 40)
    made.operation(1, 0, 0, enter=40, publish=42, seen=47, call=50, **{"return": 52}, arrival=68, signal=68, done=68,
                   told=68)  # fmt: skip
    made.wait(0, 34, 70, source=1, signal=68)
    made.compute(0, 70, 100)
    return made.chunk()
