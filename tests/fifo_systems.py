"""Random dispatch of some ranks, simulated event by event: lanes, rings, proxies, NICs, receivers, gates.

A rank has one ring or two; what one of them does happens at even times, what the other one does at odd ones.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hand_made import HandMade
from hypothesis import strategies as st

from efaprof.trace.layout import RINGS_APART

if TYPE_CHECKING:
    from efaprof.trace.widerow import DispatchChunk

# Services are never zero: two events at one time could be walked in either order.
SERVICE = st.integers(1, 40)
LATENCY = st.integers(1, 90)


@dataclass
class Operation:
    """One operation: who sent it to whom in which phase, through which of the rank's rings, and its stamps."""

    rank: int
    proxy: int
    seq: int
    peer: int
    layer: int
    phase: str
    kind: str
    wire_seq: int
    is_fenced: bool
    at: dict[str, int] = field(default_factory=dict)


@dataclass
class Lane:
    """What a rank does in order: ("compute", b, e), ("issue", operation), ("gate", b, e, kind, layer, phase, by)."""

    rank: int
    events: list[tuple] = field(default_factory=list)
    end: int = 0


@dataclass
class System:
    """One step of all ranks, as it was simulated."""

    ranks: int
    lanes: list[Lane]
    operations: list[Operation]

    def chunk(self) -> DispatchChunk:
        """The tables of that step."""
        made = HandMade(unit=1)
        for lane in self.lanes:
            made.step(lane.rank, 0, lane.end)
            for event in lane.events:
                if event[0] == "compute":
                    made.compute(lane.rank, event[1], event[2])
                elif event[0] == "gate":
                    _, begin, end, kind, layer, phase, released = event
                    signal = released.at["told" if kind == "flush" else "signal"]
                    made.wait(lane.rank, begin, end, source=released.rank, seq=released.wire_seq, layer=layer,
                              phase=phase, kind=kind, channel=released.proxy, signal=signal)  # fmt: skip
        for one in self.operations:
            made.operation(
                one.rank, one.seq, one.peer, ring=RINGS_APART * one.proxy + one.rank, channel=one.proxy,
                layer=one.layer, phase=one.phase, kind=one.kind, wire_seq=one.wire_seq, is_fenced=one.is_fenced,
                **one.at,
            )  # fmt: skip
        return made.chunk()


