"""A small Mixture-of-Experts transformer with random weights: attention on every rank, experts shared out over them.

Weights follow from (seed, name), so every rank makes its own without talking, and any number of ranks makes the same
model. A forward takes a batch of tokens, each with its cache slot and position: prompt chunks and decode are one code.

On a GPU (`Place`) every shape is the same in every step and nothing is asked back in between: memory and kernels that a
rehearsal has seen are all that a step needs. Experts and what travels to them are bfloat16 there, the rest is float32.
"""

from __future__ import annotations

import hashlib
import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from moe_rank import VOCABULARY
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moe_rank import Shape

    from efaprof.instrument.ops import EngineOptions


class Exchange(Protocol):
    """How tokens come to the experts of other ranks and the answers back; shapes as in torch.ops.efaprof."""

    def dispatch(
        self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, layer: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows received, their choices among this rank's experts (−1: not here), weights, counts by source."""

    def combine(self, y: torch.Tensor, tokens: int, layer: int) -> torch.Tensor:
        """Weighted sums for the tokens of the last dispatch."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the model computes, and the type of what travels to experts."""

    device: torch.device
    dtype: torch.dtype
    is_static: bool  # shapes do not depend on data


HOST = Place(torch.device("cpu"), torch.float32, is_static=False)


class Rehearsal:
    """An exchange with nobody, in the shapes of a real one."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options

    def dispatch(
        self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, _layer: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Nothing has come."""
        rows, options = self._options.rows, self._options
        return (
            x.new_zeros((rows, options.hidden)),
            experts.new_zeros((rows, options.topk), dtype=torch.int32),
            weights.new_zeros((rows, options.topk)),
            experts.new_zeros((options.ranks,), dtype=torch.int32),
        )

    def combine(self, y: torch.Tensor, tokens: int, _layer: int) -> torch.Tensor:
        """Any result."""
        return y.new_empty((tokens, self._options.hidden)).zero_()


def weight(seed: int, name: str, *size: int) -> torch.Tensor:
    """The weight of this name."""
    key = hashlib.sha256(f"{seed} {name}".encode()).digest()[:8]
    generator = torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)
    return torch.randn(*size, generator=generator) / math.sqrt(size[-2] if len(size) > 1 else 1.0)


