"""Synthetic dispatch in a steady state: every step alike, every layer's share known in closed form.

Each rank computes, issues `commands` operations one after the other, and polls until the last of its peer's has been
handed over. One proxy serves the commands first in, first out:

    compute │ kernel kernel kernel …                publish_i = compute + (i+1)·kernel
                │ ring │ proxy │ libfabric │        seen_i = max(publish_i + ring, return_{i-1})
                                                    return_i = seen_i + proxy + libfabric
                                   │ nic │ rx │ poll    wall = return_{n-1} + nic + rx + poll

With several proxies a rank, commands go to them in turn, and each serves its own first in, first out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from efaprof.trace import layout
from efaprof.trace.layout import Clock, Command, Compute, Phase, Shape, Stage, StepKind, WaitKind
from efaprof.trace.synth import SynthRun, TickClock, kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from efaprof.trace.rundir import Run
    from efaprof.trace.synth import SynthRing

STEPS_PER_BLOCK = 4096
X_SIGNAL = (Command.SIGNAL << 12) | layout.X_IMM
X_PUT = (Command.PUT << 12) | layout.X_IMM


@dataclass(frozen=True, slots=True)
class Steady:
    """Durations of one operation in each layer, ns, and the size of a step; the properties are the answers."""

    steps: int
    commands: int = 16  # of a rank; a multiple of its proxies
    ranks: int = 2
    proxies: int = 1  # of a rank
    compute_ns: int = 50_000
    kernel_ns: int = 300
    ring_ns: int = 1_000
    proxy_ns: int = 700
    libfabric_ns: int = 900
    nic_ns: int = 12_000
    rx_ns: int = 400
    poll_ns: int = 200
    len_bytes: int = 4096
    start_ns: int = 1_000_000

    @property
    def operations(self) -> int:
        """Operations of the run."""
        return self.steps * self.commands * self.ranks

    def times(self) -> dict[str, NDArray[np.int64]]:
        """Stamps of a step's operations, ns from its begin."""
        number = np.arange(self.commands, dtype=np.int64)
        publish = self.compute_ns + (number + 1) * self.kernel_ns
        service = self.proxy_ns + self.libfabric_ns
        # Of one ring, seen_i = max over j ≤ i of (publish_j + ring + (i - j)·service): a first-in-first-out server as
        # a scan.
        before = number // self.proxies * service
        due = (publish + self.ring_ns - before).reshape(-1, self.proxies)
        seen = np.maximum.accumulate(due, axis=0).reshape(-1) + before
        returned = seen + service
        done = returned + self.nic_ns
        return {
            "enter": publish - self.kernel_ns, "publish": publish, "seen": seen, "call": seen + self.proxy_ns,
            "return": returned, "done": done, "signal": done + self.rx_ns,
        }  # fmt: skip

    @property
    def wall_ns(self) -> int:
        """Length of a step."""
        return int(self.times()["signal"].max()) + self.poll_ns

    @property
    def of_ring(self) -> int:
        """Commands of one ring in a step."""
        return self.commands // self.proxies


