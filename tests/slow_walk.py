"""The rank-local walk written a second time, slowly, from the simulated system and not from its tables.

Each question "what did this wait for" is answered by looking at all events; nothing is shared with the analysis.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fifo_systems import Operation, System


def slow_walk(system: System, rank: int) -> Counter[str]:
    """Nanoseconds of each layer of the only step of one rank."""
    walker = _Walker(system, rank)
    lane = system.lanes[rank]
    gates = [event for event in lane.events if event[0] == "gate"]
    low = 0
    for gate in gates:
        walker.gate(gate, low)
        low = gate[2]
    walker.own_lane(lane.end, low, "idle")
    return walker.total


class _Walker:
    def __init__(self, system: System, rank: int) -> None:
        self.system, self.rank = system, rank
        self.total: Counter[str] = Counter()
        self.low = 0

    def charge(self, layer: str, begin: int, end: int) -> int:
        """Add the part of [begin, end) above the window's low end; returns where the walk is now."""
        begin = max(begin, self.low)
        if end > begin:
            self.total[layer] += end - begin
        return begin

    def gate(self, gate, low: int) -> None:
        self.low = low
        _, begin, end, kind, _, _, released = gate
        ready = released.at["told" if kind == "flush" else "signal"]
        if ready <= begin:
            self.charge("poll", begin, end)
            self.own_lane(begin, low, "idle")
            return
        self.charge("poll", ready, end)
        if kind == "flush":
            self.told(released)
        else:
            self.signal(released)

    def own_lane(self, time: int, low: int, rest: str) -> None:
        """What this rank did by itself in [low, time)."""
        self.low = low
        later = ""
        for event in reversed(self.system.lanes[self.rank].events):
            begin, end = (event[1].at["enter"], event[1].at["publish"]) if event[0] == "issue" else event[1:3]
            if end > time:
                continue
            self.charge("kernel" if event[0] == later == "issue" else rest, end, time)
            if end <= low:
                return
            self.charge({"compute": "compute", "issue": "kernel", "gate": "poll"}[event[0]], begin, end)
            time, later = begin, event[0]
            if time <= low:
                return
        self.charge(rest, low, time)

    # ---- along one operation
    def signal(self, one: Operation) -> None:
        before = [other for other in self.system.operations
                  if (other.peer, other.proxy) == (one.peer, one.proxy)
                  and other.at["signal"] < one.at["signal"]]  # fmt: skip
        previous = max(before, key=lambda other: other.at["signal"], default=None)
        if previous is not None and previous.at["signal"] > one.at["arrival"]:
            self.charge("rx", previous.at["signal"], one.at["signal"])
            if previous.at["signal"] > self.low:
                self.signal(previous)
            return
        self.charge("rx", one.at["arrival"], one.at["signal"])
        self.charge("nic", one.at["return"], one.at["arrival"])
        self.returned(one)

    def told(self, one: Operation) -> None:
        previous = self.before(one)
        if previous is not None and previous.at["told"] > one.at["done"]:
            self.charge("proxy", previous.at["told"], one.at["told"])
            if previous.at["told"] > self.low:
                self.told(previous)
            return
        self.charge("proxy", one.at["done"], one.at["told"])
        self.done(one)

    def done(self, one: Operation) -> None:
        self.charge("nic", one.at["return"], one.at["done"])
        self.returned(one)

    def returned(self, one: Operation) -> None:
        if one.at["return"] <= self.low:
            return
        self.charge("libfabric", one.at["call"], one.at["return"])
        self.charge("proxy", one.at.get("fenced", one.at["seen"]), one.at["call"])
        if "fenced" in one.at and self.fenced(one):
            return
        self.seen(one)

    def fenced(self, one: Operation) -> bool:
        """True when the walk went on through an earlier operation's completion."""
        if one.at["fenced"] <= self.low:
            return True
        earlier = [other for other in self.system.operations
                   if (other.rank, other.proxy, other.peer) == (one.rank, one.proxy, one.peer)
                   and other.seq < one.seq]  # fmt: skip
        last = max(earlier, key=lambda other: other.at["done"], default=None)
        if last is None or last.at["done"] <= one.at["seen"]:
            self.charge("nic", one.at["seen"], one.at["fenced"])
            return False
        self.charge("nic", last.at["done"], one.at["fenced"])
        if last.at["done"] > self.low:
            self.done(last)
        return True

    def seen(self, one: Operation) -> None:
        if one.at["seen"] <= self.low:
            return
        previous = self.before(one)
        if previous is not None and previous.at["return"] > one.at["publish"]:
            self.charge("ring", previous.at["return"], one.at["seen"])
            self.returned(previous)
            return
        self.charge("ring", one.at["publish"], one.at["seen"])
        self.issued(one)

    def issued(self, one: Operation) -> None:
        if one.at["publish"] <= self.low:
            return
        self.charge("kernel", one.at["enter"], one.at["publish"])
        if one.at["enter"] <= self.low:
            return
        events = self.system.lanes[one.rank].events
        index = next(i for i, event in enumerate(events) if event[0] == "issue" and event[1] is one)
        if index and events[index - 1][0] == "issue":
            previous = events[index - 1][1]
            self.charge("kernel", previous.at["publish"], one.at["enter"])
            self.issued(previous)
        elif one.rank == self.rank:
            self.own_lane(one.at["enter"], self.low, "idle")
        else:
            self.away(one.at["enter"])

    def away(self, time: int) -> None:
        computing = sum(
            max(0, min(event[2], time) - max(event[1], self.low))
            for event in self.system.lanes[self.rank].events
            if event[0] == "compute"
        )
        self.total["compute"] += computing
        self.total["skew"] += time - self.low - computing

    def before(self, one: Operation) -> Operation | None:
        return next((other for other in self.system.operations
                     if (other.rank, other.proxy, other.seq) == (one.rank, one.proxy, one.seq - 1)), None)  # fmt: skip
