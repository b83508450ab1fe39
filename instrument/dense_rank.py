"""One rank of `bench dispatch --path dense`: steps of the control arm, every token checked against what it must be."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from efaprof.errors import EfaprofError
from efaprof.instrument.dense import Dense
from efaprof.instrument.ops.engine import EngineOptions, StepKind
from efaprof.instrument.ops.operators import TORCH_DTYPES
from efaprof.instrument.routing import mix, step_experts

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

GLOO, NCCL = "gloo", "nccl"
TIMEOUT_S = 30  # of a collective
_TABLE = 1 << 20  # random elements; a token is a stretch of them
_SCALES = 4  # an expert multiplies by a power of two: exact in every type
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2.0**-6}  # of a sum, relative to that of its parts' amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseJob:
    """What all ranks have in common."""

    device: str  # cpu or cuda
    dtype: str
    ranks: int
    layers: int
    tokens: int  # per rank and step
    hidden: int
    topk: int
    experts: int  # over all ranks
    compute_us: int
    steps: int
    warmup: int
    seed: int
    late_us: tuple[float, ...]  # of each rank, in every layer
    backend: str  # of torch.distributed
    rendezvous: str  # file through which the ranks meet


@dataclass(frozen=True, slots=True)
class Done:
    """What a rank did."""

    wall_ns: int  # of the steps that count, without what lies between them
    verified: int  # tokens, warm-up included


class Mismatch(EfaprofError):
    """Data came that was not sent."""


def run(job: DenseJob, rank: int, pipe: Connection) -> None:
    """The rank's whole life; a `Done` goes into the pipe."""
    torch.set_num_threads(1)
    try:
        pipe.send(_Rank(job, rank).run())
    except (EfaprofError, RuntimeError) as error:
        sys.stderr.write(f"efaprof: rank {rank} (pid {os.getpid()}): {str(error).splitlines()[0]}\n")
        sys.stderr.flush()
        os._exit(1)  # a process group whose ranks are gone cannot be left in order


@dataclass(frozen=True, slots=True)
class _Given:
    """One layer's tokens of all ranks: what goes in, and what their experts make of them."""

    x: torch.Tensor  # [rank, token, element]
    experts: torch.Tensor  # [rank, token, choice]
    weights: torch.Tensor


class _Rank:
    def __init__(self, job: DenseJob, rank: int) -> None:
        self._job, self._rank = job, rank
        self._device = _device(job, rank)
        is_nccl = job.backend == NCCL
        dist.init_process_group(
            job.backend, init_method=f"file://{job.rendezvous}", rank=rank, world_size=job.ranks,
            timeout=timedelta(seconds=TIMEOUT_S), device_id=self._device if is_nccl else None,
        )  # fmt: skip
        self._options = EngineOptions(
            rank=rank, ranks=job.ranks, tokens=job.tokens, hidden=job.hidden, topk=job.topk, experts=job.experts,
            dtype=job.dtype,
        )  # fmt: skip
        staged = ", staged through host memory" if job.device == "cuda" and not is_nccl else ""
        self._dense = Dense(self._options, emulated=f"nic: {job.backend} on one host{staged}")
        generator = torch.Generator().manual_seed(job.seed)
        table = torch.randn(_TABLE + job.hidden, generator=generator).to(TORCH_DTYPES[job.dtype])
        self._table = table.to(self._device)
        self._scales = torch.tensor([2.0 ** -(expert % _SCALES) for expert in range(job.experts)], device=self._device)
        self._compute_s = (job.compute_us + job.late_us[rank]) / 1e6

    def run(self) -> Done:
        job, verified, wall = self._job, 0, 0
        dist.barrier()
        for step in range(job.warmup + job.steps):
            given = self._given(step)
            kind = StepKind.PAUSE if step < job.warmup else StepKind.DECODE
            begin = time.perf_counter_ns()
            self._dense.begin_step(2 * step, kind)
            moved = [self._layer(layer, one) for layer, one in enumerate(given)]
            self._dense.end_step()
            wall += time.perf_counter_ns() - begin if kind is StepKind.DECODE else 0
            self._dense.begin_step(2 * step + 1, StepKind.PAUSE)  # what is done between steps belongs to none
            for layer, (one, (received, combined)) in enumerate(zip(given, moved, strict=True)):
                self._check(step, layer, one, received, combined)
                verified += job.tokens
            self._dense.verified(verified)
        self._dense.close()
        dist.destroy_process_group()
        return Done(wall, verified)

    def _given(self, step: int) -> list[_Given]:
        job = self._job
        experts = step_experts(
            seed=job.seed, step=step, layers=job.layers, ranks=job.ranks, tokens=job.tokens, topk=job.topk,
            experts=job.experts,
        )  # fmt: skip
        return [self._of_layer(step, layer, experts[layer]) for layer in range(job.layers)]

    def _of_layer(self, step: int, layer: int, experts: NDArray[np.int64]) -> _Given:
        job = self._job
        place = (np.uint64(step) << np.uint64(32)) | np.uint64(layer * job.ranks * job.tokens)
        first = mix(place + np.arange(job.ranks * job.tokens, dtype=np.uint64)) % np.uint64(_TABLE)
        at = torch.from_numpy(first.astype(np.int64)).to(self._device)[:, None]
        x = self._table[at + torch.arange(job.hidden, device=self._device)]
        # Weights of a token add up to one.
        shares = torch.arange(1, job.topk + 1, dtype=torch.float32, device=self._device)
        weights = (shares / shares.sum()).expand(job.ranks, job.tokens, job.topk)
        return _Given(
            x.view(job.ranks, job.tokens, job.hidden), torch.from_numpy(experts).to(self._device), weights.contiguous()
        )

    def _layer(self, layer: int, given: _Given) -> tuple[torch.Tensor, torch.Tensor]:
        """What this rank received, and what it got back."""
        own, dense = self._rank, self._dense
        if self._compute_s:
            time.sleep(self._compute_s)
        x, experts, _, _ = dense.dispatch(given.x[own], given.experts[own], given.weights[own], layer)
        first = own * (self._job.experts // self._job.ranks)
        scales = self._scales[(experts.long() + first).clamp(0, self._job.experts - 1)].to(x.dtype)
        y = x[:, None, :] * scales[:, :, None]
        return x, dense.combine(y, self._job.tokens, layer)

    def _check(self, step: int, layer: int, given: _Given, received: torch.Tensor, combined: torch.Tensor) -> None:
        """Bit for bit what was sent; sums within what the type can hold."""
        where = f"step {step}, layer {layer}"
        if not torch.equal(received.view(given.x.shape), given.x):
            raise Mismatch(f"{where}: tokens came that were not sent")
        own = self._rank
        factor = (given.weights[own].double() * self._scales[given.experts[own]].double()).sum(-1, keepdim=True)
        parts = given.x[own].double() * factor
        error = (combined.double() - parts).abs() - _TOLERANCE[combined.dtype] * parts.abs()
        if bool((error > torch.finfo(combined.dtype).tiny).any()) or not bool(combined.isfinite().all()):
            raise Mismatch(f"{where}: sums are wrong by more than {combined.dtype} rounds")


def _device(job: DenseJob, rank: int) -> torch.device:
    if job.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