def write_steady(path: Path, steady: Steady) -> Run:
    """A run directory with that traffic, in bounded memory."""
    run = SynthRun(path)
    clock = run.ring(pid=1, producer="parent")
    for sample in range(3):
        clock.clock_sample(steady.start_ns + sample * steady.steps * steady.wall_ns // 2)
    for rank in range(steady.ranks):
        lane = run.ring(pid=100 + rank, producer="dispatch", comm="lane0")
        lane.put(layout.NOTE, kind_of(Shape.NOTE, 1), 0, name=lane.name("job.rank"), value=rank)
        proxy = run.ring(pid=100 + rank, tid=200 + rank, producer="dispatch", comm="proxy0")
        _write_rank(steady, rank, lane, proxy)
    return run.finish(fingerprint={"ranks": steady.ranks, "commands": steady.commands})


@dataclass(frozen=True, slots=True)
class HostClock:
    """What a host's clock shows: true time, an offset, and `drift` for every ns of it; `day_error_ns` off at noon."""

    offset_ns: int = 0
    drift: float = 0.0
    day_error_ns: int = 0

    def shows(self, true_ns: int) -> int:
        """CLOCK_MONOTONIC at a time."""
        return self.offset_ns + round(true_ns * (1 + self.drift))


def write_hosts(folder: Path, steady: Steady, clocks: Sequence[HostClock]) -> list[Run]:
    """The same traffic, each rank recorded on a host of its own, by that host's clock."""
    runs = []
    for rank, own in enumerate(clocks):
        run = SynthRun(folder / f"rank{rank}", clock=TickClock(Clock.TSC), host=f"host{rank}", boot=(rank + 1, 7))
        parent = run.ring(pid=1, producer="parent")
        for sample in range(3):
            at = steady.start_ns + sample * steady.steps * steady.wall_ns // 2
            parent.put(
                layout.CLOCK, kind_of(Shape.CLOCK, 0), at, dur_ns=50, monotonic_ns=own.shows(at),
                realtime_ns=at + own.day_error_ns,
            )  # fmt: skip
        lane = run.ring(pid=100 + rank, producer="dispatch", comm="lane0")
        lane.put(layout.NOTE, kind_of(Shape.NOTE, 1), 0, name=lane.name("job.rank"), value=rank)
        proxy = run.ring(pid=100 + rank, tid=200 + rank, producer="dispatch", comm="proxy0")
        _write_rank(steady, rank, lane, proxy)
        made = {"ranks": steady.ranks, "commands": steady.commands}
        runs.append(run.finish(fingerprint=made, job_id="job", boot_id=f"boot{rank}"))
    return runs


def _write_rank(steady: Steady, rank: int, lane: SynthRing, proxy: SynthRing) -> None:
    lane_step, proxy_step = _lane_step(steady, rank), _proxy_step(steady, rank)
    for first in range(0, steady.steps, STEPS_PER_BLOCK):
        count = min(STEPS_PER_BLOCK, steady.steps - first)
        lane.raw(_repeat(steady, lane_step, rank, first, count).tobytes())
        proxy.raw(_repeat(steady, proxy_step, rank, first, count).tobytes())
        lane.flush()
        proxy.flush()
    end = np.zeros(steady.proxies, layout.MARK)
    end["t_end"] = steady.start_ns + steady.steps * steady.wall_ns
    end["kind"], end["step"], end["phase"] = kind_of(Shape.MARK, 1), steady.steps, Phase.STEP
    end["ring"] = _rings(steady, rank)
    end["first_seq"] = _bytes48(np.full(steady.proxies, steady.steps * steady.of_ring))
    lane.raw(end.tobytes())


def _lane_step(steady: Steady, rank: int) -> NDArray[np.void]:
    """Records of the lane in one step, sequences and times from the step's begin."""
    t = steady.times()
    mark, compute = np.zeros((2, steady.proxies), layout.MARK), np.zeros(1, layout.STAGE)
    mark["kind"], mark["ring"] = kind_of(Shape.MARK, 1), _rings(steady, rank)
    mark["phase"] = [[Phase.STEP], [Phase.DISPATCH]]
    mark["x"] = StepKind.DECODE
    mark["t_end"] = [[0], [steady.compute_ns]]
    compute["kind"], compute["x"] = kind_of(Shape.STAGE, Stage.COMPUTE), Compute.STANDIN
    compute["t_end"] = compute["dur"] = steady.compute_ns
    compute["peer"], compute["op"] = rank, np.uint64(rank << 48)
    kernel = _stages(steady, rank, Stage.KERNEL, t["enter"], t["publish"])
    wait = np.zeros(1, layout.WAIT)
    wait["kind"], wait["x"] = kind_of(Shape.WAIT, WaitKind.POLL), Phase.DISPATCH
    wait["t_end"], wait["dur"] = steady.wall_ns, steady.wall_ns - t["publish"][-1]
    wait["src"], wait["ring"], wait["polls"] = _sender(steady, rank), rank, 1
    last = int(np.argmax(t["signal"]))
    wait["t_sig"], wait["seq"], wait["channel"] = t["signal"][last], last // steady.proxies, last % steady.proxies
    parts = [mark[0], compute, mark[1], kernel, wait]
    return np.concatenate([part.view("u1").reshape(-1, layout.SLOT_BYTES) for part in parts]).view(layout.STAGE)[:, 0]


def _proxy_step(steady: Steady, rank: int) -> NDArray[np.void]:
    """Records of the proxy in one step, in order of their ends."""
    t = steady.times()
    stages = [
        _stages(steady, rank, Stage.RING, t["publish"], t["seen"]),
        _stages(steady, rank, Stage.PROXY, t["seen"], t["call"]),
        _stages(steady, rank, Stage.LIBFABRIC, t["call"], t["return"]),
        _stages(steady, rank, Stage.NIC, t["return"], t["done"]),
        _stages(steady, rank, Stage.TOLD, t["done"], t["done"]),
    ]
    rx = np.zeros(steady.commands, layout.RX)
    rx["kind"], rx["src"] = kind_of(Shape.RX, 1), _sender(steady, rank)
    rx["t_end"], rx["dur"] = t["signal"], steady.rx_ns
    rx["seq"] = _bytes48(np.arange(steady.commands) // steady.proxies)
    rx["channel"] = np.arange(steady.commands) % steady.proxies
    both = np.concatenate([*stages, rx.view("u1").reshape(-1, layout.SLOT_BYTES).view(layout.STAGE)[:, 0]])
    return both[np.argsort(both["t_end"], kind="stable")]


def _stages(
    steady: Steady, rank: int, stage: Stage, begin: NDArray[np.int64], end: NDArray[np.int64]
) -> NDArray[np.void]:
    made = np.zeros(steady.commands, layout.STAGE)
    made["kind"] = kind_of(Shape.STAGE, stage)
    made["t_end"], made["dur"] = end, end - begin
    number = np.arange(steady.commands)
    made["x"] = X_PUT | number % steady.proxies  # a channel keeps to one ring
    made["x"][-steady.proxies :] += X_SIGNAL - X_PUT
    ring = np.tile(_rings(steady, rank), steady.of_ring).astype(np.uint64)
    made["op"] = ring << np.uint64(48) | (number // steady.proxies).astype(np.uint64)
    made["bytes"], made["peer"] = steady.len_bytes, _peer(steady, rank)
    return made


def _repeat(steady: Steady, step: NDArray[np.void], rank: int, first: int, count: int) -> NDArray[np.void]:
    """The step's records `count` times, each in its place in time and sequence."""
    made = np.tile(step, count)
    number = np.repeat(np.arange(first, first + count, dtype=np.uint64), len(step))
    shape = np.tile((step["kind"] >> 8).astype(np.uint8), count)
    # The second slot of a WAIT record begins with its sequence: see format.h.
    body = np.flatnonzero(np.append(False, shape[:-1] == Shape.WAIT))
    t_sig = made.view(np.uint64).reshape(-1, 4)[body, 1].copy()
    base = np.uint64(steady.start_ns) + number * np.uint64(steady.wall_ns)
    made["t_end"] += base
    words = made.view(np.uint64).reshape(-1, 4)
    words[body, 0] += number[body] * np.uint64(steady.of_ring)
    words[body, 1] = t_sig + base[body]
    stages = np.flatnonzero(shape == Shape.STAGE)
    made["op"][stages] += number[stages] * np.uint64(steady.of_ring)
    for kind, dtype, name in ((Shape.MARK, layout.MARK, "first_seq"), (Shape.RX, layout.RX, "seq")):
        rows = np.flatnonzero(shape == kind)
        typed = made.view(dtype)
        own = typed[name][rows]
        wide = np.zeros((len(rows), 8), np.uint8)
        wide[:, :6] = own
        typed[name][rows] = _bytes48(
            wide.view("<i8").reshape(-1) + (number[rows] * np.uint64(steady.of_ring)).astype(np.int64)
        )
        if kind is Shape.MARK:
            typed["step"][rows] = number[rows]
    waits = np.flatnonzero(shape == Shape.WAIT)
    made.view(layout.MARK)["step"][waits] = number[waits]
    return made


def _rings(steady: Steady, rank: int) -> NDArray[np.int64]:
    """Numbers of a rank's rings."""
    return rank + layout.RINGS_APART * np.arange(steady.proxies)


def _bytes48(numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    return numbers.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :6]


def _peer(steady: Steady, rank: int) -> int:
    return (rank + 1) % steady.ranks


def _sender(steady: Steady, rank: int) -> int:
    return (rank - 1) % steady.ranks
