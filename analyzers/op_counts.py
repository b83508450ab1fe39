"""Network operations and bytes that a dispatch and its combine cost, per layer and rank, from the libraries' sources.

A sanity row beside measured counts (METHOD §6), never a substitute: every figure here is derived or assumed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from efaprof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

TAIL_BYTES = 32  # a signal travels as a 32-byte send
ATOMIC_BYTES = 8
DIRECT_FIXED_OPS = 88.0  # barrier, notify and tails of the direct mode in a world of 16 ranks
DIRECT_RANKS = 16


class Dtype(StrEnum):
    """Type of the dispatched activations; combine is always bf16."""

    FP8 = "fp8"
    BF16 = "bf16"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a decode step asks of the dispatch library. Counts are per rank."""

    name: str
    layers: int  # layers with experts
    hidden: int
    experts: int
    topk: int = 8
    dtype: Dtype = Dtype.FP8
    ranks: int = 16
    nodes: int = 2
    tokens: float = 1.0  # decoded tokens per rank and step
    channels: int = 48  # num_sms × channels per SM

    def with_tokens(self, tokens: float) -> Shape:
        """The same model at another load."""
        return replace(self, tokens=tokens)

    @property
    def dispatch_bytes(self) -> int:
        """One dispatched token: activations, scales of 128-blocks (fp8), and the aligned top-k fields."""
        body = self.hidden + self.hidden // 32 if self.dtype is Dtype.FP8 else 2 * self.hidden
        return body + 128

    @property
    def combine_bytes(self) -> int:
        """One combined token: bf16 activations and the aligned fields."""
        return 2 * self.hidden + 64

    @property
    def remote_nodes_reached(self) -> float:
        """Expected number of other nodes that one token's experts lie on."""
        return (self.nodes - 1) * _reached(self.experts, self.experts // self.nodes, self.topk)

    @property
    def remote_ranks_reached(self) -> float:
        """Expected number of ranks on other nodes that one token's experts lie on."""
        remote = self.ranks - self.ranks // self.nodes
        return remote * _reached(self.experts, self.experts // self.ranks, self.topk)


PRESETS: Mapping[str, Shape] = {
    "qwen3-30b-a3b": Shape("qwen3-30b-a3b", layers=48, hidden=2048, experts=128),
    "deepseek-v3": Shape("deepseek-v3", layers=58, hidden=7168, experts=256),
}


@dataclass(frozen=True, slots=True)
class OpCount:
    """Operations and wire bytes of one layer on one rank, by kind; `formula` says where they come from."""

    by_kind: Mapping[str, float]
    wire_bytes: float
    formula: str

    @property
    def per_layer(self) -> float:
        """All kinds together."""
        return sum(self.by_kind.values())


def _reached(experts: int, hosted: int, topk: int) -> float:
    """Chance that at least one of `topk` distinct experts of `experts` is among `hosted` given ones."""
    return 1.0 - math.comb(experts - hosted, topk) / math.comb(experts, topk)


def hybrid(shape: Shape) -> OpCount:
    """DeepEP V2, hybrid mode (its default): one write per token and node, signals per channel, barriers."""
    reached = shape.remote_nodes_reached
    notify = TAIL_BYTES + 2 * shape.experts  # the two of four that leave the rank: 32 and 4·E/2 bytes
    data = reached * shape.tokens * (shape.dispatch_bytes + shape.combine_bytes)
    return OpCount(
        by_kind={
            "dispatch barrier": 2.0,
            "dispatch notify": 4.0,
            "dispatch data": reached * shape.tokens,
            "dispatch tails": float(shape.channels),
            "combine barrier": 2.0,
            "combine data": reached * shape.tokens,
            "combine tails": float(shape.channels),
        },
        wire_bytes=data + notify + 2 * shape.channels * TAIL_BYTES,
        formula=f"8 + {2 * reached:.2f}·T + 2·C",
    )


def direct(shape: Shape) -> OpCount:
    """DeepEP V2, direct mode: one write per token and remote rank. Its fixed part is known for 16 ranks only."""
    if shape.ranks != DIRECT_RANKS:
        raise UsageError(
            f"the direct mode's fixed operations are known for {DIRECT_RANKS} ranks, not {shape.ranks}",
            hint="give --ops-per-layer, or use --mode hybrid",
        )
    reached = shape.remote_ranks_reached
    return OpCount(
        by_kind={
            "fixed": DIRECT_FIXED_OPS,
            "dispatch data": reached * shape.tokens,
            "combine data": reached * shape.tokens,
        },
        wire_bytes=reached * shape.tokens * (shape.dispatch_bytes + shape.combine_bytes)
        + DIRECT_FIXED_OPS * TAIL_BYTES,
        formula=f"{DIRECT_FIXED_OPS:.0f} + {2 * reached:.1f}·T",
    )


def low_latency(shape: Shape) -> OpCount:
    """DeepEP V1 low-latency over NVSHMEM IBGDA: one put per token and expert, one atomic per expert and direction."""
    remote = 1.0 - 1.0 / shape.nodes
    puts, atomics = remote * shape.topk * shape.tokens, remote * shape.experts
    dispatched = shape.hidden + shape.hidden // 32 + 16
    return OpCount(
        by_kind={
            "dispatch data": puts,
            "dispatch counts": atomics,
            "combine data": puts,
            "combine flags": atomics,
        },
        wire_bytes=puts * (dispatched + 2 * shape.hidden) + 2 * atomics * ATOMIC_BYTES,
        formula=f"{2 * remote:g}·(topk·T + E)",
    )


def dense(shape: Shape) -> OpCount:
    """The control arm: a bulk gather and a bulk reduce per layer, hierarchical, one message per remote node each."""
    messages = float(shape.nodes - 1)
    return OpCount(
        by_kind={"gather": messages, "reduce": messages},
        wire_bytes=2 * messages * shape.tokens * 2 * shape.hidden,
        formula="2·(nodes − 1)",
    )
