"""Ranks of the dispatch library in threads of this process, over arrays."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from efaprof.instrument.ops.engine import Engine, EngineOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

Result = TypeVar("Result")
OPTIONS = EngineOptions(rank=0, ranks=2, tokens=6, hidden=40, topk=2, experts=8, channels=2, timeout_s=20)


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits of bfloat16, rounded to the nearest with ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Their values."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True)
class Received:
    """What a dispatch gave."""

    x: NDArray[np.float32]
    experts: NDArray[np.int32]
    weights: NDArray[np.float32]
    counts: NDArray[np.int32]


class Rank:
    """An engine that takes and gives arrays of float32, whatever its dtype."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.options = engine, engine.options
        self._is_bf16 = engine.options.dtype == "bf16"

    def _stored(self, values: NDArray[np.float32]) -> NDArray[np.generic]:
        values = np.ascontiguousarray(values, np.float32)
        return to_bf16(values) if self._is_bf16 else values

    def _read(self, values: NDArray[np.generic]) -> NDArray[np.float32]:
        return from_bf16(values) if self._is_bf16 else values  # type: ignore[arg-type, return-value]

    def dispatch(
        self, layer: int, x: NDArray[np.float32], experts: NDArray[np.int64], weights: NDArray[np.float32]
    ) -> Received:
        rows, topk = self.options.rows, self.options.topk
        into = np.zeros((rows, self.options.hidden), np.uint16 if self._is_bf16 else np.float32)
        chosen, factors = np.zeros((rows, topk), np.int32), np.zeros((rows, topk), np.float32)
        counts = np.zeros(self.options.ranks, np.int32)
        given = [self._stored(x), np.ascontiguousarray(experts, np.int64), np.ascontiguousarray(weights, np.float32)]
        self.engine.dispatch(
            layer, len(x), tuple(one.ctypes.data for one in given),
            tuple(one.ctypes.data for one in (into, chosen, factors, counts)),
        )  # fmt: skip
        return Received(self._read(into), chosen, factors, counts)

    def combine(self, y: NDArray[np.float32], tokens: int) -> NDArray[np.float32]:
        stored = self._stored(y)
        result = np.zeros((tokens, self.options.hidden), np.uint16 if self._is_bf16 else np.float32)
        self.engine.combine(stored.ctypes.data, result.ctypes.data)
        return self._read(result)


@contextmanager
def ranks(options: EngineOptions = OPTIONS) -> Iterator[list[Rank]]:
    """All ranks of a job, connected; closed together at the end."""
    engines = [Engine(replace(options, rank=rank)) for rank in range(options.ranks)]
    try:
        contacts = [engine.contact() for engine in engines]
        for engine in engines:
            engine.connect(contacts)
        yield [Rank(engine) for engine in engines]
    finally:
        with ThreadPoolExecutor(len(engines)) as pool:
            list(pool.map(Engine.close, engines))


def together(of: list[Rank], do: Callable[[Rank], Result]) -> list[Result]:
    """What each rank makes of it, all at the same time."""
    with ThreadPoolExecutor(len(of)) as pool:
        return list(pool.map(do, of))
