"""First in, first out: which completion ends which operation, for many queues at once and without a Python loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MIX = np.uint64(0x9E3779B97F4A7C15)
_MIX_GROUP = np.uint64(0xC2B2AE3D27D4EB4F)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rows of the events that were given."""

    post: NDArray[np.int64]
    completion: NDArray[np.int64]
    is_exact: NDArray[np.bool_]  # nothing else was in that queue from the post to its completion
    orphan: NDArray[np.int64]  # completions that came when the queue was empty
    waiting: NDArray[np.int64]  # posts still in the queue, in order
    was_alone: NDArray[np.bool_]  # of each waiting post: nothing else was in its queue when it came


def queue_order(group: NDArray[np.int64], context: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Order of events by queue, within a queue as given, and where a queue begins.

    A queue is a (group, context). Sorted by a hash with the row number packed below it, which is several times faster
    than sorting rows; where two queues share a hash, the rows are sorted properly.
    """
    count = len(group)
    bits = np.uint64(max(count - 1, 1).bit_length())
    mixed = (context ^ (group.astype(np.uint64) * _MIX_GROUP)) * _MIX
    mixed ^= mixed >> np.uint64(32)
    mixed *= _MIX
    packed = (mixed >> bits << bits) | np.arange(count, dtype=np.uint64)
    packed.sort()
    low = (np.uint64(1) << bits) - np.uint64(1)
    order = (packed & low).astype(np.int64)
    first = _changes(group[order]) | _changes(context[order])
    same_hash = ~_changes(packed >> bits)
    if (first & same_hash).any():
        order = np.lexsort((np.arange(count), context, group))
        first = _changes(group[order]) | _changes(context[order])
    return order, first


def _changes(values: NDArray[np.generic]) -> NDArray[np.bool_]:
    found = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=found[1:])
    return found


def pair(
    group: NDArray[np.int64], context: NDArray[np.uint64], is_post: NDArray[np.bool_], is_shared: NDArray[np.bool_]
) -> Pairs:
    """Pairs among events in order of time.

    `is_shared` marks posts that were not alone in their queue before these events (carried over from earlier ones).
    """
    order, first = queue_order(group, context)
    post = is_post[order]
    queue = np.cumsum(first) - 1
    depth = np.cumsum(np.where(post, 1, -1))
    starts = np.flatnonzero(first)
    depth -= (depth[starts] - np.where(post[starts], 1, -1))[queue]
    orphan = np.zeros(len(order), np.bool_)
    if (depth < 0).any():
        # The lowest depth so far in this queue, never above 0; each fall is a completion of an empty queue.
        step = len(order) + 1
        floor = np.minimum.accumulate(np.minimum(depth, 0) - queue * step) + queue * step
        before = np.where(first, 0, np.concatenate([np.zeros(1, np.int64), floor[:-1]]))
        orphan = floor < before
        depth = depth - floor
    done = ~post & ~orphan
    post_at, done_at = np.flatnonzero(post), np.flatnonzero(done)
    posts_before, done_before = np.cumsum(post), np.cumsum(done)
    # The n-th completion of a queue ends the n-th post of that queue.
    nth = done_before[done_at] - (done_before - done)[starts][queue[done_at]] - 1
    mate = post_at[(posts_before - post)[starts][queue[done_at]] + nth]
    alone = (depth == 1) & ~is_shared[order]
    is_waiting = post.copy()
    is_waiting[mate] = False
    waiting = np.flatnonzero(is_waiting)
    back = np.argsort(order[waiting], kind="stable")
    return Pairs(
        post=order[mate],
        completion=order[done_at],
        is_exact=(mate == done_at - 1) & alone[mate],
        orphan=np.sort(order[orphan]),
        waiting=order[waiting][back],
        was_alone=alone[waiting][back],
    )
