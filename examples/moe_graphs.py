"""Decode steps of a model on a GPU as CUDA graphs, one for each number of tokens: how servers launch them.

An exchange of kernels is captured with the rest of the step. One that the host takes part in stands between two graphs
and is called when they are replayed.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from moe_model import Rehearsal

if TYPE_CHECKING:
    from collections.abc import Callable

    from moe_model import Exchange, Model

    from efaprof.instrument.ops import EngineOptions
    from efaprof.instrument.ops.operators import Received


@dataclass(slots=True)
class Captured:
    """One forward: graphs in their order, and what the host does after each of them but the last."""

    graphs: list[torch.cuda.CUDAGraph] = field(default_factory=list)
    calls: list[Callable[[], None]] = field(default_factory=list)
    made: torch.Tensor | None = None  # successors, where the last graph leaves them

    def replay(self) -> torch.Tensor:
        """Put the forward into the current stream; its result is there when the stream has come so far."""
        for graph, call in zip(self.graphs, self.calls, strict=False):
            graph.replay()
            call()
        self.graphs[-1].replay()
        assert self.made is not None
        return self.made


class Between:
    """An exchange that cannot be captured: a graph ends before it and another begins after it."""

    def __init__(self, exchange: Exchange, options: EngineOptions, capture: Capture) -> None:
        self._exchange, self._room, self._capture = exchange, Rehearsal(options), capture

    def dispatch(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, layer: int) -> Received:
        """Room for what will come; it is filled between the graphs."""
        self._capture.end()
        room = self._room.dispatch(x, experts, weights, layer)

        def call() -> None:
            for into, value in zip(room, self._exchange.dispatch(x, experts, weights, layer), strict=True):
                into.copy_(value)

        self._capture.begin_after(call)
        return room

    def combine(self, y: torch.Tensor, tokens: int, layer: int) -> torch.Tensor:
        """Room for the sums."""
        self._capture.end()
        room = self._room.combine(y, tokens, layer)
        self._capture.begin_after(lambda: room.copy_(self._exchange.combine(y, tokens, layer)))
        return room


class Capture:
    """What is put into the current stream between `begin` and `end`, taken down; memory is the pool's."""

    def __init__(self, pool: Any) -> None:
        self.taken = Captured()
        self._pool = pool

    def begin(self) -> None:
        """Take down from here. torch.cuda.graph() would first give free memory back that later steps need."""
        self.taken.graphs.append(torch.cuda.CUDAGraph())
        self.taken.graphs[-1].capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def begin_after(self, call: Callable[[], Any]) -> None:
        """Take down what follows this call of the host's."""
        self.taken.calls.append(call)
        self.begin()

    def end(self) -> None:
        """Up to here."""
        self.taken.graphs[-1].capture_end()
        _upload(self.taken.graphs[-1])


class DecodeGraphs:
    """Graphs of a model's forward for up to `most` tokens; made while no rank has launched anything that waits."""

    def __init__(self, model: Model, options: EngineOptions, *, most: int, is_capturable: bool) -> None:
        size, device = (3, options.tokens), model.place.device
        self._host = torch.zeros(size, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._inputs = torch.zeros(size, dtype=torch.int64, device=device)
        pool = torch.cuda.graph_pool_handle()
        between = None if is_capturable else options
        self._graphs = [self._capture(model, between, pool, count) for count in range(most + 1)]
        torch.cuda.synchronize()

    def _capture(self, model: Model, between: EngineOptions | None, pool: Any, count: int) -> Captured:
        """For `count` tokens; `between` when the exchange, which has these options, cannot be captured."""
        capture = Capture(pool)
        exchange = Between(model.exchange, between, capture) if between else model.exchange
        with model.through(exchange):
            capture.begin()
            tokens, slots, positions = self._inputs.unbind()
            capture.taken.made = model.forward(tokens, slots, positions, count).argmax(-1)
            capture.end()
        return capture.taken

    def has(self, count: int) -> bool:
        """Whether there is a graph for so many tokens."""
        return count < len(self._graphs)

    def forward(self, rows: list[tuple[int, ...]], count: int) -> torch.Tensor:
        """Successors of these tokens, given with slots and positions; the last ones must have been asked for."""
        self._host.copy_(torch.tensor(rows, dtype=torch.int64))
        self._inputs.copy_(self._host, non_blocking=True)
        return self._graphs[count].replay()


def _upload(graph: torch.cuda.CUDAGraph) -> None:
    """Bring it to the GPU: at its first launch that would wait for kernels of other processes, which wait for us."""
    driver = ctypes.CDLL("libcuda.so.1")
    stream = torch.cuda.current_stream().cuda_stream
    result = driver.cuGraphUpload(ctypes.c_void_p(graph.raw_cuda_graph_exec()), ctypes.c_void_p(stream))
    if result != 0:
        raise RuntimeError(f"cuGraphUpload: CUDA error {result}")
