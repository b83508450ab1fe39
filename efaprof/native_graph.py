"""Graphs of events in native code: an order, walks and replays (native/include/efaprof/replay.h says what they mean).

Every call releases the GIL. The arrays belong to the caller; a graph keeps them alive.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from efaprof import native

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Times = NDArray[np.int64]
    Ids = NDArray[np.int32]

LABELS, STAGES = 16, 16
NONE = -1
WINDOW = np.dtype([("low", "<i8"), ("start", "<i4"), ("rank", "<i4")])
WALKED = np.dtype(
    [
        ("ns", "<i8", LABELS),
        ("walked", "<f8", STAGES),
        ("late_own_ns", "<i8"),
        ("clip_ns", "<i8"),
        ("late_rank", "<i4"),
        ("operation", "<i4"),
    ]
)
_OUT_OF_MEMORY = (1 << 64) - 1
_POINTERS = {
    "time": "int64_t *", "before": "int32_t *", "also": "int32_t *", "gate_first": "int32_t *",
    "gate_also": "int32_t *", "label": "uint8_t *", "lane": "int16_t *", "compute_first": "int64_t *",
    "compute_begin": "int64_t *", "compute_end": "int64_t *", "compute_before": "int64_t *",
    "starts_ring": "uint8_t *", "service_ns": "int64_t *", "sent_before": "int32_t *",
}  # fmt: skip
_NUMBERS = (
    "operations", "stages", "gate_base", "seen_stage", "return_stage", "done_stage",
    "compute_label", "late_label", "idle_label", "missing_label",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """The arrays of a graph, as struct efaprof_graph has them."""

    time: Times
    before: Ids
    also: Ids
    gate_first: Ids
    gate_also: Ids
    label: NDArray[np.uint8]
    lane: NDArray[np.int16]
    compute_first: Times
    compute_begin: Times
    compute_end: Times
    compute_before: Times
    starts_ring: NDArray[np.uint8]
    service_ns: Times | None
    operations: int
    stages: int
    gate_base: int
    seen_stage: int
    return_stage: int
    done_stage: int
    compute_label: int
    late_label: int
    idle_label: int
    missing_label: int
    sent_before: Ids | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a replay changes: factors of lags by label, a stage that waits for nothing else, servers in a row."""

    scale: dict[int, float] = field(default_factory=dict)
    free_stage: int = NONE
    servers: int = 1


class EventGraph:
    """A graph in native hands; nodes are put into an order, predecessors first, when a replay needs it."""

    def __init__(self, events: Events) -> None:
        """Take the arrays; they must not change from here on."""
        self.events = events
        self.cut_edges = 0  # edges that closed a circle: stamps that contradict each other
        self._order: tuple[NDArray[np.uint32], Any] | None = None  # and where it is, in native hands
        graph = native.ffi().new("struct efaprof_graph *")
        for name in _NUMBERS:
            setattr(graph, name, getattr(events, name))
        graph.nodes, graph.gates = len(events.time), len(events.gate_first) - 1
        for name, pointer in _POINTERS.items():
            setattr(graph, name, address(getattr(events, name), pointer))
        self._native = graph

    def order(self) -> NDArray[np.uint32]:
        """All nodes, predecessors first; edges that close circles are cut from `events`, and counted."""
        return self._ordered()[0]

    def _ordered(self) -> tuple[NDArray[np.uint32], Any]:
        if self._order is None:
            nodes = len(self.events.time)
            order, found = np.empty(nodes, np.uint32), native.ffi().new("struct efaprof_order *")
            place, is_far = np.empty(nodes, np.uint32), np.empty(nodes, np.uint8)
            found.order, found.place = address(order, "uint32_t *"), address(place, "uint32_t *")
            found.is_far = address(is_far, "uint8_t *")
            self._kept = order, place, is_far
            cut = int(native.library().efaprof_graph_order(self._native, found))
            if cut == _OUT_OF_MEMORY:
                raise MemoryError
            self.cut_edges, self._order = cut, (order, found)
        return self._order

    def walk(self, windows: NDArray[np.void], visited: NDArray[np.uint8]) -> NDArray[np.void]:
        """WALKED for each WINDOW; operations walked over are marked in `visited`."""
        results = np.empty(len(windows), WALKED)
        native.library().efaprof_graph_walk(
            self._native, address(windows, "void *"), len(windows), address(results, "void *"),
            address(visited, "uint8_t *"),
        )  # fmt: skip
        return results

    def replay(self, frozen: NDArray[np.uint8], scenarios: Sequence[Scenario], nodes: Times) -> Times:
        """Times of these nodes in each scenario, nodes x scenarios."""
        asked = native.ffi().new("struct efaprof_scenario[]", len(scenarios))
        for own, scenario in zip(asked, scenarios, strict=True):
            for label in range(LABELS):
                own.scale[label] = scenario.scale.get(label, 1.0)
            own.free_stage, own.servers = scenario.free_stage, scenario.servers
        _, order = self._ordered()
        times = np.empty((len(nodes), len(scenarios)), np.int64)
        failed = native.library().efaprof_graph_replays(
            self._native, order, address(frozen, "uint8_t *"), asked, len(scenarios),
            address(nodes, "int64_t *"), len(nodes), address(times, "int64_t *"),
        )  # fmt: skip
        if failed:
            raise MemoryError
        return times


def address(values: NDArray[Any] | None, pointer: str) -> Any:
    """Where an array's first cell is, for native code; NULL for none. BufferError where it is not contiguous."""
    if values is None:
        return native.ffi().NULL
    return native.ffi().from_buffer(_array(pointer), values)


@cache
def _array(pointer: str) -> Any:
    """Type of the cells that a pointer leads to, as many as there are."""
    pointed = pointer.removesuffix("*").strip()
    return native.ffi().typeof("char[]" if pointed == "void" else f"{pointed}[]")
