"""Second pass: libfabric operations meet their completions; what became of each goes to `Outcomes`.

Posts queue up per (completion queue, direction, context) in the order in which they were first attempted; a completion
ends the oldest one that began before the completion was read. Waiting posts are carried from window to window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from efaprof.trace import fabric
from efaprof.trace.decode import IS_CANCEL, IS_INJECT, IS_RECV
from efaprof.trace.doorbells import Doorbells
from efaprof.trace.fifo import pair, queue_id
from efaprof.trace.layers import Match
from efaprof.trace.objects import NONE
from efaprof.trace.outcomes import CODE, HAS_DONE, Outcomes
from efaprof.trace.posts import Completions, Posts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from efaprof.trace.fifo import Pairs
    from efaprof.trace.merge import Slice, Window
    from efaprof.trace.survey import Survey

# An open send or RMA counts as lost, not as in flight, once its endpoint has completed later posts and it is older
# than this many times the longest completed operation of that endpoint.
OVERTAKEN = 8


class Pairing:
    """State between windows."""

    def __init__(self, survey: Survey, outcomes: Outcomes) -> None:
        self._objects = objects = survey.objects
        self._shortened = np.array(survey.shortened, np.uint32)
        self._outcomes = outcomes
        self._numbered = 0
        self._waiting, self._held = Posts.none(), Posts.none()
        self._held_completions = Completions.none()
        self._multi = np.empty(0, np.uint64)  # queues that ever held a multi-receive, hashed
        self._cancels: list[tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]] = []
        self._doorbells = Doorbells(outcomes) if survey.has_deferred else None
        self._longest_ns = np.zeros(len(objects) + 1, np.int64)  # per endpoint: longest sent operation …
        self._last_ns = np.full(len(objects) + 1, np.iinfo(np.int64).min)  # … and last completion
        self._last_post_ns = self._last_ns.copy()  # latest post among the completed

    def take(self, window: Window) -> Completions:
        """Pair what the window settles; the completions that met no post, in order of time."""
        posts = Posts.concat([self._held, *(self._posts(part) for part in window.slices)])
        completions = Completions.concat(
            [self._held_completions, *(Completions.of(part, self._objects) for part in window.slices)]
        )
        now, later = posts.time_ns < window.settled_ns, completions.order_ns >= window.settled_ns
        self._held, posts = posts.where(~now), posts.where(now)
        self._held_completions, completions = completions.where(later), completions.where(~later)
        is_partial = self._is_partial(posts, completions)
        is_arrival = (completions.group == NONE) | is_partial
        arrivals = completions.explained(is_partial).where(is_arrival)
        orphans = self._pair(posts, completions.where(~is_arrival))
        if len(self._shortened):
            orphans = orphans.explained(np.isin(orphans.process, self._shortened))
        if self._doorbells:
            self._doorbells.ring(window.settled_ns)
        self._outcomes.release(self._numbered)
        return Completions.concat([arrivals, orphans]).by_time()

    def finish(self) -> None:
        """Say what became of the posts that no completion came for."""
        left = self._waiting
        objects, endpoint = self._objects, left.endpoint
        queue = np.where(left.is_tx, objects.tx_cq[endpoint], objects.rx_cq[endpoint]) if len(left) else endpoint
        code = np.full(len(left), CODE[Match.IN_FLIGHT], np.uint8)
        age_ns = self._last_ns[endpoint] - left.time_ns
        is_lost = (
            left.is_tx
            & (self._last_post_ns[endpoint] > left.time_ns)
            & (age_ns > OVERTAKEN * self._longest_ns[endpoint])
        )
        code[is_lost] = CODE[Match.UNEXPLAINED]
        end = np.iinfo(np.int64).max
        is_closed = (objects.closed_ns[endpoint] < end) | (objects.closed_ns[queue] < end) if len(left) else is_lost
        code[is_closed | self._is_cancelled(left)] = CODE[Match.CANCELLED]
        code[left.is_soft] = CODE[Match.EXPECTED_NONE]
        self._outcomes.state[left.number] |= code
        if self._doorbells:
            self._doorbells.ring(np.iinfo(np.int64).max)
        self._outcomes.rewind()

    def _posts(self, part: Slice) -> Posts:
        """Posts that wait for a completion; the others get their outcome here."""
        loaded, rows, objects = part.loaded, part.op_range, self._objects
        ops = loaded.ops
        kind = ops.kind[rows]
        number = self._numbered + np.arange(len(kind))
        self._numbered += len(kind)
        post_ns, return_ns = loaded.post_ns[rows], loaded.return_ns[rows]
        context, flags = ops.word(3, rows), ops.flags(rows)
        endpoint = objects.endpoints.find(loaded.ring.process, ops.word(2, rows), return_ns)
        is_tx = ~IS_RECV[kind]
        queue = (
            np.where(is_tx, objects.tx_cq[endpoint], objects.rx_cq[endpoint])
            if len(objects)
            else np.full(len(kind), NONE)
        )
        is_known = endpoint != NONE
        is_failed, is_cancel = ops.ret(rows) != 0, IS_CANCEL[kind]
        if self._doorbells:
            is_sent = is_tx & is_known & ~is_failed & ~is_cancel
            self._doorbells.add(number, endpoint, post_ns, return_ns, flags, is_sent)
        is_soft, is_silent = self._expectation(kind, flags, context, endpoint, is_tx)
        state = np.zeros(len(kind), np.uint8)
        state[~is_known] = CODE[Match.UNEXPLAINED]
        state[is_known & ((queue == NONE) | is_silent) | is_cancel | IS_INJECT[kind]] = CODE[Match.EXPECTED_NONE]
        state[is_failed] = CODE[Match.FAILED_POST]
        if is_cancel.any():
            self._cancels.append((endpoint[is_cancel], context[is_cancel], return_ns[is_cancel]))
        waits = state == 0
        self._outcomes.state[number] |= state
        queue = queue[waits]
        return Posts(
            number=number[waits], time_ns=post_ns[waits],
            group=np.where(is_tx[waits], objects.tx_group[queue], objects.rx_group[queue]) if waits.any() else queue,
            context=context[waits], endpoint=endpoint[waits], is_tx=is_tx[waits], is_soft=is_soft[waits],
            is_multi=(flags[waits] & np.uint32(fabric.FI_MULTI_RECV)) != 0, is_shared=np.zeros(len(queue), np.bool_),
        )  # fmt: skip

    def _expectation(
        self, kind: NDArray[np.uint8], flags: NDArray[np.uint32], context: NDArray[np.uint64],
        endpoint: NDArray[np.int64], is_tx: NDArray[np.bool_],
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:  # fmt: skip
        """Posts that may or may not get a completion (FI_INJECT), and posts that get none."""
        objects = self._objects
        if not len(objects):
            return np.zeros(len(kind), np.bool_), np.zeros(len(kind), np.bool_)
        asked = (flags & np.uint32(fabric.FI_COMPLETION)) != 0
        is_selective = np.where(is_tx, objects.is_tx_selective[endpoint], objects.is_rx_selective[endpoint])
        is_silent = (is_selective & ~asked) | (objects.skips_null_context[endpoint] & (context == 0))
        return ((flags & np.uint32(fabric.FI_INJECT)) != 0) & ~asked, is_silent

    def _is_partial(self, posts: Posts, completions: Completions) -> NDArray[np.bool_]:
        """Messages that arrived into a multi-receive, which goes on: its own completion has FI_MULTI_RECV set."""
        if posts.is_multi.any():
            self._multi = np.union1d(self._multi, posts.where(posts.is_multi).queue)
        if not len(self._multi):
            return np.zeros(len(completions), np.bool_)
        ended = (completions.flags & np.uint32(fabric.FI_MULTI_RECV)) != 0
        partial: NDArray[np.bool_] = ~ended & np.isin(completions.queue, self._multi)
        return partial

    def _pair(self, posts: Posts, completions: Completions) -> Completions:
        """Pair settled posts and completions; the completions of empty queues."""
        carried = len(self._waiting)
        fresh = Posts.concat([self._waiting, posts])
        if not len(fresh):
            return completions
        # In order of time, a post before a completion; what was carried came before all of it.
        order = np.argsort(np.concatenate([posts.time_ns, completions.order_ns]), kind="stable")
        order = np.concatenate([np.arange(carried), order + carried]) if carried else order
        queue = np.concatenate([fresh.queue, completions.queue])
        pairs = pair(queue, order, len(fresh), fresh.is_shared if carried else None)
        self._record(fresh, completions, pairs)
        waiting = fresh.where(pairs.waiting)
        self._waiting = waiting.sharing(waiting.is_shared | ~pairs.was_alone)
        return completions.where(pairs.orphan)

    def _record(self, posts: Posts, completions: Completions, pairs: Pairs) -> None:
        """Write down what became of the paired posts."""
        out, number = self._outcomes, posts.number[pairs.post]
        error, done_ns = completions.error[pairs.completion], completions.end_ns[pairs.completion]
        code = np.where(pairs.is_exact, np.uint8(CODE[Match.EXACT] | HAS_DONE), np.uint8(CODE[Match.FIFO] | HAS_DONE))
        code[error == fabric.ECANCELED] = CODE[Match.CANCELLED] | HAS_DONE
        out.done_ns[number] = done_ns
        out.error[number] = error
        out.state[number] |= code
        endpoint, posted_ns = posts.endpoint[pairs.post], posts.time_ns[pairs.post]
        sent = posts.is_tx[pairs.post] & (error == 0)
        if not sent.all():
            endpoint, posted_ns, done_ns = endpoint[sent], posted_ns[sent], done_ns[sent]
        _raise_to(self._longest_ns, endpoint, done_ns - posted_ns)
        _raise_to(self._last_ns, endpoint, done_ns)
        _raise_to(self._last_post_ns, endpoint, posted_ns)

    def _is_cancelled(self, posts: Posts) -> NDArray[np.bool_]:
        """Posts that a later fi_cancel named."""
        if not self._cancels or not len(posts):
            return np.zeros(len(posts), np.bool_)
        endpoint, context, time_ns = (np.concatenate(part) for part in zip(*self._cancels, strict=True))
        keys, row = np.unique(queue_id(endpoint, context), return_inverse=True)
        last_ns = np.full(len(keys), np.iinfo(np.int64).min)
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
