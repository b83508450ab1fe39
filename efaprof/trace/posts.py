"""Columns of posts and completions while they are being paired."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from efaprof.trace import fabric
from efaprof.trace.fifo import queue_id
from efaprof.trace.objects import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from efaprof.trace.merge import Slice
    from efaprof.trace.objects import Objects


class Columns:
    """Arrays of one length."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(getattr(self, _names(self)[0]))

    def where(self, rows: NDArray[Any]) -> Self:
        """The chosen rows, by mask or number."""
        if rows.dtype == np.bool_:
            if rows.all():
                return self
            rows = np.flatnonzero(rows)
        return type(self)(**{name: getattr(self, name)[rows] for name in _names(self)})

    def split(self, rows: int) -> tuple[Self, Self]:
        """The first rows, and the others."""
        cls, names = type(self), _names(self)
        return (
            cls(**{name: getattr(self, name)[:rows] for name in names}),
            cls(**{name: getattr(self, name)[rows:] for name in names}),
        )

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Rows of all parts."""
        filled = [part for part in parts if len(part)] or list(parts[:1])
        if len(filled) == 1:
            return filled[0]
        return cls(**{name: np.concatenate([getattr(part, name) for part in filled]) for name in _names(cls)})


def _names(owner: Any) -> list[str]:
    return [field.name for field in fields(owner)]


@dataclass(frozen=True, slots=True)
class Posts(Columns):
    """Operations that wait for a completion."""

    number: NDArray[np.int64]  # of the operation, in the order of records
    time_ns: NDArray[np.int64]  # first attempt
    group: NDArray[np.int64]  # which completion queue, in which direction
    context: NDArray[np.uint64]
    endpoint: NDArray[np.int64]
    is_tx: NDArray[np.bool_]
    is_soft: NDArray[np.bool_]  # a completion may come or not
    is_multi: NDArray[np.bool_]  # a receive of many messages
    is_shared: NDArray[np.bool_]  # was not alone in its queue when it came

    @property
    def queue(self) -> NDArray[np.uint64]:
        """Number of its queue."""
        return queue_id(self.group, self.context)

    def sharing(self, is_shared: NDArray[np.bool_]) -> Posts:
        """The same posts, with that mark."""
        return replace(self, is_shared=is_shared)

    @staticmethod
    def none() -> Posts:
        """No posts."""
        flag, time = np.empty(0, np.bool_), np.empty(0, np.int64)
        return Posts(time, time, time, np.empty(0, np.uint64), time, flag, flag, flag, flag)


@dataclass(frozen=True, slots=True)
class Completions(Columns):
    """Completion-queue entries."""

    order_ns: NDArray[np.int64]  # when the read ended, never before an earlier record of its thread
    end_ns: NDArray[np.int64]
    group: NDArray[np.int64]  # which queue of posts; NONE: no post waits for it
    is_explained: NDArray[np.bool_]  # needs no post: a peer did something to our memory
    context: NDArray[np.uint64]
    source: NDArray[np.uint64]
    data_flags: NDArray[np.uint64]  # data u32 | flags u32
    len_kind_err: NDArray[np.uint64]  # len u32 | kind u16 | err i16
    process: NDArray[np.uint32]
    thread: NDArray[np.uint32]
    cq: NDArray[np.int64]
    nest: NDArray[np.uint8]

    @property
    def flags(self) -> NDArray[np.uint32]:
        """Flags of the entry."""
        return (self.data_flags >> np.uint64(32)).astype(np.uint32)

    @property
    def error(self) -> NDArray[np.int16]:
        """Errno, 0 for a success."""
        return (self.len_kind_err >> np.uint64(48)).astype(np.uint16).view(np.int16)

    @property
    def queue(self) -> NDArray[np.uint64]:
        """Number of its queue."""
        return queue_id(self.group, self.context)

    def explained(self, also: NDArray[np.bool_]) -> Completions:
        """The same completions, these explained too."""
        return replace(self, is_explained=self.is_explained | also)

    def by_time(self) -> Completions:
        """The same, in order of time."""
        return self.where(np.argsort(self.order_ns, kind="stable"))

    @staticmethod
    def none() -> Completions:
        """No completions."""
        time, word = np.empty(0, np.int64), np.empty(0, np.uint64)
        row, flag = np.empty(0, np.uint32), np.empty(0, np.bool_)
        return Completions(time, time, time, flag, word, word, word, word, row, row, time, np.empty(0, np.uint8))

    @staticmethod
    def of(part: Slice, objects: Objects) -> Completions:
        """Entries of the reads of a slice."""
        loaded, rows = part.loaded, part.cq_range
        fields_ = loaded.cq
        first, last = np.searchsorted(fields_.read, (rows.start, rows.stop))
        entries = slice(int(first), int(last))
        read = fields_.read[entries]
        if not len(read):
            return Completions.none()
        position = fields_.position[rows]
        end_ns, mine = loaded.time_ns[position], read - rows.start
        cq = objects.queues.find(loaded.ring.process, fields_.cq[rows], end_ns)
        cq_of = cq[mine]
        data_flags = fields_.entry_word(2, entries)
        group, is_explained = _group(objects, cq_of, (data_flags >> np.uint64(32)).astype(np.uint32))
        return Completions(
            order_ns=loaded.order_ns[position][mine], end_ns=end_ns[mine], group=group, is_explained=is_explained,
            context=fields_.entry_word(0, entries), source=fields_.entry_word(1, entries), data_flags=data_flags,
            len_kind_err=fields_.entry_word(3, entries),
            process=np.full(len(read), loaded.ring.process, np.uint32),
            thread=part.threads(position).astype(np.uint32)[mine], cq=cq_of, nest=fields_.nest[rows][mine],
        )  # fmt: skip


def _group(
    objects: Objects, cq: NDArray[np.int64], flags: NDArray[np.uint32]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Which queue of posts each entry is for, and whether a peer caused it."""
    if not len(objects):
        return np.full(len(cq), NONE), np.zeros(len(cq), np.bool_)
    is_remote = (flags & np.uint32(fabric.FI_REMOTE_WRITE | fabric.FI_REMOTE_READ)) != 0
    is_sent = (flags & np.uint32(fabric.FI_SEND | fabric.FI_READ | fabric.FI_WRITE)) != 0
    is_received = (flags & np.uint32(fabric.FI_RECV)) != 0
    # Without a direction, the queue's only one; a queue of both that never says has a single group.
    is_rx = np.where(is_sent | is_received, is_received, ~objects.has_tx[cq]) | is_remote
    group = np.where(is_rx, objects.rx_group[cq], objects.tx_group[cq])
    group[(cq == NONE) | (is_remote & ~objects.uses_receives[cq])] = NONE
    return group, is_remote
