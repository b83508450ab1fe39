"""What a simulated system would have done without some of its times: the recurrences, one event at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from fifo_systems import Operation, System

LAYER_OF = {
    "publish": "kernel", "seen": "ring", "fenced": "nic", "call": "proxy", "return": "libfabric", "arrival": "nic",
    "signal": "rx", "done": "nic", "told": "proxy",
}  # fmt: skip


class SlowReplay:
    """End of each rank's step when the layers in `without` take no time; `fences` off: no fence waits."""

    def __init__(self, system: System, without: Collection[str], *, has_fences: bool = True) -> None:
        self.system, self.without, self.has_fences = system, without, has_fences
        self.known: dict[tuple[int, str], int] = {}
        self.lane_end: dict[tuple[int, int], int] = {}
        self.by_number = {(one.rank, one.proxy, one.seq): one for one in system.operations}

    def end(self, rank: int) -> int:
        """End of the step of one rank."""
        lane = self.system.lanes[rank]
        last = len(lane.events) - 1
        return self.lane(rank, last) + (lane.end - self.recorded_end(rank, last))

    def lag(self, layer: str, recorded: int) -> int:
        return 0 if layer in self.without else recorded

    def recorded_end(self, rank: int, index: int) -> int:
        if index < 0:
            return 0
        event = self.system.lanes[rank].events[index]
        return event[1].at["publish"] if event[0] == "issue" else event[2]

    def lane(self, rank: int, index: int) -> int:
        """When the lane was done with its event."""
        if index < 0:
            return 0
        if (rank, index) not in self.lane_end:
            self.lane_end[rank, index] = self._lane(rank, index)
        return self.lane_end[rank, index]

    def _lane(self, rank: int, index: int) -> int:
        event = self.system.lanes[rank].events[index]
        if event[0] == "issue":
            return self.time(event[1], "publish")
        begin = self.lane(rank, index - 1) + event[1] - self.recorded_end(rank, index - 1)
        if event[0] == "compute":
            return begin + self.lag("compute", event[2] - event[1])
        _, was_begin, was_end, kind, layer, phase, _ = event
        waited, stamp = self.waited(rank, kind, layer, phase, was_begin)
        was_ready = max([was_begin, *(one.at[stamp] for one in waited)])
        return max([begin, *(self.time(one, stamp) for one in waited)]) + self.lag("poll", was_end - was_ready)

    def waited(self, rank: int, kind: str, layer: int, phase: str, begin: int) -> tuple[list[Operation], str]:
        if kind == "flush":
            return [one for one in self.system.operations if one.rank == rank and one.at["publish"] <= begin], "told"
        wanted = "barrier" if kind == "barrier" else "signal"
        return [
            one for one in self.system.operations
            if (one.peer, one.layer, one.phase, one.kind) == (rank, layer, phase, wanted)
        ], "signal"  # fmt: skip

    def time(self, one: Operation, stamp: str) -> int:
        key = (id(one), stamp)
        if key not in self.known:
            self.known[key] = self._time(one, stamp)
        return self.known[key]

    def _time(self, one: Operation, stamp: str) -> int:
        if stamp == "enter":
            return self._enter(one)
        before = self.followed(one, stamp)
        base = max(other.at[name] for other, name in before)
        if stamp == "fenced" and not self.has_fences:
            return self.time(one, "seen")
        moved = max(self.time(other, name) for other, name in before)
        return moved + self.lag(LAYER_OF[stamp], one.at[stamp] - base)

    def _enter(self, one: Operation) -> int:
        events = self.system.lanes[one.rank].events
        index = next(i for i, event in enumerate(events) if event[0] == "issue" and event[1] is one)
        lag = one.at["enter"] - self.recorded_end(one.rank, index - 1)
        is_run = index > 0 and events[index - 1][0] == "issue"
        return self.lane(one.rank, index - 1) + (self.lag("kernel", lag) if is_run else lag)

    def followed(self, one: Operation, stamp: str) -> list[tuple[Operation, str]]:
        """Everything that a stage of an operation waited for."""
        previous = self.by_number.get((one.rank, one.proxy, one.seq - 1))
        if stamp == "publish":
            return [(one, "enter")]
        if stamp == "seen":
            return [(one, "publish")] + ([(previous, "return")] if previous else [])
        if stamp == "fenced":
            return [(one, "seen")] + [
                (other, "done") for other in self.system.operations
                if (other.rank, other.proxy, other.peer) == (one.rank, one.proxy, one.peer) and other.seq < one.seq
            ]  # fmt: skip
        if stamp == "call":
            return [(one, "fenced" if "fenced" in one.at else "seen")]
        if stamp == "return":
            return [(one, "call")]
        if stamp in {"arrival", "done"}:
            return [(one, "return")]
        if stamp == "told":
            return [(one, "done")] + ([(previous, "told")] if previous else [])
        earlier = [other for other in self.system.operations
                   if (other.peer, other.proxy) == (one.peer, one.proxy)
                   and other.at["signal"] < one.at["signal"]]  # fmt: skip
        last = max(earlier, key=lambda other: other.at["signal"], default=None)
        return [(one, "arrival")] + ([(last, "signal")] if last else [])
