"""One rank of the server: a process with its part of the model, told step by step what to do."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    import torch
    from moe_model import Model

    from efaprof.instrument.dense import Dense
    from efaprof.instrument.ops import Engine, EngineOptions, StepKind
    from efaprof.instrument.ops.operators import Received


VOCABULARY = 256  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Size of the model, and of one rank's cache."""

    layers: int = 4
    hidden: int = 64
    heads: int = 4
    experts: int = 8
    topk: int = 2
    slots: int = 8  # sequences of a rank at a time
    length: int = 256  # tokens of a sequence
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What all ranks have in common."""

    shape: Shape
    arm: str
    ranks: int
    tokens: int  # most of a rank in one step
    channels: int
    provider: str
    timeout_s: int
    rendezvous: str  # file through which the dense arm's process group meets


@dataclass(frozen=True, slots=True)
class Work:
    """One rank's part of a step: tokens, each with its slot and position, and which of them get a successor."""

    tokens: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    wanted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """A step of all ranks; without work it is a pause."""

    number: int
    kind: Literal["decode", "prefill", "mixed"] | None  # None: a pause
    accepted: int  # tokens that clients get from it, over all ranks
    sequences: int  # that get them
    work: Work


class EngineArm:
    """The instrumented proxy path, or the one that posts by itself, as operators."""

    def __init__(self, options: EngineOptions, pipe: Connection) -> None:
        from efaprof.instrument import ops

        ops.load()
        self.engine: Engine = ops.Engine(options)
        pipe.send(self.engine.contact())
        self.engine.connect(pipe.recv())

    def dispatch(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, layer: int) -> Received:
        """Tokens to their experts."""
        import torch

        received: Received = torch.ops.efaprof.dispatch(x, experts, weights, self.engine.handle, layer)
        return received

    def combine(self, y: torch.Tensor, tokens: int, layer: int) -> torch.Tensor:
        """Answers back."""
        import torch

        result: torch.Tensor = torch.ops.efaprof.combine(y, tokens, self.engine.handle, layer)
        return result

    def begin_step(self, number: int, kind: StepKind) -> None:
        """What follows belongs to this step."""
        self.engine.begin_step(number, kind)

    def end_step(self) -> None:
        """The rank has computed all of it."""
        self.engine.end_step()

    def close(self) -> None:
        """Leave together with the other ranks."""
        self.engine.close()


def _dense(job: Job, options: EngineOptions, pipe: Connection) -> Dense:
    import torch.distributed as dist

    from efaprof.instrument.dense import Dense

    pipe.send(b"")
    pipe.recv()  # everybody is there
    dist.init_process_group(
        "gloo", init_method=f"file://{job.rendezvous}", rank=options.rank, world_size=job.ranks,
        timeout=timedelta(seconds=job.timeout_s),
    )  # fmt: skip
    return Dense(options, emulated="nic: gloo on one host")


def run(job: Job, rank: int, pipe: Connection) -> None:
    """The rank's whole life. The other end of the pipe says what to do, and its end is the end."""
    # Ctrl-C goes to the whole group; the server stops its ranks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch

    torch.set_num_threads(1)
    from efaprof.errors import EfaprofError

    try:
        with torch.inference_mode():
            _serve(job, rank, pipe)
    except (EfaprofError, RuntimeError) as error:
        # Of the dense arm, torch says it.
        sys.stderr.write(f"serve: rank {rank} (pid {os.getpid()}): {error}\n")
        sys.exit(1)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit(0)  # the server is gone


def _serve(job: Job, rank: int, pipe: Connection) -> None:
    from moe_model import Model

    from efaprof.instrument.ops import EngineOptions, StepKind
    from efaprof.trace.layers import DispatchPath

    options = EngineOptions(
        rank=rank, ranks=job.ranks, tokens=job.tokens, hidden=job.shape.hidden, topk=job.shape.topk,
        experts=job.shape.experts, channels=job.channels, provider=job.provider, timeout_s=job.timeout_s,
        path=DispatchPath.GDAKI if job.arm == "gdaki" else DispatchPath.PROXY,
    )  # fmt: skip
    arm = _dense(job, options, pipe) if job.arm == "dense" else EngineArm(options, pipe)
    model = Model(job.shape, rank, job.ranks, arm)
    pipe.send("ready")
    while (step := pipe.recv()) is not None:
        if step.kind is None:
            arm.begin_step(step.number, StepKind.PAUSE)
        else:
            pipe.send(_step(arm, model, step))
    arm.close()


def _step(arm: EngineArm | Dense, model: Model, step: Step) -> list[int]:
    """The successors that were wanted."""
    import torch

    import efaprof
    from efaprof.instrument.ops import StepKind

    work = step.work
    with efaprof.step(kind=step.kind, tokens=step.accepted, batch=step.sequences):
        arm.begin_step(step.number, StepKind[str(step.kind).upper()])
        tokens, slots, positions = (
            torch.tensor(numbers, dtype=torch.int64) for numbers in (work.tokens, work.slots, work.positions)
        )
        logits = model.forward(tokens, slots, positions)
        found = logits[list(work.wanted)].argmax(-1).tolist()
        arm.end_step()
    return found
