"""One rank whose dispatch and combine are kernels on a GPU (gpu/efaprof_moe_gpu.h), and torch's operators on it.

The operators put kernels into torch's current stream and come back, so a step can be captured into a CUDA graph. Begin
and end of a step stand around its calls or its replay: they are not to be captured.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from efaprof.errors import EfaprofError, UsageError
from efaprof.instrument.ops import engine as host
from efaprof.instrument.ops import operators, registry
from efaprof.libraries import lib_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from efaprof.instrument.ops.engine import EngineOptions, StepKind

LIBRARY = "libefaprof-moe-gpu.so"
_CDEF = """
struct efaprof_moe_gpu;
struct efaprof_moe_gpu *efaprof_moe_gpu_open(const struct efaprof_moe_options *options, uint32_t device, int *result,
                                             char *error, size_t error_bytes);
int efaprof_moe_gpu_contact(struct efaprof_moe_gpu *moe, void *contact);
int efaprof_moe_gpu_connect(struct efaprof_moe_gpu *moe, const void *contacts);
int efaprof_moe_gpu_begin_step(struct efaprof_moe_gpu *moe, uint32_t step, int kind, void *stream);
int efaprof_moe_gpu_end_step(struct efaprof_moe_gpu *moe, void *stream);
int efaprof_moe_gpu_dispatch(struct efaprof_moe_gpu *moe, uint32_t layer, uint32_t tokens, const void *x,
                             const int64_t *experts, const float *weights, void *recv_x, int32_t *recv_experts,
                             float *recv_weights, int32_t *received, void *stream);
int efaprof_moe_gpu_combine(struct efaprof_moe_gpu *moe, uint32_t layer, uint32_t tokens, const void *y, void *out,
                            void *stream);
void efaprof_moe_gpu_counts(const struct efaprof_moe_gpu *moe, uint64_t counts[4]);
const char *efaprof_moe_gpu_error(const struct efaprof_moe_gpu *moe);
void efaprof_moe_gpu_close(struct efaprof_moe_gpu *moe);
"""
_ffi = host.FFI_OF_LIBRARIES
_ffi.cdef(_CDEF)


class CudaEngine(host.Member):
    """One rank on a GPU: open here, connected once the contacts of all ranks are known, closed with the others.

    `connect` takes some tenths of a second for the clocks.
    """

    _prefix = "efaprof_moe_gpu"

    def __init__(self, options: EngineOptions, *, device: int = 0) -> None:
        """Open the rank's endpoint; UsageError when the provider, the options or the GPU cannot be had."""
        self.device = device
        super().__init__(options, _library(), device)

    def begin_step(self, step: int, kind: StepKind = host.StepKind.DECODE) -> None:
        """What follows in the current stream belongs to this step; not in a capture."""
        self._call("begin_step", step, int(kind), self._stream())

    def end_step(self) -> None:
        """What came before in the current stream is all of the step; not in a capture."""
        self._call("end_step", self._stream())

    def dispatch(self, layer: int, given: Sequence[torch.Tensor], received: Sequence[torch.Tensor]) -> None:
        """Put a dispatch into the current stream: given x, experts, weights; received x, experts, weights, counts."""
        addresses = (_ffi.cast("void *", one.data_ptr()) for one in (*given, *received))
        self._call("dispatch", layer, given[0].shape[0], *addresses, self._stream())

    def combine(self, layer: int, answers: torch.Tensor, result: torch.Tensor) -> None:
        """Put a combine into the current stream, for the tokens of the last dispatch."""
        y, out = _ffi.cast("void *", answers.data_ptr()), _ffi.cast("void *", result.data_ptr())
        self._call("combine", layer, result.shape[0], y, out, self._stream())

    def _stream(self) -> Any:
        return _ffi.cast("void *", torch.cuda.current_stream(self.device).cuda_stream)


@cache
def register() -> None:
    """Make these the kernels of torch.ops.efaprof for tensors on a GPU; once."""
    library = operators.define()
    library.impl("dispatch", _dispatch, "CUDA")
    library.impl("combine", _combine, "CUDA")


def _engine(number: int) -> CudaEngine:
    engine = registry.find(number)
    if not isinstance(engine, CudaEngine):
        raise UsageError(f"engine {number} is not for tensors on a GPU", hint="open a CudaEngine")
    return engine


def _dispatch(
    x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, engine: int, layer: int
) -> operators.Received:
    received = operators.empty_received(x, experts, weights, engine, layer)
    given = (x.contiguous(), experts.contiguous(), weights.contiguous())
    _engine(engine).dispatch(layer, given, received)
    return received


def _combine(y: torch.Tensor, tokens: int, engine: int, layer: int) -> torch.Tensor:
    result = operators.empty_result(y, tokens, engine, layer)
    _engine(engine).combine(layer, y.contiguous(), result)
    return result


@cache
def _library() -> Any:
    path = lib_path(LIBRARY)
    try:
        return _ffi.dlopen(str(path), os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise EfaprofError(f"{path} cannot be loaded: {error}", hint="apt-get install libfabric1") from error
