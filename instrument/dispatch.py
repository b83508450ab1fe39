"""Plan of a run of the instrumented dispatch path: its options, its command line, what it emulates, what it will do."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from efaprof import env, native
from efaprof.errors import EfaprofError, UsageError
from efaprof.instrument.device import AS_USUAL, Tuning, dtype_for, emulated
from efaprof.trace.layers import DispatchPath, Layer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

BINARY = "efaprof-dispatch"
WORKLOAD = "efaprof dispatch"  # `workload` in a fingerprint
INJECTABLE = (Layer.KERNEL, Layer.RING, Layer.PROXY, Layer.LIBFABRIC, Layer.NIC, Layer.RX)
# On a path without host stages.
POSTED_INJECTABLE = (Layer.KERNEL, Layer.NIC, Layer.RX)
POSTED_PROVIDER = "efa-direct"
MOST_PROXIES = 8  # of a rank
DENSE_PROVIDERS = ("auto", "gloo", "nccl")  # of path dense: torch.distributed's backends
_NOT_DENSE = ("channels", "signal", "threads", "ring", "window")
DEVICE_PROVIDERS = ("efa", "efa-direct")  # they post to a device; the others stay on this host


class SignalMode(StrEnum):
    """How a channel's tail is ordered behind its data; see `SignalMode` in workload/options.h."""

    IMM = "imm"
    FENCE = "fence"
    FENCE_BATCH = "fence-batch"


@dataclass(frozen=True, slots=True)
class Injection:
    """Time added to every operation in one layer."""

    layer: Layer
    delay_ns: int

    def __post_init__(self) -> None:
        if self.layer not in INJECTABLE:
            raise UsageError(
                f"nothing can be injected into {self.layer}", hint=f"choose one of {', '.join(INJECTABLE)}"
            )


@dataclass(frozen=True, slots=True)
class Lateness:
    """Time that one rank computes longer in every layer."""

    rank: int
    delay_ns: int


class QueueSource(StrEnum):
    """Where a kernel that posts by itself has its queues from."""

    AUTO = "auto"  # libfabric where it hands them out, else EFA's verbs
    LIBFABRIC = "libfabric"
    VERBS = "verbs"


class Completion(StrEnum):
    """How a kernel that posts by itself learns that operations have ended."""

    CQ = "cq"
    COUNTER = "counter"  # the device counts; arrivals are found in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Posting:
    """How a kernel posts by itself: only path gdaki has these."""

    queues: QueueSource = QueueSource.AUTO
    completion: Completion = Completion.CQ
    batch: int = 16  # entries that one doorbell announces
    send_queue: int | None = None  # entries; None: as many as operations in flight

    def arguments(self) -> list[str]:
        """Arguments of efaprof-dispatch."""
        words = ["--queues", self.queues.value, "--completion", self.completion.value, "--batch", str(self.batch)]
        return words if self.send_queue is None else [*words, "--send-queue", str(self.send_queue)]


