"""One rank of the server: a process with its part of the model, told step by step what to do."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    import torch
    from moe_graphs import DecodeGraphs
    from moe_model import Model, Place

    from efaprof.instrument.dense import Dense
    from efaprof.instrument.ops import Engine, EngineOptions, StepKind
    from efaprof.instrument.ops.cuda import CudaEngine
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
    device: str  # cpu or cuda
    has_graphs: bool  # decode steps are CUDA graphs
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

    def __init__(self, options: EngineOptions, place: Place) -> None:
        from efaprof.instrument import ops

        ops.load()
        self.engine: Engine | CudaEngine
        if place.device.type == "cuda":
            from efaprof.instrument.ops.cuda import CudaEngine

            ops.load_cuda()
            self.engine = CudaEngine(options, device=place.device.index)
        else:
            self.engine = ops.Engine(options)

    def connect(self, pipe: Connection) -> None:
        """Come together with the other ranks."""
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


def _dense(job: Job, options: EngineOptions, place: Place, pipe: Connection) -> Dense:
    import torch
    import torch.distributed as dist

    from efaprof.instrument.dense import Dense

    pipe.send(b"")
    pipe.recv()  # everybody is there
    is_cuda = place.device.type == "cuda"
    # Two ranks of an NCCL group cannot share a GPU.
    is_nccl = is_cuda and torch.cuda.device_count() >= job.ranks
    dist.init_process_group(
        "nccl" if is_nccl else "gloo", init_method=f"file://{job.rendezvous}", rank=options.rank, world_size=job.ranks,
        timeout=timedelta(seconds=job.timeout_s), device_id=place.device if is_nccl else None,
    )  # fmt: skip
    wire = "NCCL on one host" if is_nccl else "gloo on one host"
    return Dense(options, emulated=f"nic: {wire}{', staged through host memory' if is_cuda and not is_nccl else ''}")


def _place(job: Job, rank: int) -> Place:
    """Where this rank computes; ranks take the GPUs in turn."""
    import torch
    from moe_model import HOST, Place

    if job.device == "cpu":
        return HOST
    if not torch.cuda.is_available():
        raise RuntimeError("torch has no GPU here")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    stream_on: Any = torch.cuda.Stream  # torch gives its methods no types
    torch.cuda.set_stream(stream_on(device))  # torch's default one would wait for others
    return Place(device, torch.bfloat16, is_static=True)


def _rehearse(job: Job, model: Model, options: EngineOptions) -> None:
    """Load every kernel and take all memory of a step, for every number of tokens: not while a rank waits for us.

    A kernel that is loaded, or memory that is taken, waits for the kernels of other processes on the same GPU too.
    """
    import torch

    room = [torch.empty(1 << 19, dtype=torch.uint8, device=model.place.device) for _ in range(32)]
    batches = [_inputs(job, model, Work((0,) * count, (job.shape.slots,) * count, (0,) * count))
               for count in range(job.tokens + 1)]  # fmt: skip
    model.rehearse(options, batches)
    torch.cuda.synchronize()
    del room  # torch keeps it for what comes


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
        dtype="f32" if job.device == "cpu" else "bf16",
    )  # fmt: skip
    place = _place(job, rank)
    arm = _dense(job, options, place, pipe) if job.arm == "dense" else EngineArm(options, place)
    model = Model(job.shape, rank, job.ranks, arm, place)
    if place.is_static:
        _rehearse(job, model, options)
    if isinstance(arm, EngineArm):
        arm.connect(pipe)
    graphs = _graphs(job, model, options, arm) if job.has_graphs else None
    pipe.send("ready")
    while (step := pipe.recv()) is not None:
        if step.kind is None:
            arm.begin_step(step.number, StepKind.PAUSE)
        else:
            pipe.send(_step(job, arm, model, graphs, step))
    arm.close()


def _graphs(job: Job, model: Model, options: EngineOptions, arm: EngineArm | Dense) -> DecodeGraphs:
    """Only kernels can be captured: the dense arm's collectives are called between graphs."""
    from moe_graphs import DecodeGraphs

    return DecodeGraphs(model, options, most=job.shape.slots, is_capturable=isinstance(arm, EngineArm))


def _rows(job: Job, model: Model, work: Work) -> list[tuple[int, ...]]:
    """Tokens, slots, positions; where shapes must stay the same, filled up with tokens of nobody's slot."""
    empty = job.tokens - len(work.tokens) if model.place.is_static else 0
    return [work.tokens + (0,) * empty, work.slots + (job.shape.slots,) * empty, work.positions + (0,) * empty]


def _inputs(job: Job, model: Model, work: Work) -> list[torch.Tensor]:
    """The same where the model computes."""
    import torch

    return list(torch.tensor(_rows(job, model, work), dtype=torch.int64).to(model.place.device).unbind())


def _step(job: Job, arm: EngineArm | Dense, model: Model, graphs: DecodeGraphs | None, step: Step) -> list[int]:
    """The successors that were wanted."""
    import efaprof
    from efaprof.instrument.ops import StepKind

    work, count = step.work, len(step.work.tokens)
    with efaprof.step(kind=step.kind, tokens=step.accepted, batch=step.sequences):
        arm.begin_step(step.number, StepKind[str(step.kind).upper()])
        if graphs is not None and step.kind == "decode" and graphs.has(count):
            made = graphs.forward(_rows(job, model, work), count).tolist()
        else:
            tokens, slots, positions = _inputs(job, model, work)
            made = model.forward(tokens, slots, positions, count).argmax(-1).tolist()
        arm.end_step()
    return [made[at] for at in work.wanted]
