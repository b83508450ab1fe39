"""Continuous batching: which tokens of which sequences every rank works on in the next step."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from dataclasses import dataclass, field

from moe_rank import Step, Work


@dataclass(slots=True)
class Sequence:
    """One request on its way: its prompt, what was made of it, where its cache lies."""

    prompt: list[int]
    most: int  # tokens to make
    made: list[int] = field(default_factory=list)
    out: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    is_dropped: bool = False  # its client is gone
    rank: int = -1
    slot: int = -1
    read: int = 0  # tokens of the prompt that are in the cache


@dataclass(slots=True)
class _Plan:
    """One rank's tokens of a step, and who waits for what they lead to."""

    tokens: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)
    waiting: list[Sequence] = field(default_factory=list)

    def add(self, sequence: Sequence, tokens: list[int], first: int, *, is_whole: bool) -> None:
        """Tokens of one sequence from a position on; `is_whole`: the last of them has a successor."""
        self.tokens += tokens
        self.slots += [sequence.slot] * len(tokens)
        self.positions += range(first, first + len(tokens))
        if is_whole:
            self.wanted.append(len(self.tokens) - 1)
            self.waiting.append(sequence)

    def work(self) -> Work:
        """As it is sent to the rank."""
        return Work(tuple(self.tokens), tuple(self.slots), tuple(self.positions), tuple(self.wanted))


class Batcher:
    """The sequences of all ranks. Prompts go first, in steps of their own, at most `tokens` of a rank in one."""

    def __init__(self, *, ranks: int, slots: int, tokens: int) -> None:
        self._tokens = tokens
        self._waiting: deque[Sequence] = deque()
        self._running: list[list[Sequence]] = [[] for _ in range(ranks)]
        self._free = [list(range(slots)) for _ in range(ranks)]
        self._plans: list[_Plan] = []
        self._numbers = itertools.count()

    def add(self, sequence: Sequence) -> None:
        """Take a request in; it gets a slot when one is free."""
        self._waiting.append(sequence)

    @property
    def has_work(self) -> bool:
        """There is a step to make."""
        return bool(self._waiting) or any(self._running)

    def pause(self) -> list[Step]:
        """What to tell the ranks when there is none."""
        number = next(self._numbers)
        return [Step(number, None, 0, 0, Work()) for _ in self._running]

    def next_step(self) -> list[Step]:
        """Each rank's part of the next step; all ranks take part, those without tokens too."""
        self._admit()
        self._plans = [_Plan() for _ in self._running]
        is_prefill = any(one.read < len(one.prompt) for rank in self._running for one in rank)
        for plan, running in zip(self._plans, self._running, strict=True):
            (self._prefill if is_prefill else self._decode)(plan, running)
        advanced = sum(len(plan.waiting) for plan in self._plans)
        number = next(self._numbers)
        return [
            Step(number, "prefill" if is_prefill else "decode", advanced, advanced, plan.work()) for plan in self._plans
        ]

    def take(self, found: list[list[int]]) -> list[tuple[Sequence, int]]:
        """What the ranks found, with who waits for it; finished sequences give their slots back."""
        made: list[tuple[Sequence, int]] = []
        for rank, (plan, tokens) in enumerate(zip(self._plans, found, strict=True)):
            made += zip(plan.waiting, tokens, strict=True)
            for sequence, token in zip(plan.waiting, tokens, strict=True):
                sequence.made.append(token)
            for sequence in [one for one in self._running[rank] if one.is_dropped or len(one.made) >= one.most]:
                self._running[rank].remove(sequence)
                self._free[rank].append(sequence.slot)
        return made

    def _admit(self) -> None:
        while self._waiting:
            rank = max(range(len(self._free)), key=lambda one: len(self._free[one]))
            if not self._free[rank]:
                return
            sequence = self._waiting.popleft()
            sequence.rank, sequence.slot = rank, self._free[rank].pop()
            self._running[rank].append(sequence)

    def _prefill(self, plan: _Plan, running: list[Sequence]) -> None:
        for sequence in running:
            room = self._tokens - len(plan.tokens)
            chunk = sequence.prompt[sequence.read : sequence.read + room]
            if chunk:
                is_whole = sequence.read + len(chunk) == len(sequence.prompt)
                plan.add(sequence, chunk, sequence.read, is_whole=is_whole)
                sequence.read += len(chunk)

    def _decode(self, plan: _Plan, running: list[Sequence]) -> None:
        for sequence in running:
            last = len(sequence.prompt) + len(sequence.made) - 1
            plan.add(sequence, sequence.made[-1:], last, is_whole=True)
