"""Kernels of torch.ops.efaprof for tensors in host memory: libefaprof-moe.so on their addresses."""

from __future__ import annotations

from functools import cache

import torch

from efaprof.errors import UsageError
from efaprof.instrument.ops import operators, registry
from efaprof.instrument.ops.engine import Engine


@cache
def register() -> None:
    """Make these the CPU's kernels; once."""
    library = operators.define()
    library.impl("dispatch", _dispatch, "CPU")
    library.impl("combine", _combine, "CPU")


def _engine(number: int) -> Engine:
    engine = registry.find(number)
    if not isinstance(engine, Engine):
        raise UsageError(f"engine {number} is not for tensors in host memory")
    return engine


def _dispatch(
    x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, engine: int, layer: int
) -> operators.Received:
    received = operators.empty_received(x, experts, weights, engine, layer)
    x, experts, weights = x.contiguous(), experts.contiguous(), weights.contiguous()
    rows, chosen, factors, counts = (tensor.data_ptr() for tensor in received)
    given = (x.data_ptr(), experts.data_ptr(), weights.data_ptr())
    _engine(engine).dispatch(layer, x.shape[0], given, (rows, chosen, factors, counts))
    return received


def _combine(y: torch.Tensor, tokens: int, engine: int, layer: int) -> torch.Tensor:
    result = operators.empty_result(y, tokens, engine, layer)
    y = y.contiguous()
    _engine(engine).combine(y.data_ptr(), result.data_ptr())
    return result
