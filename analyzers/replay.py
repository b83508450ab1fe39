"""What a change would buy: the recorded events again, in their order, with some of their times taken out (METHOD §2).

Every queue and window is kept; what began later than everything it followed keeps that lag, so the unmodified replay
gives the recorded times exactly. Steps follow each other in a replay: what is gained in one is not lost in the next.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.analyzers.stamps import LABEL, Stamp
from efaprof.errors import UsageError
from efaprof.native_graph import NONE, Scenario
from efaprof.trace.layers import Layer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from efaprof.analyzers.graph import StepGraph

HOST = (Layer.RING, Layer.PROXY, Layer.LIBFABRIC)  # what posting from the GPU could buy
ISSUE = (Layer.KERNEL, *HOST)
RECEIVE = (Layer.RX, Layer.POLL)
GROUPS: dict[str, tuple[Layer, ...]] = {"host": HOST, "issue": ISSUE, "receive": RECEIVE}
FENCE = "fence"
PROXIES = "proxies"
# Layers that a replay can take out. Skew is what others do; what nobody explains cannot be taken out.
REPLAYED = (
    Layer.COMPUTE, Layer.KERNEL, Layer.RING, Layer.PROXY, Layer.LIBFABRIC, Layer.NIC, Layer.RX, Layer.POLL,
)  # fmt: skip
_MOST_PROXIES = 64


@dataclass(frozen=True, slots=True)
class Change:
    """One scenario with its name."""

    name: str
    scenario: Scenario


def scaled(name: str, layers: Sequence[Layer], factor: float = 0.0) -> Change:
    """The layers' times on every rank multiplied by a factor."""
    return Change(name, Scenario({LABEL[layer]: factor for layer in layers}))


# Operations no longer wait for the completions of earlier ones before they are issued; everything else stays.
WITHOUT_FENCES = Change(FENCE, Scenario(free_stage=Stamp.FENCED))
# What every report says.
STANDARD: tuple[Change, ...] = (
    *(scaled(layer.value, (layer,)) for layer in REPLAYED),
    *(scaled(name, layers) for name, layers in GROUPS.items()),
    WITHOUT_FENCES,
)


def parse_change(text: str) -> Change:
    """A change as it is typed: `proxy=0`, `nic=x0.5`, `host=0`, `fence=0`, `proxies=2`; UsageError for any other."""
    name, _, value = text.partition("=")
    if name == FENCE and value == "0":
        return Change(text, WITHOUT_FENCES.scenario)
    if name == PROXIES and value.isdecimal() and 1 <= int(value) <= _MOST_PROXIES:
        return Change(text, Scenario(servers=int(value)))
    layers = GROUPS.get(name) or tuple(layer for layer in REPLAYED if layer.value == name)
    factor = 0.0 if value == "0" else float(value[1:]) if re.fullmatch(r"x\d*\.?\d+", value) else None
    if not layers or factor is None:
        known = ", ".join([*(layer.value for layer in REPLAYED), *GROUPS])
        raise UsageError(
            f"--what-if {text} is no change that can be replayed",
            hint=f"write LAYER=0 or LAYER=x0.5 (layers: {known}), fence=0, or proxies=2",
        )
    return scaled(text, layers, factor)


def recoverable(graph: StepGraph, changes: Sequence[Change]) -> pl.DataFrame:
    """One row per (rank, step) that is not context: `<name>_recoverable_ns`, the recorded time less the replayed.

    Rank-local; a single row may be negative when a step began earlier than it could go on, their sum is not.
    """
    own = [(one.rank, one.numbers[~one.is_context]) for one in graph.ranks]
    rows = {"rank": np.repeat([rank for rank, _ in own], [len(steps) for _, steps in own])}
    return pl.DataFrame({**rows, "step": np.concatenate([steps for _, steps in own]), **saved_ns(graph, changes)})


def saved_ns(graph: StepGraph, changes: Sequence[Change]) -> dict[str, NDArray[np.int64]]:
    """The columns of `recoverable`, by rank and time."""
    marks = np.concatenate([own.marks for own in graph.ranks])
    times = _replay(graph, changes, marks)
    begins = np.concatenate([np.append(~own.is_context, False) for own in graph.ranks])  # the last one ends
    steps = np.flatnonzero(begins)
    recorded = graph.events.events.time[marks]
    lengths = (recorded[steps + 1] - recorded[steps])[:, None] - (times[steps + 1] - times[steps])
    return {f"{change.name}_recoverable_ns": lengths[:, number] for number, change in enumerate(changes)}


def replayed(graph: StepGraph, change: Change) -> NDArray[np.int64]:
    """Times of all events in the scenario, ns."""
    times: NDArray[np.int64] = _replay(graph, [change], np.arange(len(graph.events.events.time)))[:, 0]
    return times


def _replay(graph: StepGraph, changes: Sequence[Change], nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    return graph.events.replay(graph.frozen, [_scenario(graph, change) for change in changes], nodes)


def _scenario(graph: StepGraph, change: Change) -> Scenario:
    """The change's scenario; where no operation was fenced, there is no such stage."""
    scenario = change.scenario
    if scenario.free_stage != NONE and scenario.free_stage >= graph.stamps.stages:
        return Scenario(scenario.scale, NONE, scenario.servers)
    return scenario