@dataclass(frozen=True, slots=True)
class OperationCounts:
    """Operations of one rank, by kind."""

    put: int = 0
    notify: int = 0
    signal: int = 0
    barrier: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.put + self.notify + self.signal + self.barrier


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchOptions:
    """What to run. Limits that depend on the provider are checked by the program itself."""

    path: DispatchPath = DispatchPath.PROXY
    device: str = "cpu"
    dtype: str = "f32"  # of a token's elements
    provider: str = "tcp"
    ranks: int = 2
    layers: int = 8
    tokens: int = 8  # per rank and step
    hidden: int = 1024
    topk: int = 4
    experts: int = 16  # over all ranks
    channels: int = 4
    compute_us: int = 200
    signal: SignalMode = SignalMode.IMM
    steps: int = 300
    warmup: int = 20
    seed: int = 1
    proxies: int = 1  # of a rank, each with a ring; a channel keeps to one
    threads: int | None = None  # of a rank with one proxy; None: by the number of cores
    ring: int = 1024  # commands
    window: int = 256  # operations in flight
    inject: tuple[Injection, ...] = field(default=())
    late: tuple[Lateness, ...] = field(default=())
    posting: Posting = Posting()
    tuning: Tuning = AS_USUAL

    def __post_init__(self) -> None:
        """Refuse what there is not, and what contradicts itself."""
        self._check_proxies()
        if self.path is DispatchPath.LIBFABRIC:
            raise UsageError(
                "--path libfabric is what any recorded program does, not a workload of ours",
                hint="use --path proxy, gdaki or dense",
            )
        if self.path is DispatchPath.DENSE:
            self._check_dense()
        self._check_posting()
        dtype_for(self.device, self.dtype)
        if self.device != "cpu" and self.is_posted:
            self._check_posting_kernel()

    @property
    def is_posted(self) -> bool:
        """The kernel posts by itself."""
        return self.path is DispatchPath.GDAKI

    def _check_proxies(self) -> None:
        if self.proxies == 1:
            return
        if self.path is not DispatchPath.PROXY:
            raise UsageError(f"--path {self.path} has no proxies", hint="leave --proxies out, or use --path proxy")
        if not 1 <= self.proxies <= MOST_PROXIES:
            raise UsageError(f"--proxies {self.proxies} is not from 1 to {MOST_PROXIES}", hint="give fewer")
        if self.proxies > self.channels:
            raise UsageError(
                f"--proxies {self.proxies}: a channel keeps to one of them, and there are {self.channels} channels",
                hint=f"use --channels {self.proxies} or more",
            )

    def _check_dense(self) -> None:
        if self.provider not in DENSE_PROVIDERS:
            raise UsageError(
                f"--path dense is torch's collectives, not libfabric's provider {self.provider}",
                hint=f"use --provider {' or '.join(DENSE_PROVIDERS)}, or leave it out",
            )
        if self.inject or self.tuning != AS_USUAL:
            raise UsageError("--path dense has no operations of ours to slow or to tune", hint="use --path proxy")
        for one in fields(self):
            if one.name in _NOT_DENSE and getattr(self, one.name) != one.default:
                raise UsageError(f"--path dense has no {one.name}", hint=f"leave --{one.name} out")
        if self.dtype == "fp8":
            raise UsageError("collectives do not move fp8 with its scales", hint="use --dtype bf16")

    def _check_posting_kernel(self) -> None:
        for injection in self.inject:
            if injection.layer != "kernel":
                raise UsageError(
                    f"nothing can be injected into {injection.layer} where a GPU posts by itself",
                    hint="inject into kernel, or use --device cpu",
                )

    def _check_posting(self) -> None:
        if not self.is_posted:
            if self.posting != Posting():
                raise UsageError("only a kernel that posts by itself has such queues", hint="add --path gdaki")
            return
        if self.provider != POSTED_PROVIDER:
            raise UsageError(
                f"--path gdaki posts to an EFA device, not through provider {self.provider}",
                hint=f"use --provider {POSTED_PROVIDER}",
            )
        for injection in self.inject:
            if injection.layer not in POSTED_INJECTABLE:
                raise UsageError(
                    f"nothing can be injected into {injection.layer} on path gdaki: it has no such stage",
                    hint=f"choose one of {', '.join(POSTED_INJECTABLE)}",
                )
        if self.posting.completion is Completion.COUNTER and self.signal is SignalMode.IMM:
            raise UsageError(
                "--completion counter reads no completion queue, where immediates arrive", hint="use --signal fence"
            )

    def arguments(self) -> list[str]:
        """Arguments of the path's program."""
        if self.path is DispatchPath.DENSE:
            return self._dense_arguments()
        numbers = ("ranks", "layers", "tokens", "hidden", "topk", "experts", "channels", "steps", "warmup", "seed",
                   "ring", "window")  # fmt: skip
        words = [word for name in numbers for word in (f"--{name}", str(getattr(self, name)))]
        words += ["--compute-us", str(self.compute_us), "--signal", self.signal.value, "--provider", self.provider]
        words += ["--proxies", str(self.proxies)] if self.proxies != 1 else []
        words += ["--threads", "auto" if self.threads is None else str(self.threads)]
        words += ["--device", self.device, "--dtype", self.dtype, *self.tuning.arguments()]
        if self.is_posted:
            words += ["--path", self.path.value, *self.posting.arguments()]
        for injection in self.inject:
            words += ["--inject", f"{injection.layer}={injection.delay_ns}ns"]
        for lateness in self.late:
            words += ["--late", f"{lateness.rank}={lateness.delay_ns}ns"]
        return words

    def _dense_arguments(self) -> list[str]:
        numbers = ("ranks", "layers", "tokens", "hidden", "topk", "experts", "steps", "warmup", "seed", "compute_us")
        words = [word for name in numbers for word in (f"--{name.replace('_', '-')}", str(getattr(self, name)))]
        words += ["--device", self.device, "--dtype", self.dtype, "--provider", self.provider]
        return words + [word for one in self.late for word in ("--late", f"{one.rank}={one.delay_ns}ns")]

    def command(self) -> tuple[str, ...]:
        """The program that runs it, with its arguments."""
        if self.path is DispatchPath.DENSE:
            return (sys.executable, "-m", "efaprof.instrument.dense_job", *self.arguments())
        return (str(binary()), *self.arguments())

    def emulated(self) -> tuple[str, ...]:
        """What of the path is not the real thing, for the manifest."""
        if self.path is DispatchPath.DENSE:  # the ranks say what their wire is
            return ("compute: the host waits",)
        kernel = emulated(self.device)
        return (
            (kernel,) if self.provider in DEVICE_PROVIDERS else (kernel, f"nic: provider {self.provider} on one host")
        )

    def fingerprint(self) -> dict[str, Any]:
        """What must be equal for two runs to be comparable; the number of steps need not be."""
        values = asdict(self) | {"workload": WORKLOAD}
        del values["steps"], values["warmup"], values["late"], values["posting"], values["tuning"]
        values["inject"] = {injection.layer.value: injection.delay_ns for injection in self.inject}
        if self.proxies == 1:  # runs of before there was such an option are comparable
            del values["proxies"]
        if self.late:
            values["late"] = {str(lateness.rank): lateness.delay_ns for lateness in self.late}
        if self.is_posted:
            values["posting"] = asdict(self.posting)
        if self.tuning != AS_USUAL:
            values["tuning"] = asdict(self.tuning)
        return values

    @classmethod
    def from_fingerprint(cls, fingerprint: Mapping[str, Any]) -> DispatchOptions | None:
        """Options whose fingerprint this is, with the default number of steps; None when it is not of this workload."""
        if fingerprint.get("workload") != WORKLOAD:
            return None
        values = {name: fingerprint[name] for name in cls.__dataclass_fields__ if name in fingerprint}
        values["path"], values["signal"] = DispatchPath(values["path"]), SignalMode(values["signal"])
        values["inject"] = tuple(Injection(Layer(layer), delay) for layer, delay in values["inject"].items())
        values["late"] = tuple(Lateness(int(rank), delay) for rank, delay in fingerprint.get("late", {}).items())
        if "posting" in fingerprint:
            posting = fingerprint["posting"]
            queues, completion = QueueSource(posting["queues"]), Completion(posting["completion"])
            values["posting"] = Posting(**{**posting, "queues": queues, "completion": completion})
        if "tuning" in fingerprint:
            values["tuning"] = Tuning(**fingerprint["tuning"])
        return cls(**values)

    def step_counts(self, step: int) -> list[OperationCounts]:
        """Operations that each rank will issue in this step (counted from 0, warm-up included)."""
        from efaprof.instrument.routing import step_experts, tokens_between_ranks  # numpy: starts threads

        between = tokens_between_ranks(
            step_experts(
                seed=self.seed, step=step, layers=self.layers, ranks=self.ranks, tokens=self.tokens,
                topk=self.topk, experts=self.experts,
            ),
            ranks=self.ranks,
            experts_per_rank=self.experts // self.ranks,
        ).sum(axis=0)  # fmt: skip
        peers = (self.ranks - 1) * self.layers
        if self.path is DispatchPath.DENSE:  # to every peer, a gather and a scatter a layer
            return [OperationCounts(signal=2 * peers)] * self.ranks
        return [
            OperationCounts(
                # Tokens go out to their experts' ranks; what came in goes back, summed.
                put=int(between[rank].sum() + between[:, rank].sum() - 2 * between[rank, rank]),
                notify=2 * peers,
                signal=2 * peers * self.channels,
                barrier=2 * peers,
            )
            for rank in range(self.ranks)
        ]

    def run_counts(self) -> list[OperationCounts]:
        """Operations that each rank will issue in all, warm-up included."""
        puts = [0] * self.ranks
        for step in range(self.warmup + self.steps):
            for rank, counts in enumerate(self.step_counts(step)):
                puts[rank] += counts.put
        peers = 2 * (self.ranks - 1) * self.layers * (self.warmup + self.steps)
        return [OperationCounts(put=put, notify=peers, signal=peers * self.channels, barrier=peers) for put in puts]


def binary() -> Path:
    """The native program; EfaprofError when this installation was built without libfabric."""
    try:
        return native.lib_path(BINARY)
    except EfaprofError as error:
        if os.environ.get(env.LIB_DIR):
            raise
        raise EfaprofError(
            f"{BINARY} is not part of this installation: libfabric was not there when it was built",
            hint="apt-get install libfabric-dev, then pip install --force-reinstall efaprof",
        ) from error
