"""A small run in which every outcome of an operation occurs, for tests of reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from efaprof.trace import fabric as fi
from efaprof.trace.manifest import Probe, ProbeState
from efaprof.trace.synth import Cqe, SynthRun
from efaprof.trace.traffic import open_endpoint

if TYPE_CHECKING:
    from pathlib import Path

    from efaprof.trace.rundir import Run

EP, CQ = 0x1000, 0x2000
SENT, RECEIVED, WRITTEN = fi.FI_SEND | fi.FI_MSG, fi.FI_RECV | fi.FI_MSG, fi.FI_WRITE | fi.FI_RMA


def every_outcome(path: Path) -> Run:
    """Sends, writes, receives, an arrival, a nested call, NIC counters, a note; times in whole microseconds."""
    synth = SynthRun(path)
    ring = synth.ring(pid=100, comm="client")
    open_endpoint(ring, EP, CQ)
    for at, value in ((1_000, 0), (90_000, 40_000)):
        ring.counter("nic.synth0.tx_bytes", at, value)
    ring.counter("nic.synth0.rate_bytes_s", 1_000, 12_500_000_000, is_monotone=False)
    ring.op("msg.recv", 2_000, 3_000, ep=EP, ctx=1, len=64, fi_addr=fi.FI_ADDR_UNSPEC)
    for i in range(8):
        begin = 10_000 + 5_000 * i
        ring.op("rma.write", begin, begin + 1_000, ep=EP, ctx=0x40 * (i + 1), fi_addr=i % 2, len=4096, raddr=0x9000)
        ring.cq(CQ, begin + 3_000, begin + 4_000, [Cqe(0x40 * (i + 1), WRITTEN)], empties=10)
    ring.op("msg.sendv", 60_100, 60_200, ep=EP, ctx=0x900, len=80, nest=1)
    ring.op("msg.inject", 60_000, 60_500, ep=EP, len=8)
    ring.op("rma.writemsg", 61_000, 61_500, ep=EP, ctx=0x700, flags=fi.FI_MORE | fi.FI_REMOTE_CQ_DATA, imm=5, len=512)
    ring.op("msg.send", 62_000, 64_000, ep=EP, ctx=0x800, len=256, eagain=2)
    ring.op("msg.send", 65_000, 65_500, ep=EP, ctx=0x801, len=256, ret=-11, eagain=7)
    ring.cq(CQ, 69_000, 70_000, [Cqe(0x700, WRITTEN), Cqe(0x800, SENT, err=113), Cqe(0x123, SENT)])
    ring.cq(CQ, 70_500, 71_000, [Cqe(0, fi.FI_REMOTE_WRITE | fi.FI_REMOTE_CQ_DATA, data=7, len=32)])
    ring.cq(CQ, 71_500, 72_000, [Cqe(1, RECEIVED, len=64)])
    ring.op("msg.send", 80_000, 80_500, ep=EP, ctx=0x802, len=16)
    ring.span("step", 9_000, 75_000, is_step=True)
    return synth.finish(
        program="client", command=["client", "--to", "server"], host="synth", cpus=2, cpu_model="none",
        probes=[Probe("libfabric", ProbeState.ON), Probe("nic", ProbeState.DEGRADED, "no line rate of eth1", "none")],
    )  # fmt: skip
