"""Which expert ranks a token goes to: instrument/protocol/routing.h in numpy, to predict what a run will do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Finaliser of splitmix64, element by element."""
    value = value + _GOLDEN
    value = (value ^ value >> np.uint64(30)) * _FIRST
    value = (value ^ value >> np.uint64(27)) * _SECOND
    return value ^ value >> np.uint64(31)


def step_experts(
    *, seed: int, step: int, layers: int, ranks: int, tokens: int, topk: int, experts: int
) -> NDArray[np.int64]:
    """Experts of every token of one step, shape [layer, rank, token, choice]; those of a token are distinct."""
    layer = np.arange(layers, dtype=np.uint64)[:, None, None]
    rank = np.arange(ranks, dtype=np.uint64)[None, :, None]
    token = np.arange(tokens, dtype=np.uint64)[None, None, :]
    base = mix(np.array([seed], dtype=np.uint64))
    place = mix(base ^ (np.uint64(step) << np.uint64(32) | layer))
    token_hash = mix(place ^ (rank << np.uint64(32) | token))
    chosen = np.empty((layers, ranks, tokens, topk), dtype=np.int64)
    for choice in range(topk):
        expert = (mix(token_hash + np.uint64(choice)) % np.uint64(experts)).astype(np.int64)
        while (taken := (chosen[..., :choice] == expert[..., None]).any(axis=-1)).any():
            expert = np.where(taken, (expert + 1) % experts, expert)
        chosen[..., choice] = expert
    return chosen


def tokens_between_ranks(experts: NDArray[np.int64], *, ranks: int, experts_per_rank: int) -> NDArray[np.int64]:
    """How many tokens each rank sends to each rank, shape [layer, source, target]; own rank included."""
    goes = np.stack([(experts // experts_per_rank == target).any(axis=-1) for target in range(ranks)], axis=-1)
    counts: NDArray[np.int64] = goes.sum(axis=2)
    return counts
