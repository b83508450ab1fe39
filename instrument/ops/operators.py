"""Schemas of torch.ops.efaprof and the shapes that follow from them; each device registers kernels for the same names.

    dispatch(x, experts, weights, engine, layer) → recv_x, recv_experts, recv_weights, received
    combine(y, tokens, engine, layer) → out

Shapes do not depend on data, so that the operators can be traced and captured: a dispatch receives `ranks · tokens`
rows, those of source rank r from row `r · tokens` on, of which the first `received[r]` are tokens. `recv_experts` is an
expert's number among this rank's own, −1 where a choice is of another rank or the row is empty. `y[row, k]` is what
expert `recv_experts[row, k]` made of `recv_x[row]`; combine weights it, and adds up in order of k and of ranks.
Dispatch and combine of a layer talk to the other ranks: every rank makes the same calls in the same order.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from efaprof.errors import UsageError
from efaprof.instrument.ops import registry

if TYPE_CHECKING:
    from efaprof.instrument.ops.engine import EngineOptions

NAMESPACE = "efaprof"
TORCH_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.bfloat16}  # of tensors, not on the wire
_DISPATCH = (
    "dispatch(Tensor x, Tensor experts, Tensor weights, int engine, int layer)"
    " -> (Tensor recv_x, Tensor recv_experts, Tensor recv_weights, Tensor received)"
)
_COMBINE = "combine(Tensor y, SymInt tokens, int engine, int layer) -> Tensor"

Received = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@cache
def define() -> Any:
    """The operators, without kernels for any device, as a torch.library.Library; made once."""
    make: Any = torch.library.Library  # torch gives its methods no types
    library = make(NAMESPACE, "DEF")
    library.define(_DISPATCH)
    library.define(_COMBINE)
    torch.library.register_fake(f"{NAMESPACE}::dispatch", empty_received, lib=library)
    torch.library.register_fake(f"{NAMESPACE}::combine", empty_result, lib=library)
    return library


def empty_received(x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, engine: int, layer: int) -> Received:
    """Room for what a dispatch receives, zeroed; UsageError when the engine is not for such tensors."""
    options = registry.find(engine).options
    _check(x, experts, weights, options)
    return (
        x.new_zeros((options.rows, options.hidden)),
        experts.new_zeros((options.rows, options.topk), dtype=torch.int32),
        weights.new_zeros((options.rows, options.topk)),
        experts.new_zeros((options.ranks,), dtype=torch.int32),
    )


def empty_result(y: torch.Tensor, tokens: int, engine: int, layer: int) -> torch.Tensor:
    """Room for what a combine gives; UsageError when the engine is not for such a tensor."""
    options = registry.find(engine).options
    wanted = (options.rows, options.topk, options.hidden)
    if tuple(y.shape) != wanted or y.dtype is not TORCH_DTYPES[options.dtype]:
        raise UsageError(f"combine takes {options.dtype} of shape {wanted}, not {y.dtype} of {tuple(y.shape)}")
    return y.new_empty((tokens, options.hidden))


def _check(x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, options: EngineOptions) -> None:
    if x.dim() != 2 or x.shape[1] != options.hidden or x.dtype is not TORCH_DTYPES[options.dtype]:
        raise UsageError(
            f"dispatch takes {options.dtype} tokens of {options.hidden} elements, not {x.dtype} of {tuple(x.shape)}"
        )
    shape = (x.shape[0], options.topk)
    if tuple(experts.shape) != shape or experts.dtype is not torch.int64:
        raise UsageError(
            f"dispatch takes int64 experts of shape {shape}, not {experts.dtype} of {tuple(experts.shape)}"
        )
    if tuple(weights.shape) != shape or weights.dtype is not torch.float32:
        raise UsageError(f"dispatch takes float32 weights of shape {shape}, not {weights.dtype}")
