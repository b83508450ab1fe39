"""First in, first out: which completion ends which operation, for many queues at once and without a Python loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MIX = np.uint64(0x9E3779B97F4A7C15)
_MIX_GROUP = np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT = np.uint64(32)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Which posts and completions belong together; posts and completions are numbered from 0 each."""

    post: NDArray[np.int64]
    completion: NDArray[np.int64]
    is_exact: NDArray[np.bool_]  # nothing else was in that queue from the post to its completion
    orphan: NDArray[np.int64]  # completions that came when the queue was empty
    waiting: NDArray[np.int64]  # posts still in the queue
    was_alone: NDArray[np.bool_]  # of each waiting post: nothing else was in its queue when it came


def queue_id(group: NDArray[np.int64], context: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One number for a queue, a (group, context): never the same for two contexts of one group."""
    mixed = (context ^ (group.astype(np.uint64) * _MIX_GROUP)) * _MIX
    mixed ^= mixed >> _SHIFT
    mixed *= _MIX
    return mixed


def by_queue(queue: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Order of events by queue, within a queue as given, and where a queue begins.

    The top bits of the queue's number are sorted with the row packed below them, several times faster than rows are
    sorted; where two queues share those bits, rows are sorted after all.
    """
    count = len(queue)
    bits = np.uint64(max(count - 1, 1).bit_length())
    packed = (queue >> bits << bits) | np.arange(count, dtype=np.uint64)
    packed.sort()
    order = (packed & ((np.uint64(1) << bits) - np.uint64(1))).view(np.int64)
    first = _changes(queue[order])
    if (first[1:] & ~_changes(packed >> bits)[1:]).any():
        order = np.argsort(queue, kind="stable")
        first = _changes(queue[order])
    return order, first


def _changes(values: NDArray[np.uint64]) -> NDArray[np.bool_]:
    found = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=found[1:])
    return found


def pair(
    queue: NDArray[np.uint64], order: NDArray[np.int64], posts: int, is_shared: NDArray[np.bool_] | None = None
) -> Pairs:
    """Pairs among events, of which the first `posts` are posts and the others completions; `order` is that of time.

    `is_shared` marks posts that were not alone in their queue before these events (carried over from earlier ones).
    """
    rank, first = by_queue(queue[order])
    event = order[rank]
    is_post = event < posts
    depth = _depth(is_post, first)
    orphan = np.zeros(len(event), np.bool_)
    if (depth < 0).any():
        depth, orphan = _without_orphans(depth, first)
    done = ~is_post & ~orphan
    done_at = np.flatnonzero(done)
    mate = done_at - 1 if depth.max(initial=0) <= 1 else _mates(is_post, done, first, done_at)
    alone = depth == 1
    if is_shared is not None:
        alone[is_post] &= ~is_shared[event[is_post]]
    waits = is_post.copy()
    waits[mate] = False
    waiting = np.flatnonzero(waits)
    waiting = waiting[np.argsort(rank[waiting], kind="stable")]
    return Pairs(
        post=event[mate],
        completion=event[done_at] - posts,
        is_exact=alone[mate] & (mate == done_at - 1),
        orphan=np.sort(event[orphan]) - posts,
        waiting=event[waiting],
        was_alone=alone[waiting],
    )


def _depth(is_post: NDArray[np.bool_], first: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Posts less completions of an event's queue, up to and with the event."""
    step = np.where(is_post, np.int32(1), np.int32(-1))
    total = np.cumsum(step, dtype=np.int32)
    starts = np.flatnonzero(first)
    before = total[starts] - step[starts]
    depth: NDArray[np.int32] = total - np.repeat(before, np.diff(starts, append=len(first)))
    return depth


def _without_orphans(depth: NDArray[np.int32], first: NDArray[np.bool_]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Depth that never falls below 0, and the completions that would have made it fall."""
    level = (np.cumsum(first) - 1) * (len(depth) + 1)  # each queue on a floor of its own, below all earlier ones
    floor = np.minimum.accumulate(np.minimum(depth, 0) - level) + level
    before = np.where(first, 0, np.concatenate([np.zeros(1, np.int64), floor[:-1]]))
    return (depth - floor).astype(np.int32), floor < before


def _mates(
    is_post: NDArray[np.bool_], done: NDArray[np.bool_], first: NDArray[np.bool_], done_at: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The n-th completion of a queue ends the n-th post of that queue."""
    queue = np.cumsum(first)[done_at] - 1
    starts = np.flatnonzero(first)
    posts_before: NDArray[np.int64] = (np.cumsum(is_post) - is_post)[starts]
    done_before: NDArray[np.int64] = (np.cumsum(done) - done)[starts]
    nth = np.arange(len(done_at)) - done_before[queue]
    mates: NDArray[np.int64] = np.flatnonzero(is_post)[posts_before[queue] + nth]
    return mates
