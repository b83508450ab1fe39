"""A small Mixture-of-Experts transformer with random weights: attention on every rank, experts shared out over them.

Weights follow from (seed, name), so every rank makes its own without talking, and any number of ranks makes the same
model. A forward takes a batch of tokens, each with its cache slot and position: prompt chunks and decode are one code.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Protocol

import torch
from moe_rank import VOCABULARY
from torch.nn import functional

if TYPE_CHECKING:
    from moe_rank import Shape


class Exchange(Protocol):
    """How tokens come to the experts of other ranks and the answers back; shapes as in torch.ops.efaprof."""

    def dispatch(
        self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, layer: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows received, their choices among this rank's experts (−1: not here), weights, counts by source."""

    def combine(self, y: torch.Tensor, tokens: int, layer: int) -> torch.Tensor:
        """Weighted sums for the tokens of the last dispatch."""


def weight(seed: int, name: str, *size: int) -> torch.Tensor:
    """The weight of this name."""
    key = hashlib.sha256(f"{seed} {name}".encode()).digest()[:8]
    generator = torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)
    return torch.randn(*size, generator=generator) / math.sqrt(size[-2] if len(size) > 1 else 1.0)


class Attention:
    """Causal attention over a cache of keys and values."""

    def __init__(self, shape: Shape, name: str) -> None:
        hidden = shape.hidden
        self._heads = shape.heads
        self._into = weight(shape.seed, f"{name} qkv", hidden, 3 * hidden)
        self._out = weight(shape.seed, f"{name} out", hidden, hidden)
        self._cache = torch.zeros(2, shape.slots, shape.length, shape.heads, hidden // shape.heads)

    def __call__(self, x: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Each token looks at its slot's tokens up to its own position."""
        query, key, value = (x @ self._into).view(len(x), 3, self._heads, -1).unbind(1)
        self._cache[0, slots, positions], self._cache[1, slots, positions] = key, value
        seen = int(positions.max()) + 1
        keys, values = self._cache[0, slots, :seen], self._cache[1, slots, :seen]
        scores = torch.einsum("thd,tshd->ths", query, keys) / math.sqrt(query.shape[-1])
        is_later = torch.arange(seen)[None, :] > positions[:, None]
        scores = scores.masked_fill(is_later[:, None, :], -math.inf).softmax(-1)
        return torch.einsum("ths,tshd->thd", scores, values).reshape(len(x), -1) @ self._out


class Experts:
    """The experts of one rank."""

    def __init__(self, shape: Shape, name: str, own: range) -> None:
        hidden = shape.hidden
        self._up = [weight(shape.seed, f"{name} up {expert}", hidden, 2 * hidden) for expert in own]
        self._down = [weight(shape.seed, f"{name} down {expert}", 2 * hidden, hidden) for expert in own]

    def __call__(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """y[row, k] is what expert chosen[row, k] makes of x[row]; 0 where that is −1."""
        y = x.new_zeros(*chosen.shape, x.shape[1])
        for expert in sorted(set(chosen[chosen >= 0].tolist())):
            rows, choices = (chosen == expert).nonzero(as_tuple=True)
            y[rows, choices] = functional.silu(x[rows] @ self._up[expert]) @ self._down[expert]
        return y


class Model:
    """One rank's part of the model."""

    def __init__(self, shape: Shape, rank: int, ranks: int, exchange: Exchange) -> None:
        self.shape, self._exchange = shape, exchange
        per_rank = shape.experts // ranks
        own = range(rank * per_rank, (rank + 1) * per_rank)
        layers = range(shape.layers)
        self._embedding = weight(shape.seed, "embedding", VOCABULARY, shape.hidden) * 4
        self._positions = weight(shape.seed, "positions", shape.length, shape.hidden) * 4
        self._attention = [Attention(shape, f"attention {layer}") for layer in layers]
        self._routers = [weight(shape.seed, f"router {layer}", shape.hidden, shape.experts) for layer in layers]
        self._experts = [Experts(shape, f"experts {layer}", own) for layer in layers]
        self._head = weight(shape.seed, "head", shape.hidden, VOCABULARY)

    def forward(self, tokens: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits of the token after each of these; none is a batch too: the other ranks need this one's experts."""
        x = self._embedding[tokens] + self._positions[positions]
        for layer in range(self.shape.layers):
            if len(x):
                x = x + self._attention[layer](_normed(x), slots, positions)
            x = x + self._mixture(_normed(x), layer)
        return _normed(x) @ self._head

    def _mixture(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        probabilities = (x @ self._routers[layer]).softmax(-1)
        weights, experts = probabilities.topk(self.shape.topk, dim=-1)
        # In order of the experts' numbers: sums come out the same however the experts are shared out.
        experts, order = experts.sort(dim=-1)
        weights = weights.gather(-1, order)
        received, chosen, _, _ = self._exchange.dispatch(x, experts, weights / weights.sum(-1, keepdim=True), layer)
        return self._exchange.combine(self._experts[layer](received, chosen), len(x), layer)


def _normed(x: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, x.shape[-1:])
