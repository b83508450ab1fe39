"""Third pass: the operations table, in order of first attempts, in frames of bounded size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from efaprof.trace import fabric, schema
from efaprof.trace.columns import Columns
from efaprof.trace.decode import HAS_DATA, HAS_REMOTE, IS_CANCEL, IS_RECV, TAKES_FLAGS
from efaprof.trace.frames import frame, named
from efaprof.trace.objects import NONE
from efaprof.trace.outcomes import HAS_DONE, HAS_DOORBELL, MATCH_MASK, MATCHES, Outcomes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from efaprof.trace.frames import Column
    from efaprof.trace.merge import Slice, Window
    from efaprof.trace.survey import Survey

FRAME_ROWS = 1 << 18


@dataclass(frozen=True, slots=True)
class Calls(Columns):
    """Raw fields of libfabric calls."""

    number: NDArray[np.int64]
    process: NDArray[np.uint32]
    thread: NDArray[np.uint32]
    kind: NDArray[np.uint8]
    endpoint: NDArray[np.int64]
    post_ns: NDArray[np.int64]
    return_ns: NDArray[np.int64]
    context: NDArray[np.uint64]
    peer: NDArray[np.uint64]
    remote: NDArray[np.uint64]
    len_imm: NDArray[np.uint64]
    tail: NDArray[np.uint64]  # flags u32 | eagain u16 | depth u8 | nest u8
    ret: NDArray[np.int16]

    @staticmethod
    def of(part: Slice, survey: Survey, first_number: int) -> Calls:
        """Calls of a slice, numbered on."""
        loaded, rows = part.loaded, part.op_range
        ops, process = loaded.ops, loaded.ring.process
        return_ns = loaded.return_ns[rows]
        kind = ops.kind[rows]
        return Calls(
            number=first_number + np.arange(len(kind)),
            process=np.full(len(kind), process, np.uint32),
            thread=part.threads(ops.position[rows]).astype(np.uint32),
            kind=kind,
            endpoint=survey.objects.endpoints.find(process, ops.word(2, rows), return_ns),
            post_ns=loaded.post_ns[rows],
            return_ns=return_ns,
            context=ops.word(3, rows),
            peer=ops.word(4, rows),
            remote=ops.word(5, rows),
            len_imm=ops.word(6, rows),
            tail=ops.word(7, rows),
            ret=ops.ret(rows),
        )


class OpRows:
    """Makes frames of the operations table out of windows, in order of post_ns."""

    def __init__(self, survey: Survey, outcomes: Outcomes) -> None:
        self._survey = survey
        self._outcomes = outcomes
        self._numbered = 0
        self._written = 0
        self._held: Calls | None = None  # beyond what is settled
        self._ready: list[Calls] = []  # in order
        self._ready_rows = 0
        ids = sorted({int(name) for name in survey.objects.provider})
        self._provider_ids = np.array(ids, np.uint64)
        self._provider_names = (*(survey.names.get(key) for key in ids), None)

    def prepare(self, window: Window) -> tuple[Calls | None, int]:
        """Calls of a window, and up to when nothing is missing any more."""
        parts = []
        for part in window.slices:
            rows = part.op_range
            if rows.start < rows.stop:
                parts.append(Calls.of(part, self._survey, self._numbered))
                self._numbered += rows.stop - rows.start
        return Calls.concat(parts) if parts else None, window.settled_ns

    def take(self, calls: Calls | None, settled_ns: int) -> Iterator[pl.DataFrame]:
        """Frames that prepared windows, taken in order, complete."""
        parts = [part for part in (self._held, calls) if part is not None]
        if not parts:
            return
        calls = Calls.concat(parts)
        now = calls.post_ns < settled_ns
        self._held = calls.where(~now)
        settled = calls.where(now)
        if (np.diff(settled.post_ns) < 0).any():
            settled = settled.where(np.argsort(settled.post_ns, kind="stable"))
        self._ready.append(settled)
        self._ready_rows += len(settled)
        if self._ready_rows >= FRAME_ROWS:
            yield from self._frames(FRAME_ROWS)
        self._outcomes.release(self._written)

    def finish(self) -> Iterator[pl.DataFrame]:
        """The last frames."""
        yield from self._frames(1)

    def _frames(self, least: int) -> Iterator[pl.DataFrame]:
        ready = Calls.concat(self._ready) if self._ready else None
        while ready is not None and len(ready) >= least:
            head, ready = ready.split(FRAME_ROWS)
            yield self._frame(head)
        self._ready = [ready] if ready is not None and len(ready) else []
        self._ready_rows = sum(len(part) for part in self._ready)

    def _frame(self, calls: Calls) -> pl.DataFrame:
        objects, out = self._survey.objects, self._outcomes
        state, kind, count = out.state[calls.number], calls.kind, len(calls)
        has_done = (state & HAS_DONE) != 0
        done_ns = out.done_ns[calls.number]
        rung = (state & HAS_DOORBELL) != 0
        flags = calls.tail.astype(np.uint32)
        is_deferred = (
            (flags & np.uint32(fabric.FI_MORE)) != 0 if self._survey.has_deferred else np.zeros(count, np.bool_)
        )
        # A completion before the doorbell: the provider rang earlier, at a time that no record tells.
        doorbell_ns = np.where(rung, out.doorbell_ns[calls.number], calls.return_ns)
        doorbell_ns = np.where(rung & has_done, np.clip(done_ns, calls.return_ns, doorbell_ns), doorbell_ns)
        is_rx = IS_RECV[kind]
        endpoint, known = calls.endpoint, calls.endpoint != NONE
        cq = np.where(is_rx, objects.rx_cq[endpoint], objects.tx_cq[endpoint]) if len(objects) else endpoint
        provider = np.full(count, len(self._provider_names) - 1)
        provider[known] = np.searchsorted(self._provider_ids, objects.provider[endpoint[known]])
        no_peer = calls.peer == np.uint64(fabric.FI_ADDR_UNSPEC)
        if len(objects):
            no_peer |= known & objects.is_connected[endpoint]
        has_data = HAS_DATA[kind] | (TAKES_FLAGS[kind] & ((flags & np.uint32(fabric.FI_REMOTE_CQ_DATA)) != 0) & ~is_rx)
        columns: dict[str, Column] = {
            "op": np.arange(self._written, self._written + count, dtype=np.uint64), "process": calls.process,
            "thread": calls.thread, "kind": named(schema.OP_KINDS, schema.OPS["kind"], kind),
            "direction": named(("tx", "rx"), schema.OPS["direction"], is_rx),
            "provider": named(self._provider_names, schema.OPS["provider"], provider),
            "nest": (calls.tail >> np.uint64(56)).astype(np.uint8), "endpoint": endpoint.astype(np.uint32),
            "cq": cq.astype(np.uint32), "peer": calls.peer, "context": calls.context,
            "bytes": calls.len_imm.astype(np.uint32), "remote": calls.remote,
            "immediate": (calls.len_imm >> np.uint64(32)).astype(np.uint32), "flags": flags,
            "eagain": (calls.tail >> np.uint64(32)).astype(np.uint16), "ret": calls.ret, "post_ns": calls.post_ns,
            "return_ns": calls.return_ns, "doorbell_ns": doorbell_ns, "done_ns": done_ns,
            "match": named(tuple(MATCHES), schema.OPS["match"], state & MATCH_MASK), "error": out.error[calls.number],
        }  # fmt: skip
        null = {
            "direction": IS_CANCEL[kind], "endpoint": ~known, "cq": ~known | (cq == NONE), "peer": no_peer,
            "remote": ~HAS_REMOTE[kind], "immediate": ~has_data, "doorbell_ns": is_deferred & ~rung,
            "done_ns": ~has_done, "error": ~has_done,
        }  # fmt: skip
        self._written += count
        return frame(schema.OPS, columns, null=null)