class _Simulation:
    """Draws times as they are needed; every rank advances phase by phase, so causes come before effects."""

    def __init__(self, draw, ranks: int, proxies: int, *, has_fences: bool) -> None:
        self.draw, self.ranks, self.proxies, self.has_fences = draw, ranks, proxies, has_fences
        self.lanes = [Lane(rank) for rank in range(ranks)]
        self.operations: list[Operation] = []
        self.now = [0] * ranks
        # Of each (rank, proxy).
        self.busy: Counter[tuple[int, int]] = Counter()
        self.receiver: Counter[tuple[int, int]] = Counter()
        self.told: Counter[tuple[int, int]] = Counter()
        # Of each (rank, peer, proxy).
        self.wire: Counter[tuple[int, int, int]] = Counter()
        self.arrived: Counter[tuple[int, int, int]] = Counter()

    def later(self, time: int, service: st.SearchStrategy[int], proxy: int) -> int:
        """When a service ends that begins at `time`: at a time of that proxy's own."""
        end: int = time + self.draw(service)
        return end + (proxy - end) % self.proxies

    def compute(self, rank: int) -> None:
        begin = self.now[rank] + self.draw(st.integers(0, 5))
        end = begin + self.draw(LATENCY)
        self.lanes[rank].events.append(("compute", begin, end))
        self.now[rank] = end

    def issue(self, rank: int, peer: int, proxy: int, layer: int, phase: str, kind: str) -> None:
        wire, own = self.wire[rank, peer, proxy], (rank, proxy)
        self.wire[rank, peer, proxy] += 1
        mine = [one for one in self.operations if (one.rank, one.proxy) == own]
        is_fenced = self.has_fences and kind == "signal"
        one = Operation(rank, proxy, len(mine), peer, layer, phase, kind, wire, is_fenced)
        at = one.at
        at["enter"] = self.now[rank] + self.draw(st.integers(0, 5))
        at["publish"] = self.now[rank] = at["enter"] + self.draw(SERVICE)
        at["seen"] = self.later(max(at["publish"], self.busy[own]), SERVICE, proxy)
        ready = at["seen"]
        if is_fenced:
            waits_for = [other.at["done"] for other in mine if other.peer == peer]
            ready = at["fenced"] = self.later(max([at["seen"], *waits_for]), st.integers(1, 3), proxy)
        at["call"] = ready + self.draw(SERVICE)
        at["return"] = self.busy[own] = self.later(at["call"], SERVICE, proxy)
        at["done"] = self.later(at["return"], LATENCY, proxy)
        at["told"] = self.told[own] = self.later(max(at["done"], self.told[own]), st.integers(1, 9), proxy)
        at["arrival"] = self.later(at["return"], LATENCY, proxy)
        self.operations.append(one)
        self.lanes[rank].events.append(("issue", one))

    def receive(self, layer: int, phase: str) -> None:
        """Hand over what was sent in this phase, one after the other at each receiver, in order on each wire."""
        new = [one for one in self.operations if (one.layer, one.phase) == (layer, phase) and "signal" not in one.at]
        for rank, proxy in itertools.product(range(self.ranks), range(self.proxies)):
            inbound, own = [], (rank, proxy)
            for one in (one for one in new if (one.peer, one.proxy) == own):
                key = (one.rank, rank, proxy)
                self.arrived[key] = max(self.arrived[key], one.at["arrival"])
                inbound.append((self.arrived[key], one.rank, one.wire_seq, one))
            for due, _, _, one in sorted(inbound, key=lambda item: item[:3]):
                self.receiver[own] = one.at["signal"] = self.later(max(due, self.receiver[own]), SERVICE, proxy)

    def gate(self, rank: int, kind: str, layer: int, phase: str) -> None:
        begin = self.now[rank] + self.draw(st.integers(0, 5))
        if kind == "flush":
            waited = [one for one in self.operations if one.rank == rank]
            stamp = "told"
        else:
            wanted = "barrier" if kind == "barrier" else "signal"
            waited = [one for one in self.operations
                      if (one.peer, one.layer, one.phase, one.kind) == (rank, layer, phase, wanted)]  # fmt: skip
            stamp = "signal"
        if not waited:
            return
        last = max(waited, key=lambda one: one.at[stamp])
        end = max(begin, last.at[stamp]) + self.draw(st.integers(1, 9))
        self.lanes[rank].events.append(("gate", begin, end, kind, layer, phase, last))
        self.now[rank] = end


@st.composite
def systems(draw, *, has_fences: bool | None = None) -> System:
    """One step: some layers, each with dispatch and combine, between two to four ranks with one or two proxies."""
    ranks, layers = draw(st.integers(2, 4)), draw(st.integers(1, 2))
    fences = draw(st.booleans()) if has_fences is None else has_fences
    run = _Simulation(draw, ranks, draw(st.integers(1, 2)), has_fences=fences)
    for layer in range(layers):
        for phase in ("dispatch", "combine"):
            _phase(draw, run, layer, phase)
    for lane in run.lanes:
        lane.end = run.now[lane.rank] + draw(st.integers(0, 20))
    return System(ranks, run.lanes, run.operations)


def _phase(draw, run: _Simulation, layer: int, phase: str) -> None:
    everyone = range(run.ranks)
    for rank in everyone:
        if draw(st.booleans()):
            run.compute(rank)
        for peer in everyone:
            if peer == rank:
                continue
            for _ in range(draw(st.integers(0, 3))):
                run.issue(rank, peer, draw(st.integers(0, run.proxies - 1)), layer, phase, "put")
    if phase == "combine":
        for rank in everyone:
            run.gate(rank, "flush", layer, phase)
    for rank in everyone:
        for peer, proxy in itertools.product(everyone, range(run.proxies)):
            if peer != rank:
                run.issue(rank, peer, proxy, layer, phase, "signal")
        if draw(st.booleans()):
            run.compute(rank)
    run.receive(layer, phase)
    for rank in everyone:
        run.gate(rank, "poll", layer, phase)
