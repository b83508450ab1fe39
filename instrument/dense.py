"""The control arm: the same exchange of tokens by bulk collectives of torch.distributed, recorded as path `dense`.

Every rank gathers all tokens of all ranks, runs its own experts on those that chose them, and a reduce-scatter adds the
answers up. Shapes, meaning and arithmetic of what goes in and out are those of torch.ops.efaprof (ops/operators.py).
Tensors on a GPU go through host memory unless the group is NCCL's, which needs a GPU for each rank.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist

from efaprof import env
from efaprof.errors import UsageError
from efaprof.instrument.annotations import span
from efaprof.instrument.ops.operators import TORCH_DTYPES

if TYPE_CHECKING:
    from types import TracebackType

    from efaprof.instrument.ops.engine import EngineOptions, StepKind
    from efaprof.instrument.ops.operators import Received

_GATHER, _SCATTER = 1, 2  # enum efaprof_bulk_phase
_NOBODY = -1  # expert of an empty row
# Newer torch calls them single; the meaning is the same.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Dense:
    """One rank; its process group is there already (`torch.distributed.init_process_group`)."""

    def __init__(self, options: EngineOptions, *, emulated: str | None = None) -> None:
        """Use the default group; `emulated` says in the records what of the fabric is not the real thing."""
        if options.dtype == "fp8":
            raise UsageError("collectives do not move fp8 with its scales", hint="use dtype bf16")
        self.options = options
        self._records = _records(options, emulated)
        self._is_nccl = dist.get_backend() == "nccl"

    def begin_step(self, step: int, kind: StepKind) -> None:
        """What follows belongs to this step."""
        self._records.begin_step(step, int(kind))

    def end_step(self) -> None:
        """The rank has computed all of the step."""
        self._records.end_step()

    def dispatch(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, layer: int) -> Received:
        """What torch.ops.efaprof.dispatch gives."""
        options = self.options
        mine = self._packed(x, experts, weights)
        everyone = mine.new_empty((options.rows, mine.shape[1]))
        everyone = self._together(_all_gather, "all-gather", (layer, _GATHER), everyone, mine)
        received = self._unpacked(everyone)
        self._weights = received[2]
        return received

    def combine(self, y: torch.Tensor, tokens: int, layer: int) -> torch.Tensor:
        """What torch.ops.efaprof.combine gives, for the tokens of the last dispatch."""
        options, weights = self.options, self._weights
        sums = y.new_zeros((options.rows, options.hidden), dtype=torch.float32)
        for choice in range(options.topk):  # in order, as the engine does
            sums += torch.where(weights[:, choice, None] != 0, y[:, choice].float() * weights[:, choice, None], 0.0)
        sums = sums.to(y.dtype)
        mine = sums.new_empty((options.tokens, options.hidden))
        return self._together(_reduce_scatter, "reduce-scatter", (layer, _SCATTER), mine, sums)[:tokens]

    def verified(self, tokens: int) -> None:
        """Say in the records that so many tokens were compared with what they must be so far, and were right."""
        self._records.verified(tokens)

    def close(self) -> None:
        """End the last step in the records."""
        self._records.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _together(
        self, collective: Any, name: str, place: tuple[int, int], into: torch.Tensor, given: torch.Tensor
    ) -> torch.Tensor:
        """Run a collective as one operation of the records: from when this rank has computed `given` to its result."""
        device = given.device
        if given.is_cuda and not self._is_nccl:
            into, given = into.cpu(), given.cpu()  # waits for the GPU
        _finish(given)
        with span(name, layer="nic"):
            self._records.enter(*place)
            collective(into, given)
            _finish(into)
            self._records.leave(min(into.nbytes, given.nbytes))
        return into.to(device)

    def _packed(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """One row of bytes per token, and as many empty ones as make `tokens` of them: elements │ experts │ weights."""
        rows = torch.cat(
            [one.contiguous().view(torch.uint8) for one in (x, experts.to(torch.int32), weights.float())], dim=1
        )
        empty = self.options.tokens - len(rows)
        if not empty:
            return rows
        padding = rows.new_zeros((empty, rows.shape[1]))
        at = x.shape[1] * x.element_size()
        padding[:, at : at + 4 * self.options.topk] = 0xFF  # of every choice: _NOBODY
        return torch.cat([rows, padding])

    def _unpacked(self, rows: torch.Tensor) -> Received:
        options = self.options
        dtype = TORCH_DTYPES[options.dtype]
        first = options.hidden * dtype.itemsize
        second = first + 4 * options.topk
        x = rows[:, :first].contiguous().view(dtype)
        experts = rows[:, first:second].contiguous().view(torch.int32)
        weights = rows[:, second:].contiguous().view(torch.float32)
        per_rank = options.experts // options.ranks
        is_here = (experts != _NOBODY) & (experts // per_rank == options.rank)
        received = (experts[:, 0] != _NOBODY).view(options.ranks, options.tokens).sum(dim=1, dtype=torch.int32)
        return (
            x,
            torch.where(is_here, experts % per_rank, _NOBODY),
            torch.where(is_here, weights, 0.0),
            received,
        )


def _finish(tensor: torch.Tensor) -> None:
    """Return when the GPU has made it."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()


class _Nothing:
    """Records of a process that nobody records."""

    def begin_step(self, step: int, kind: int) -> None:
        """Nothing."""

    def end_step(self) -> None:
        """Nothing."""

    def enter(self, layer: int, phase: int) -> None:
        """Nothing."""

    def leave(self, size: int) -> None:
        """Nothing."""

    def verified(self, tokens: int) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def _records(options: EngineOptions, emulated: str | None) -> Any:
    if not os.environ.get(env.RING_DIR):
        return _Nothing()
    from efaprof.instrument.ops.bulk import BulkRecords

    return BulkRecords(options, emulated)
