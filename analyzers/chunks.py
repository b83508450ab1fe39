"""Gaps between streamed chunks: k-fold gaps unfolded into tokens, percentiles, and the gaps that are stalls.

A server that falls behind puts several tokens into one chunk; the client then sees one k-fold gap instead of k gaps.
The number of tokens is known, so gaps are unfolded until the missing tokens are placed. What is still longer than
five steps is a candidate stall; it is a *stall* when it hits two requests within one step, else a lone gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

STALL_STEPS = 5.0  # a gap this many times the usual step is a candidate
MAX_CANDIDATES = 1 << 20  # 24 MiB of candidates; more are counted, not kept

# Log-spaced bins of 0.5 % from 100 ns to 10 000 s: percentiles in bounded memory, whatever the number of gaps.
_BIN = np.log(1.005)
_LOWEST_MS = 1e-4
_BINS = int(np.ceil(np.log(1e7 / _LOWEST_MS) / _BIN)) + 1


@dataclass(frozen=True, slots=True)
class Stalls:
    """Pauses that hit several requests at once. `excess_ms` sums what each hit request lost beyond one step."""

    events: int
    hits: int
    excess_ms: float
    lone_gaps: int  # long gaps of one request only: the client or its network, not the server's step


@dataclass(frozen=True, slots=True)
class ChunkStats:
    """Chunks of all used requests of one cell."""

    gaps: int
    coalesced_chunks: int  # chunks that held more than one token
    coalesced_tokens: int  # tokens in them beyond the first
    unplaced_tokens: int  # missing tokens that no long gap explains (they came together with others)
    surplus_chunks: int  # chunks beyond the tokens: they held none
    p50_ms: float | None  # of the unfolded gaps, ±0.25 %
    p99_ms: float | None
    long_gaps: int  # candidates for a stall
    stalls: Stalls | None  # None: the export has no times, so nothing says which gaps coincide
    candidates_not_kept: int


def unfold(gaps_ms: Floats, step_ms: float, missing_tokens: int) -> NDArray[np.int64]:
    """Tokens in each gap: 1, or k for a k-fold gap while tokens are missing, the longest gaps first."""
    tokens = np.ones(len(gaps_ms), np.int64)
    if missing_tokens <= 0 or step_ms <= 0:
        return tokens
    extra = np.maximum(np.rint(gaps_ms / step_ms).astype(np.int64) - 1, 0)
    order = np.argsort(-gaps_ms, kind="stable")
    taken = np.minimum(np.cumsum(extra[order]), missing_tokens)
    tokens[order] += np.diff(taken, prepend=0)
    return tokens


class ChunkLog:
    """Collects the gaps of one request after another; memory does not grow with the number of gaps."""

    def __init__(self) -> None:
        self._histogram = np.zeros(_BINS, np.int64)
        self._gaps = self._coalesced_chunks = self._coalesced_tokens = self._unplaced = self._not_kept = 0
        self._surplus = 0
        self._times: list[NDArray[np.int64]] = []
        self._excess: list[Floats] = []
        self._requests: list[NDArray[np.int64]] = []
        self._kept = 0
        self._step_sum_ms = 0.0
        self._steps = 0
        self._long = 0
        self._has_times = True

    def add(self, *, request: int, first_token_ns: int | None, gaps_ms: Floats, tokens: int, itl_ms: float) -> None:
        """One request: its chunk gaps, output tokens, mean ITL, and when its first chunk came (None: not known)."""
        if not len(gaps_ms):
            return
        # Coalescing inflates the median, a stall the mean: the lesser is the step.
        step_ms = min(float(np.partition(gaps_ms, len(gaps_ms) // 2)[len(gaps_ms) // 2]), itl_ms)
        missing = tokens - 1 - len(gaps_ms)
        per_gap = unfold(gaps_ms, step_ms, missing)
        placed = int(per_gap.sum()) - len(gaps_ms)
        self._gaps += len(gaps_ms)
        self._coalesced_chunks += int((per_gap > 1).sum())
        self._coalesced_tokens += placed
        self._unplaced += max(missing - placed, 0)
        self._surplus += max(-missing, 0)
        self._step_sum_ms += step_ms
        self._steps += 1
        bins = np.log(np.maximum(gaps_ms / per_gap, _LOWEST_MS) / _LOWEST_MS) / _BIN
        np.add.at(self._histogram, np.minimum(bins.astype(np.int64), _BINS - 1), per_gap)
        excess = gaps_ms - per_gap * step_ms
        long = np.flatnonzero(excess > (STALL_STEPS - 1) * step_ms)
        self._long += len(long)
        if first_token_ns is None:
            self._has_times = False
        elif len(long):
            ends_ns = first_token_ns + (np.cumsum(gaps_ms)[long] * 1e6).astype(np.int64)
            self._keep(ends_ns, excess[long], request)

    def _keep(self, ends_ns: NDArray[np.int64], excess_ms: Floats, request: int) -> None:
        room = MAX_CANDIDATES - self._kept
        self._not_kept += max(len(ends_ns) - room, 0)
        self._kept += min(len(ends_ns), room)
        self._times.append(ends_ns[:room])
        self._excess.append(excess_ms[:room])
        self._requests.append(np.full(min(len(ends_ns), room), request, np.int64))

    def finish(self) -> ChunkStats | None:
        """The cell's chunk statistics; None when no request had chunk gaps."""
        if not self._gaps:
            return None
        return ChunkStats(
            gaps=self._gaps,
            coalesced_chunks=self._coalesced_chunks,
            coalesced_tokens=self._coalesced_tokens,
            unplaced_tokens=self._unplaced,
            surplus_chunks=self._surplus,
            p50_ms=self._percentile(0.50),
            p99_ms=self._percentile(0.99),
            long_gaps=self._long,
            stalls=self._stalls() if self._has_times else None,
            candidates_not_kept=self._not_kept,
        )

    def _percentile(self, share: float) -> float | None:
        total = int(self._histogram.sum())
        if not total:
            return None
        index = int(np.searchsorted(np.cumsum(self._histogram), share * total))
        return float(_LOWEST_MS * np.exp((index + 0.5) * _BIN))

    def _stalls(self) -> Stalls:
        if not self._times:
            return Stalls(0, 0, 0.0, 0)
        step_ns = int(self._step_sum_ms / self._steps * 1e6)
        return group_stalls(
            np.concatenate(self._times), np.concatenate(self._excess), np.concatenate(self._requests), step_ns
        )


def group_stalls(ends_ns: NDArray[np.int64], excess_ms: Floats, requests: NDArray[np.int64], step_ns: int) -> Stalls:
    """Candidates that end within one step of their neighbour are one event; from two requests on it is a stall."""
    order = np.argsort(ends_ns, kind="stable")
    ends_ns, excess_ms, requests = ends_ns[order], excess_ms[order], requests[order]
    event = np.concatenate(([0], np.cumsum(np.diff(ends_ns) > step_ns)))
    pairs = np.unique(np.stack((event, requests)), axis=1)
    hit_by = np.bincount(pairs[0], minlength=int(event[-1]) + 1)
    is_stall = hit_by >= 2
    in_stall = is_stall[event]
    return Stalls(
        events=int(is_stall.sum()),
        hits=int(in_stall.sum()),
        excess_ms=float(excess_ms[in_stall].sum()),
        lone_gaps=int((~in_stall).sum()),
    )
