"""One rank whose dispatch and combine are kernels on a GPU (gpu/efaprof_moe_gpu.h), and torch's operators on it.

The operators put kernels into torch's current stream and come back, so a step can be captured into a CUDA graph. Begin
and end of a step stand around its calls or its replay: they are not to be captured.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import torch

from efaprof.errors import EfaprofError, UsageError
from efaprof.instrument.dispatch import OperationCounts
from efaprof.instrument.ops import engine as host
from efaprof.instrument.ops import operators, registry
from efaprof.libraries import lib_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

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


class CudaEngine:
    """One rank on a GPU: open here, connected once the contacts of all ranks are known, closed with the others."""

    def __init__(self, options: EngineOptions, *, device: int = 0) -> None:
        """Open the rank's endpoint; UsageError when the provider, the options or the GPU cannot be had."""
        self.options = options
        self.device = device
        self.handle = 0  # its number in torch.ops.efaprof
        self._moe = _ffi.NULL
        self._lib = _library()
        provider = _ffi.new("char[]", options.provider.encode())
        error, result = _ffi.new("char[640]"), _ffi.new("int *")
        self._moe = self._lib.efaprof_moe_gpu_open(host.native_options(options, provider), device, result, error, 640)
        if self._moe == _ffi.NULL:
            host.fail_with(_ffi.string(error).decode(errors="replace"), result=int(result[0]))
        self.handle = registry.add(self)

    def contact(self) -> bytes:
        """What the other ranks need of this one."""
        contact = _ffi.new(f"char[{host.CONTACT_BYTES}]")
        self._check(self._lib.efaprof_moe_gpu_contact(self._open(), contact))
        return bytes(_ffi.buffer(contact))

    def connect(self, contacts: Sequence[bytes]) -> None:
        """Reach every rank, given the contacts of all in their order; takes some tenths of a second for the clocks."""
        if len(contacts) != self.options.ranks or any(len(one) != host.CONTACT_BYTES for one in contacts):
            raise UsageError(f"connect needs the contacts of all {self.options.ranks} ranks, in their order")
        self._check(self._lib.efaprof_moe_gpu_connect(self._open(), b"".join(contacts)))

    def begin_step(self, step: int, kind: StepKind = host.StepKind.DECODE) -> None:
        """What follows in the current stream belongs to this step; not in a capture."""
        self._check(self._lib.efaprof_moe_gpu_begin_step(self._open(), step, int(kind), self._stream()))

    def end_step(self) -> None:
        """What came before in the current stream is all of the step; not in a capture."""
        self._check(self._lib.efaprof_moe_gpu_end_step(self._open(), self._stream()))

    def dispatch(self, layer: int, given: Sequence[torch.Tensor], received: Sequence[torch.Tensor]) -> None:
        """Put a dispatch into the current stream: given x, experts, weights; received x, experts, weights, counts."""
        x, experts, weights = (_ffi.cast("void *", one.data_ptr()) for one in given)
        rows, chosen, factors, counts = (_ffi.cast("void *", one.data_ptr()) for one in received)
        self._check(
            self._lib.efaprof_moe_gpu_dispatch(
                self._open(), layer, given[0].shape[0], x, experts, weights, rows, chosen, factors, counts,
                self._stream(),
            )
        )  # fmt: skip

    def combine(self, layer: int, answers: torch.Tensor, result: torch.Tensor) -> None:
        """Put a combine into the current stream, for the tokens of the last dispatch."""
        y, out = _ffi.cast("void *", answers.data_ptr()), _ffi.cast("void *", result.data_ptr())
        self._check(self._lib.efaprof_moe_gpu_combine(self._open(), layer, result.shape[0], y, out, self._stream()))

    def counts(self) -> OperationCounts:
        """Operations that this rank has issued up to the last step that ended."""
        counts = _ffi.new("uint64_t[4]")
        self._lib.efaprof_moe_gpu_counts(self._open(), counts)
        put, notify, signal, barrier = (int(count) for count in counts)
        return OperationCounts(put=put, notify=notify, signal=signal, barrier=barrier)

    def close(self) -> None:
        """Leave together with the other ranks; the second time nothing happens."""
        registry.remove(self.handle)
        moe, self._moe = self._moe, _ffi.NULL
        if moe != _ffi.NULL:
            self._lib.efaprof_moe_gpu_close(moe)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stream(self) -> Any:
        return _ffi.cast("void *", torch.cuda.current_stream(self.device).cuda_stream)

    def _open(self) -> Any:
        if self._moe == _ffi.NULL:
            raise ValueError("the engine is closed")
        return self._moe

    def _check(self, result: int) -> None:
        if result != 0:
            text = _ffi.string(self._lib.efaprof_moe_gpu_error(self._moe)).decode(errors="replace")
            host.fail_with(text, result=result)


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
