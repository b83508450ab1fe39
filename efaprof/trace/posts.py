"""Columns of posts and completions while they are being paired."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from efaprof.trace import fabric
from efaprof.trace.columns import Columns
from efaprof.trace.fifo import queue_id
from efaprof.trace.objects import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from efaprof.trace.merge import Slice
    from efaprof.trace.objects import Objects

# Marks of a post.
IS_TX = 1
IS_SOFT = 2  # a completion may come or not
IS_MULTI = 4  # a receive of many messages
IS_SHARED = 8  # was not alone in its queue when it came


@dataclass(frozen=True, slots=True)
class Posts(Columns):
    """Operations that wait for a completion."""

    number: NDArray[np.int64]  # of the operation, in the order of records
    time_ns: NDArray[np.int64]  # first attempt
    queue: NDArray[np.uint64]  # of (completion queue and direction, context)
    context: NDArray[np.uint64]
    endpoint: NDArray[np.int64]
    marks: NDArray[np.uint8]

    def has(self, mark: int) -> NDArray[np.bool_]:
        """Which posts have a mark."""
        found: NDArray[np.bool_] = (self.marks & np.uint8(mark)) != 0
        return found

    def shared(self, also: NDArray[np.bool_]) -> Posts:
        """The same posts, these marked as shared too."""
        return replace(self, marks=self.marks | also * np.uint8(IS_SHARED))

    @staticmethod
    def none() -> Posts:
        """No posts."""
        number, word = np.empty(0, np.int64), np.empty(0, np.uint64)
        return Posts(number, number, word, word, number, np.empty(0, np.uint8))


@dataclass(frozen=True, slots=True)
class Completions(Columns):
    """Completion-queue entries."""

    end_ns: NDArray[np.int64]  # when the read ended
    queue: NDArray[np.uint64]
    context: NDArray[np.uint64]
    source: NDArray[np.uint64]
    data_flags: NDArray[np.uint64]  # data u32 | flags u32
    len_kind_err: NDArray[np.uint64]  # len u32 | kind u16 | err i16
    cq: NDArray[np.int32]
    thread_nest: NDArray[np.uint64]  # thread u56 | nest u8 (low)

    @property
    def flags(self) -> NDArray[np.uint32]:
        """Flags of the entry."""
        return (self.data_flags >> np.uint64(32)).astype(np.uint32)

    @property
    def error(self) -> NDArray[np.int16]:
        """Errno, 0 for a success."""
        return (self.len_kind_err >> np.uint64(48)).astype(np.uint16).view(np.int16)

    @property
    def thread(self) -> NDArray[np.uint32]:
        """Thread that read the entry."""
        return (self.thread_nest >> np.uint64(8)).astype(np.uint32)

    @property
    def is_remote(self) -> NDArray[np.bool_]:
        """A peer did something to our memory."""
        found: NDArray[np.bool_] = (self.flags & np.uint32(fabric.FI_REMOTE_WRITE | fabric.FI_REMOTE_READ)) != 0
        return found

    @staticmethod
    def none() -> Completions:
        """No completions."""
        time, word = np.empty(0, np.int64), np.empty(0, np.uint64)
        return Completions(time, word, word, word, word, word, np.empty(0, np.int32), word)

    @staticmethod
    def of(part: Slice, objects: Objects) -> tuple[Completions, NDArray[np.bool_]]:
        """Entries of the reads of a slice, and which of them can end a post."""
        loaded, rows = part.loaded, part.cq_range
        fields = loaded.cq
        first, last = np.searchsorted(fields.read, (rows.start, rows.stop))
        entries = slice(int(first), int(last))
        read = fields.read[entries]
        if not len(read):
            return Completions.none(), np.empty(0, np.bool_)
        position, mine = fields.position[rows], read - rows.start
        end_ns = loaded.time_ns[position]
        cq = objects.queues.find(loaded.ring.process, fields.cq[rows], end_ns)
        thread_nest = part.threads(position).astype(np.uint64) << np.uint64(8) | fields.nest[rows]
        context, data_flags = fields.entry_word(0, entries), fields.entry_word(2, entries)
        group = _groups(objects, cq.take(mine), (data_flags >> np.uint64(32)).astype(np.uint32))
        made = Completions(
            end_ns=end_ns.take(mine),
            queue=queue_id(group, context),
            context=context,
            source=fields.entry_word(1, entries),
            data_flags=data_flags,
            len_kind_err=fields.entry_word(3, entries),
            cq=cq.astype(np.int32).take(mine),
            thread_nest=thread_nest.take(mine),
        )
        return made, group != NONE


def _groups(objects: Objects, cq: NDArray[np.int64], flags: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Which group of posts each entry is for; NONE where no post of ours waits for it."""
    if not len(objects):
        return np.full(len(cq), NONE)
    is_remote = (flags & np.uint32(fabric.FI_REMOTE_WRITE | fabric.FI_REMOTE_READ)) != 0
    is_sent = (flags & np.uint32(fabric.FI_SEND | fabric.FI_READ | fabric.FI_WRITE)) != 0
    is_received = (flags & np.uint32(fabric.FI_RECV)) != 0
    if is_sent.all() and not (is_received | is_remote).any() and cq.min() == cq.max() != NONE:
        return np.full(len(cq), objects.tx_group[cq[0]])
    # Without a direction, the queue's only one; a queue of both that never says has a single group.
    is_rx = np.where(is_sent | is_received, is_received, ~objects.has_tx[cq]) | is_remote
    group = np.where(is_rx, objects.rx_group[cq], objects.tx_group[cq])
    group[(cq == NONE) | (is_remote & ~objects.uses_receives[cq])] = NONE
    return group