class Attention:
    """Causal attention over a cache of keys and values."""

    def __init__(self, shape: Shape, name: str, place: Place) -> None:
        hidden = shape.hidden
        self._heads, self._is_static, self._length = shape.heads, place.is_static, shape.length
        self._into = weight(shape.seed, f"{name} qkv", hidden, 3 * hidden).to(place.device)
        self._out = weight(shape.seed, f"{name} out", hidden, hidden).to(place.device)
        size = (2, shape.slots + 1, shape.length, shape.heads, hidden // shape.heads)  # the last slot is nobody's
        self._cache = torch.zeros(size, device=place.device)

    def __call__(self, x: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Each token looks at its slot's tokens up to its own position."""
        query, key, value = (x @ self._into).view(len(x), 3, self._heads, -1).unbind(1)
        self._cache[0, slots, positions], self._cache[1, slots, positions] = key, value
        seen = self._length if self._is_static else int(positions.max()) + 1
        keys, values = self._cache[0, slots, :seen], self._cache[1, slots, :seen]
        scores = torch.einsum("thd,tshd->ths", query, keys) / math.sqrt(query.shape[-1])
        is_later = torch.arange(seen, device=x.device)[None, :] > positions[:, None]
        scores = scores.masked_fill(is_later[:, None, :], -math.inf).softmax(-1)
        return torch.einsum("ths,tshd->thd", scores, values).reshape(len(x), -1) @ self._out


class Experts:
    """The experts of one rank."""

    def __init__(self, shape: Shape, name: str, own: range, place: Place) -> None:
        hidden = shape.hidden
        up = [weight(shape.seed, f"{name} up {expert}", hidden, 2 * hidden) for expert in own]
        down = [weight(shape.seed, f"{name} down {expert}", 2 * hidden, hidden) for expert in own]
        self._is_static = place.is_static
        self._up = torch.stack(up).to(place.device, place.dtype)
        self._down = torch.stack(down).to(place.device, place.dtype)

    def __call__(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """y[row, k] is what expert chosen[row, k] makes of x[row]; 0 where that is −1."""
        return self._of_all(x, chosen) if self._is_static else self._of_chosen(x, chosen)

    def _of_all(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Every expert works on every row: more arithmetic, but the shapes are known before the rows are."""
        made = functional.silu(x.expand(len(self._up), *x.shape) @ self._up) @ self._down
        rows = torch.arange(len(x), device=x.device)[:, None]
        return made[chosen.clamp(min=0).long(), rows].masked_fill((chosen < 0)[:, :, None], 0)

    def _of_chosen(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        y = x.new_zeros(*chosen.shape, x.shape[1])
        for expert in sorted(set(chosen[chosen >= 0].tolist())):
            rows, choices = (chosen == expert).nonzero(as_tuple=True)
            y[rows, choices] = functional.silu(x[rows] @ self._up[expert]) @ self._down[expert]
        return y


class Model:
    """One rank's part of the model."""

    def __init__(self, shape: Shape, rank: int, ranks: int, exchange: Exchange, place: Place = HOST) -> None:
        self.shape, self.place, self.exchange = shape, place, exchange
        per_rank = shape.experts // ranks
        own = range(rank * per_rank, (rank + 1) * per_rank)
        layers = range(shape.layers)
        self._embedding = weight(shape.seed, "embedding", VOCABULARY, shape.hidden).to(place.device) * 4
        self._positions = weight(shape.seed, "positions", shape.length, shape.hidden).to(place.device) * 4
        self._attention = [Attention(shape, f"attention {layer}", place) for layer in layers]
        routers = [weight(shape.seed, f"router {layer}", shape.hidden, shape.experts) for layer in layers]
        self._routers = [router.to(place.device) for router in routers]
        self._experts = [Experts(shape, f"experts {layer}", own, place) for layer in layers]
        self._head = weight(shape.seed, "head", shape.hidden, VOCABULARY).to(place.device)

    def forward(self, tokens: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, count: int) -> torch.Tensor:
        """Logits of the token after each of these; the first `count` are tokens, the others fill the shape.

        None is a batch too: the other ranks need this one's experts.
        """
        x = self._embedding[tokens] + self._positions[positions]
        for layer in range(self.shape.layers):
            if len(x):
                x = x + self._attention[layer](_normed(x), slots, positions)
            answers = self._mixture(_normed(x), layer, count)
            x = x + answers if len(answers) == len(x) else torch.cat([x[:count] + answers, x[count:]])
        return _normed(x) @ self._head

    def rehearse(self, options: EngineOptions, batches: list[list[torch.Tensor]]) -> None:
        """Forward for each number of tokens without the other ranks: loads kernels, takes memory."""
        with self.through(Rehearsal(options)):
            for count, batch in enumerate(batches):
                self.forward(batch[0], batch[1], batch[2], count).argmax(-1).tolist()

    @contextmanager
    def through(self, exchange: Exchange) -> Iterator[None]:
        """Tokens go through another exchange inside."""
        usual, self.exchange = self.exchange, exchange
        try:
            yield
        finally:
            self.exchange = usual

    def _mixture(self, x: torch.Tensor, layer: int, count: int) -> torch.Tensor:
        probabilities = (x @ self._routers[layer]).softmax(-1)
        weights, experts = probabilities.topk(self.shape.topk, dim=-1)
        # In order of the experts' numbers: sums come out the same however the experts are shared out.
        experts, order = experts.sort(dim=-1)
        weights = weights.gather(-1, order)
        weights = weights / weights.sum(-1, keepdim=True)
        given = x.to(self.place.dtype)
        received, chosen, _, _ = self.exchange.dispatch(given[:count], experts[:count], weights[:count], layer)
        return self.exchange.combine(self._experts[layer](received, chosen), count, layer).to(x.dtype)


def _normed(x: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, x.shape[-1:])
