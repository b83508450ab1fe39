"""The instrumented dispatch path for models in Python: `Engine` is one rank, `load()` makes torch operators of it."""

from __future__ import annotations

from efaprof.instrument.ops.engine import Engine, EngineOptions, StepKind

__all__ = ["Engine", "EngineOptions", "StepKind", "load", "load_cuda"]


def load() -> None:
    """Make torch.ops.efaprof.dispatch and .combine; imports torch, which nothing else here does."""
    from efaprof.instrument.ops import cpu, operators

    operators.define()
    cpu.register()


def load_cuda() -> None:
    """The same for tensors on a GPU too; their engines are `efaprof.instrument.ops.cuda.CudaEngine`."""
    from efaprof.instrument.ops import cuda

    load()
    cuda.register()
