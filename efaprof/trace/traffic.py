"""Steady synthetic traffic in bulk: millions of operations in seconds, every sum known in closed form.

One batch posts `batch` operations, `step_ns` apart, each call lasting `call_ns`; its completions are read together,
`nic_ns` after the last call of the batch `lag` batches later returned:

    batch k     post post post post ........ read(k-lag)          k+1  post …
                |<step>|          |<- nic_ns ->|
                |<---------------------- period_ns ------------->|
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from efaprof.trace import fabric, layout
from efaprof.trace.layout import ObjectKind, Shape
from efaprof.trace.synth import CQ_READ, kind_of, op_what

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from efaprof.trace.synth import SynthRing

CHUNK_OPS = 1 << 18
CONTEXT_BASE = 0x7F0000000000
CONTEXT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Traffic:
    """Shape of the traffic; the properties below are its answers."""

    batches: int
    batch: int = 16
    start_ns: int = 1_000_000
    step_ns: int = 500
    call_ns: int = 200
    nic_ns: int = 10_000
    read_ns: int = 100
    period_ns: int = 20_000
    lag: int = 0
    contexts: int = 4096
    len_bytes: int = 4096
    peers: int = 8
    op: str = "rma.write"
    empties: int = 3

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= layout.CQ_MAX or self.period_ns < self.posting_ns + self.nic_ns:
            msg = "a batch must fit one completion-queue record and its period"
            raise ValueError(msg)

    @property
    def posting_ns(self) -> int:
        """From the first call of a batch to the last return."""
        return (self.batch - 1) * self.step_ns + self.call_ns

    @property
    def operations(self) -> int:
        """Operations posted."""
        return self.batches * self.batch

    @property
    def completed(self) -> int:
        """Operations whose completion was read; the last `lag` batches are in flight at the end."""
        return max(self.batches - self.lag, 0) * self.batch

    @property
    def libfabric_sum_ns(self) -> int:
        """Sum of call times."""
        return self.operations * self.call_ns

    def nic_ns_of(self, position: int) -> int:
        """Time from the return of a batch's n-th call to the read of its completion."""
        return self.lag * self.period_ns + (self.batch - 1 - position) * self.step_ns + self.nic_ns

    @property
    def nic_sum_ns(self) -> int:
        """Sum over the completed operations."""
        return (self.completed // self.batch) * sum(self.nic_ns_of(j) for j in range(self.batch))

    @property
    def end_ns(self) -> int:
        """End of the last record."""
        last = self.start_ns + (self.batches - 1) * self.period_ns + self.posting_ns
        return last + self.nic_ns if self.batches > self.lag else last


def open_endpoint(ring: SynthRing, ep: int, cq: int, *, provider: str = "efa", at_ns: int = 0) -> None:
    """Fabric, domain, CQ and endpoint, the endpoint bound to the CQ in both directions."""
    ring.open(ObjectKind.FABRIC, ep + 1, at_ns, provider=provider, detail="synth-fabric")
    ring.open(ObjectKind.DOMAIN, ep + 2, at_ns, provider=provider, detail="synth0", parent=ep + 1)
    ring.open(ObjectKind.CQ, cq, at_ns, parent=ep + 2, caps=int(fabric.CqFormat.DATA), mode=8192)
    ring.open(ObjectKind.EP, ep, at_ns, provider=provider, parent=ep + 2, ep_type=int(fabric.EpType.RDM))
    ring.bind(ep, ObjectKind.CQ, cq, fabric.FI_TRANSMIT | fabric.FI_RECV, at_ns)


def write_traffic(ring: SynthRing, traffic: Traffic, *, ep: int = 0x1000, cq: int = 0x2000) -> None:
    """Append the traffic to a ring, in bounded memory."""
    per_chunk = max(CHUNK_OPS // traffic.batch, 1)
    for first in range(0, traffic.batches, per_chunk):
        ids = np.arange(first, min(first + per_chunk, traffic.batches), dtype=np.int64)
        for has_read in (False, True):
            part = ids[(ids >= traffic.lag) == has_read]
            if len(part):
                ring.raw(_batches(ring, traffic, part, ep, cq, has_read=has_read).tobytes())
        ring.flush()


def _batches(
    ring: SynthRing, traffic: Traffic, ids: NDArray[np.int64], ep: int, cq: int, *, has_read: bool
) -> NDArray[np.void]:
    fields: list[tuple[str, np.dtype[np.void], int]] = [("op", layout.OP, traffic.batch)]
    if has_read:
        fields += [("cq", layout.CQ, 1), ("cqe", layout.CQE, traffic.batch)]
    made = np.zeros(len(ids), np.dtype(fields))
    _fill_posts(ring, traffic, ids, ep, made["op"])
    if has_read:
        _fill_reads(ring, traffic, ids, cq, made["cq"], made["cqe"])
    return made


def _fill_posts(ring: SynthRing, traffic: Traffic, ids: NDArray[np.int64], ep: int, op: NDArray[np.void]) -> None:
    number = ids[:, None] * traffic.batch + np.arange(traffic.batch)
    begin = traffic.start_ns + ids[:, None] * traffic.period_ns + np.arange(traffic.batch) * traffic.step_ns
    op["t_end"] = ring.clock.ticks_of((begin + traffic.call_ns).ravel()).reshape(begin.shape)
    op["dur"] = op["t_end"] - ring.clock.ticks_of(begin.ravel()).reshape(begin.shape)
    op["kind"] = kind_of(Shape.OP, op_what(traffic.op))
    op["ep"] = ep
    op["ctx"] = CONTEXT_BASE + number % traffic.contexts * CONTEXT_BYTES
    op["fi_addr"] = number % traffic.peers
    op["raddr"] = 0x7E0000000000 + number % 65536 * traffic.len_bytes
    op["len"] = traffic.len_bytes
    op["flags"] = fabric.FI_COMPLETION


def _fill_reads(
    ring: SynthRing, traffic: Traffic, ids: NDArray[np.int64], cq: int, read: NDArray[np.void], cqe: NDArray[np.void]
) -> None:
    end = (traffic.start_ns + ids * traffic.period_ns + traffic.posting_ns + traffic.nic_ns)[:, None]
    read["t_end"] = ring.clock.ticks_of(end.ravel()).reshape(end.shape)
    read["dur"] = read["t_end"] - ring.clock.ticks_of((end - traffic.read_ns).ravel()).reshape(end.shape)
    read["kind"] = kind_of(Shape.CQ, CQ_READ)
    read["x"] = traffic.batch
    read["cq"] = cq
    read["empties"] = traffic.empties
    read["flags"] = int(fabric.CqFormat.DATA)
    number = (ids - traffic.lag)[:, None] * traffic.batch + np.arange(traffic.batch)
    cqe["ctx"] = CONTEXT_BASE + number % traffic.contexts * CONTEXT_BYTES
    cqe["src"] = fabric.FI_ADDR_UNSPEC
    cqe["flags"] = fabric.FI_RMA | fabric.FI_WRITE
    cqe["len"] = traffic.len_bytes
