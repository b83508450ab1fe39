"""Second pass: libfabric operations meet their completions; what became of each goes to `Outcomes`.

Posts queue up per (completion queue, direction, context) in the order in which they were first attempted; a completion
ends the oldest one that began before the completion was read. Waiting posts are carried from window to window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from efaprof.trace import fabric
from efaprof.trace.decode import IS_CANCEL, IS_INJECT, IS_RECV
from efaprof.trace.doorbells import Doorbells, SentCalls
from efaprof.trace.fifo import pair, queue_id
from efaprof.trace.layers import Match
from efaprof.trace.objects import NONE
from efaprof.trace.outcomes import CODE, HAS_DONE, Outcomes
from efaprof.trace.posts import IS_MULTI, IS_SHARED, IS_SOFT, IS_TX, Completions, Posts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from efaprof.trace.fifo import Pairs
    from efaprof.trace.merge import Slice, Window
    from efaprof.trace.survey import Survey

# An open send or RMA counts as lost, not as in flight, once its endpoint has completed later posts and it is older
# than this many times the longest completed operation of that endpoint.
OVERTAKEN = 8
_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Prepared:
    """The posts and completions of one window."""

    posts: Posts
    completions: Completions
    can_pair: NDArray[np.bool_]  # of each completion: a post of ours may wait for it
    sent: SentCalls  # empty unless some call of the run was made with FI_MORE
    settled_ns: int


@dataclass(frozen=True, slots=True)
class Unpaired:
    """Completions that ended no post, in order of time."""

    completions: Completions
    is_explained: NDArray[np.bool_]


class Pairing:
    """`prepare` windows in order, then `settle` what it returned, in the same order, if need be in another thread."""

    def __init__(self, survey: Survey, outcomes: Outcomes) -> None:
        self._objects = survey.objects
        self._shortened = np.array(
            [row for row, thread in enumerate(survey.threads) if thread.process in survey.shortened], np.uint32
        )
        self._outcomes = outcomes
        self._numbered = 0
        self._waiting, self._held = Posts.none(), Posts.none()
        self._held_completions, self._held_can_pair = Completions.none(), np.empty(0, np.bool_)
        self._multi = np.empty(0, np.uint64)  # queues that ever held a multi-receive
        self._cancels: list[tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]] = []
        self._doorbells = Doorbells(outcomes) if survey.has_deferred else None
        count = len(survey.objects) + 1
        self._longest_ns = np.zeros(count, np.int64)  # per endpoint: longest sent operation …
        self._last_ns = np.full(count, _EARLIEST)  # … and last completion
        self._last_post_ns = np.full(count, _EARLIEST)  # latest post among the completed

    def prepare(self, window: Window) -> Prepared:
        """Posts and completions of a window; posts that wait for nothing get their outcome here."""
        sent: list[SentCalls] = []
        posts = Posts.concat([Posts.none(), *(self._posts(part, sent) for part in window.slices)])
        found = [Completions.of(part, self._objects) for part in window.slices]
        completions = Completions.concat([Completions.none(), *(rows for rows, _ in found)])
        can_pair = np.concatenate([np.empty(0, np.bool_), *(can for _, can in found)])
        return Prepared(posts, completions, can_pair, SentCalls.concat([SentCalls.none(), *sent]), window.settled_ns)

    def settle(self, window: Prepared) -> Unpaired:
        """Pair what the window settles."""
        posts = Posts.concat([self._held, window.posts])
        completions = Completions.concat([self._held_completions, window.completions])
        can_pair = np.concatenate([self._held_can_pair, window.can_pair])
        now, later = posts.time_ns < window.settled_ns, completions.end_ns >= window.settled_ns
        self._held, posts = posts.where(~now), posts.where(now)
        self._held_completions, self._held_can_pair = completions.where(later), can_pair[later]
        completions, can_pair = completions.where(~later), can_pair[~later]
        is_partial = self._is_partial(posts, completions)
        can_pair &= ~is_partial
        orphan = np.flatnonzero(can_pair)[self._pair(posts, completions.where(can_pair))]
        is_left = ~can_pair
        is_left[orphan] = True
        if self._doorbells:
            self._doorbells.ring(window.sent, window.settled_ns)
        self._outcomes.release(self._numbered)
        return self._unpaired(completions.where(is_left), is_partial[is_left])

    def finish(self) -> None:
        """Say what became of the posts that no completion came for."""
        left = self._waiting
        code = np.full(len(left), CODE[Match.IN_FLIGHT], np.uint8)
        if len(left):
            objects, endpoint, is_tx = self._objects, left.endpoint, left.has(IS_TX)
            age_ns = self._last_ns[endpoint] - left.time_ns
            is_overtaken = (self._last_post_ns[endpoint] > left.time_ns) & (
                age_ns > OVERTAKEN * self._longest_ns[endpoint]
            )
            code[is_tx & is_overtaken] = CODE[Match.UNEXPLAINED]
            queue = np.where(is_tx, objects.tx_cq[endpoint], objects.rx_cq[endpoint])
            is_closed = (objects.closed_ns[endpoint] < _LATEST) | (objects.closed_ns[queue] < _LATEST)
            code[is_closed | self._is_cancelled(left)] = CODE[Match.CANCELLED]
            code[left.has(IS_SOFT)] = CODE[Match.EXPECTED_NONE]
        self._outcomes.state[left.number] |= code
        if self._doorbells:
            self._doorbells.ring(SentCalls.none(), _LATEST)
        self._outcomes.rewind()

    def _posts(self, part: Slice, sent: list[SentCalls]) -> Posts:
        """Posts that wait for a completion; the others get their outcome here. `sent` grows by what was sent."""
        loaded, rows, objects = part.loaded, part.op_range, self._objects
        ops = loaded.ops
        kind = ops.kind[rows]
        number = self._numbered + np.arange(len(kind))
        self._numbered += len(kind)
        if not len(kind):
            return Posts.none()
        post_ns, return_ns = loaded.post_ns[rows], loaded.return_ns[rows]
        context, flags = ops.word(3, rows), ops.flags(rows)
        endpoint = objects.endpoints.find(loaded.ring.process, ops.word(2, rows), return_ns)
        is_tx = ~IS_RECV[kind]
        is_known = endpoint != NONE
        is_failed, is_cancel = ops.ret(rows) != 0, IS_CANCEL[kind]
        if self._doorbells:
            is_deferred = (flags & np.uint32(fabric.FI_MORE)) != 0
            calls = SentCalls(number, endpoint, post_ns, return_ns, is_deferred)
            sent.append(calls.where(is_tx & is_known & ~is_failed & ~is_cancel))
        queue, is_soft, is_silent = self._expectation(flags, context, endpoint, is_tx)
        state = np.zeros(len(kind), np.uint8)
        state[~is_known] = CODE[Match.UNEXPLAINED]
        state[(is_known & ((queue == NONE) | is_silent)) | is_cancel | IS_INJECT[kind]] = CODE[Match.EXPECTED_NONE]
        state[is_failed] = CODE[Match.FAILED_POST]
        if is_cancel.any():
            self._cancels.append((endpoint[is_cancel], context[is_cancel], return_ns[is_cancel]))
        waits = state == 0
        if not waits.all():
            self._outcomes.state[number] |= state
        group = np.where(is_tx, objects.tx_group[queue], objects.rx_group[queue]) if len(objects) else queue
        is_multi = (flags & np.uint32(fabric.FI_MULTI_RECV)) != 0
        marks = is_tx * np.uint8(IS_TX) | is_soft * np.uint8(IS_SOFT) | is_multi * np.uint8(IS_MULTI)
        return Posts(number, post_ns, queue_id(group, context), context, endpoint, marks).where(waits)

    def _expectation(
        self, flags: NDArray[np.uint32], context: NDArray[np.uint64], endpoint: NDArray[np.int64],
        is_tx: NDArray[np.bool_],
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:  # fmt: skip
        """Completion queue of each post; whether a completion may or may not come (FI_INJECT); whether none will."""
        objects = self._objects
        if not len(objects):
            never = np.zeros(len(flags), np.bool_)
            return np.full(len(flags), NONE), never, never
        asked = (flags & np.uint32(fabric.FI_COMPLETION)) != 0
        is_selective = np.where(is_tx, objects.is_tx_selective[endpoint], objects.is_rx_selective[endpoint])
        is_silent = (is_selective & ~asked) | (objects.skips_null_context[endpoint] & (context == 0))
        queue = np.where(is_tx, objects.tx_cq[endpoint], objects.rx_cq[endpoint])
        return queue, ((flags & np.uint32(fabric.FI_INJECT)) != 0) & ~asked, is_silent

    def _is_partial(self, posts: Posts, completions: Completions) -> NDArray[np.bool_]:
        """Messages that arrived into a multi-receive, which goes on: its own completion has FI_MULTI_RECV set."""
        is_multi = posts.has(IS_MULTI)
        if is_multi.any():
            self._multi = np.union1d(self._multi, posts.queue[is_multi])
        if not len(self._multi):
            return np.zeros(len(completions), np.bool_)
        ended = (completions.flags & np.uint32(fabric.FI_MULTI_RECV)) != 0
        partial: NDArray[np.bool_] = ~ended & np.isin(completions.queue, self._multi)
        return partial

    def _pair(self, posts: Posts, completions: Completions) -> NDArray[np.int64]:
        """Pair settled posts and completions; the completions of empty queues."""
        carried = len(self._waiting)
        fresh = Posts.concat([self._waiting, posts])
        if not len(fresh):
            return np.arange(len(completions))
        # In order of time, a post before a completion; what was carried came before all of it.
        order = np.argsort(np.concatenate([posts.time_ns, completions.end_ns]), kind="stable")
        order = np.concatenate([np.arange(carried), order + carried]) if carried else order
        queue = np.concatenate([fresh.queue, completions.queue])
        pairs = pair(queue, order, len(fresh), fresh.has(IS_SHARED) if carried else None)
        self._record(fresh, completions, pairs)
        self._waiting = fresh.where(pairs.waiting).shared(~pairs.was_alone)
        return pairs.orphan

    def _record(self, posts: Posts, completions: Completions, pairs: Pairs) -> None:
        """Write down what became of the paired posts."""
        out, number = self._outcomes, posts.number.take(pairs.post)
        error, done_ns = completions.error.take(pairs.completion), completions.end_ns.take(pairs.completion)
        code = np.where(pairs.is_exact, np.uint8(CODE[Match.EXACT] | HAS_DONE), np.uint8(CODE[Match.FIFO] | HAS_DONE))
        code[error == fabric.ECANCELED] = CODE[Match.CANCELLED] | HAS_DONE
        out.done_ns[number] = done_ns
        out.error[number] = error
        if self._doorbells:
            out.state[number] |= code
        else:
            out.state[number] = code
        endpoint, posted_ns = posts.endpoint.take(pairs.post), posts.time_ns.take(pairs.post)
        sent = posts.has(IS_TX).take(pairs.post) & (error == 0)
        if not sent.all():
            endpoint, posted_ns, done_ns = endpoint[sent], posted_ns[sent], done_ns[sent]
        _raise_to(self._longest_ns, endpoint, done_ns - posted_ns)
        _raise_to(self._last_ns, endpoint, done_ns)
        _raise_to(self._last_post_ns, endpoint, posted_ns)

    def _unpaired(self, left: Completions, is_partial: NDArray[np.bool_]) -> Unpaired:
        is_explained = left.is_remote | is_partial
        if len(self._shortened):
            is_explained |= np.isin(left.thread, self._shortened)
        order = np.argsort(left.end_ns, kind="stable")
        return Unpaired(left.where(order), is_explained[order])

    def _is_cancelled(self, posts: Posts) -> NDArray[np.bool_]:
        """Posts that a later fi_cancel named."""
        if not self._cancels:
            return np.zeros(len(posts), np.bool_)
        endpoint, context, time_ns = (np.concatenate(part) for part in zip(*self._cancels, strict=True))
        keys, row = np.unique(queue_id(endpoint, context), return_inverse=True)
        last_ns = np.full(len(keys), _EARLIEST)
        np.maximum.at(last_ns, row, time_ns)
        mine = queue_id(posts.endpoint, posts.context)
        at = np.minimum(np.searchsorted(keys, mine), len(keys) - 1)
        found: NDArray[np.bool_] = (keys[at] == mine) & (posts.time_ns <= last_ns[at])
        return found


def _raise_to(highest: NDArray[np.int64], row: NDArray[np.int64], value: NDArray[np.int64]) -> None:
    """Raise each row to the largest of its values."""
    if not len(row):
        return
    if (first := row[0]) == row.max() and first == row.min():
        highest[first] = max(highest[first], value.max())
    else:
        np.maximum.at(highest, row, value)
