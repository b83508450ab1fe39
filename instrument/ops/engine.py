"""One rank of the instrumented dispatch path in this process: libefaprof-moe.so (engine/efaprof_moe.h), typed.

Every call releases the GIL while it runs in native code; an engine is used by one thread at a time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from cffi import FFI

from efaprof.errors import EfaprofError, UsageError
from efaprof.instrument.dispatch import Injection, OperationCounts, SignalMode
from efaprof.instrument.ops import registry
from efaprof.libraries import lib_path
from efaprof.trace.layers import DispatchPath

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

LIBRARY = "libefaprof-moe.so"
CONTACT_BYTES = 256
DTYPES = ("f32", "bf16", "fp8")  # in the order of their numbers
_VERSION = 1
_REFUSED = 1
_PATHS = (DispatchPath.PROXY, DispatchPath.GDAKI)
_SIGNALS = (SignalMode.IMM, SignalMode.FENCE, SignalMode.FENCE_BATCH)
_CDEF = """
struct efaprof_moe_inject { uint64_t kernel_ns, ring_ns, proxy_ns, libfabric_ns, nic_ns, rx_ns; };
struct efaprof_moe_options {
    uint32_t struct_bytes, rank, ranks, tokens, hidden, topk, experts, channels, dtype, signal, path, ring, window,
        threads, timeout_s;
    const char *provider;
    struct efaprof_moe_inject inject;
};
struct efaprof_moe;
uint32_t efaprof_moe_version(void);
struct efaprof_moe *efaprof_moe_open(const struct efaprof_moe_options *options, int *result, char *error,
                                     size_t error_bytes);
int efaprof_moe_contact(struct efaprof_moe *moe, void *contact);
int efaprof_moe_connect(struct efaprof_moe *moe, const void *contacts);
int efaprof_moe_begin_step(struct efaprof_moe *moe, uint32_t step, int kind);
int efaprof_moe_end_step(struct efaprof_moe *moe);
int efaprof_moe_dispatch(struct efaprof_moe *moe, uint32_t layer, uint32_t tokens, const void *x,
                         const int64_t *experts, const float *weights, void *recv_x, int32_t *recv_experts,
                         float *recv_weights, int32_t *received);
int efaprof_moe_combine(struct efaprof_moe *moe, const void *y, void *out);
void efaprof_moe_counts(const struct efaprof_moe *moe, uint64_t counts[4]);
const char *efaprof_moe_error(const struct efaprof_moe *moe);
void efaprof_moe_close(struct efaprof_moe *moe);
"""
FFI_OF_LIBRARIES = _FFI = FFI()  # of the other devices' libraries too
_FFI.cdef(_CDEF)


class StepKind(IntEnum):
    """What a step of the model does; a pause is none, but a stretch in which there is nothing to do."""

    DECODE = 0
    PREFILL = 1
    MIXED = 2
    PAUSE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """A rank of a job; all but `rank`, `ring`, `window`, `threads` and `timeout_s` must be the same on every rank."""

    rank: int
    ranks: int
    tokens: int  # most of one rank in one dispatch
    hidden: int
    topk: int
    experts: int  # over all ranks
    channels: int = 4
    dtype: str = "f32"  # fp8, on a GPU only: tensors are bf16, tokens travel as e4m3 with a scale for each 128
    path: DispatchPath = DispatchPath.PROXY  # or GDAKI: the calling thread posts, to efa-direct
    provider: str = "tcp"
    signal: SignalMode = SignalMode.IMM
    ring: int = 1024  # commands
    window: int = 256  # operations in flight
    proxies: int = 1  # of a rank; an engine has no more
    threads: int | None = None  # of a rank, the caller's included; None: by the number of cores
    timeout_s: int = 60  # longest wait for a peer
    inject: tuple[Injection, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what has no number in the C interface; the library checks the rest."""
        if self.path not in _PATHS:
            raise UsageError(f"an engine has no path {self.path}", hint=f"use {' or '.join(_PATHS)}")
        if self.proxies != 1:
            raise UsageError(
                f"proxies={self.proxies}: an engine has one ring and one proxy",
                hint="efaprof bench dispatch --proxies measures several",
            )
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype {self.dtype} is not there", hint=f"use {' or '.join(DTYPES)}")

    @property
    def rows(self) -> int:
        """Rows of what a dispatch receives: `tokens` of each source rank."""
        return self.ranks * self.tokens


class Member:
    """What an engine is to the others of its job, whatever runs it; `_prefix` begins its functions' names."""

    _prefix: ClassVar[str]

    def __init__(self, options: EngineOptions, library: Any, *where: int) -> None:
        """Open the rank's endpoint; UsageError when the provider, the options or `where` cannot be had."""
        self.options = options
        self.handle = 0  # its number in torch.ops.efaprof
        self._lib = library
        provider = _FFI.new("char[]", options.provider.encode())
        error, result = _FFI.new("char[640]"), _FFI.new("int *")
        self._moe = self._function("open")(native_options(options, provider), *where, result, error, 640)
        if self._moe == _FFI.NULL:
            fail_with(_FFI.string(error).decode(errors="replace"), result=int(result[0]))
        self.handle = registry.add(self)

    def contact(self) -> bytes:
        """What the other ranks need of this one."""
        contact = _FFI.new(f"char[{CONTACT_BYTES}]")
        self._call("contact", contact)
        return bytes(_FFI.buffer(contact))

    def connect(self, contacts: Sequence[bytes]) -> None:
        """Reach every rank, given the contacts of all in their order."""
        if len(contacts) != self.options.ranks or any(len(one) != CONTACT_BYTES for one in contacts):
            raise UsageError(f"connect needs the contacts of all {self.options.ranks} ranks, in their order")
        self._call("connect", b"".join(contacts))

    def counts(self) -> OperationCounts:
        """Operations that this rank has issued: so far on a CPU, up to the last step that ended on a GPU."""
        counts = _FFI.new("uint64_t[4]")
        self._function("counts")(self._open(), counts)
        put, notify, signal, barrier = (int(count) for count in counts)
        return OperationCounts(put=put, notify=notify, signal=signal, barrier=barrier)

    def close(self) -> None:
        """Leave together with the other ranks; the second time nothing happens."""
        registry.remove(self.handle)
        moe, self._moe = self._moe, _FFI.NULL
        if moe != _FFI.NULL:
            self._function("close")(moe)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _function(self, name: str) -> Any:
        return getattr(self._lib, f"{self._prefix}_{name}")

    def _call(self, name: str, *arguments: Any) -> None:
        """Call a function of the open engine; what it says has failed is raised."""
        result = self._function(name)(self._open(), *arguments)
        if result != 0:
            text = _FFI.string(self._function("error")(self._moe)).decode(errors="replace")
            fail_with(text, result=result)

    def _open(self) -> Any:
        if self._moe == _FFI.NULL:
            raise ValueError("the engine is closed")
        return self._moe


class Engine(Member):
    """One rank: open here, connected once the contacts of all ranks are known, closed together with the others.

    The peers' processes are watched from `connect` on.
    """

    _prefix = "efaprof_moe"

    def __init__(self, options: EngineOptions) -> None:
        """Open the rank's endpoint; UsageError when the provider or the options cannot be had."""
        super().__init__(options, _library())

    def begin_step(self, step: int, kind: StepKind = StepKind.DECODE) -> None:
        """What follows belongs to this step; the same numbers and kinds in the same order on every rank."""
        self._call("begin_step", step, int(kind))

    def end_step(self) -> None:
        """The rank has computed all of the step."""
        self._call("end_step")

    def dispatch(
        self, layer: int, tokens: int, given: tuple[int, int, int], received: tuple[int, int, int, int]
    ) -> None:
        """Dispatch of memory by address: given x, experts, weights; received x, experts, weights, counts."""
        x, experts, weights = given
        into_x, into_experts, into_weights, counts = received
        cast = _FFI.cast
        self._call(
            "dispatch", layer, tokens, cast("void *", x), cast("int64_t *", experts), cast("float *", weights),
            cast("void *", into_x), cast("int32_t *", into_experts), cast("float *", into_weights),
            cast("int32_t *", counts),
        )  # fmt: skip

    def combine(self, answers: int, result: int) -> None:
        """Combine of memory by address, for the tokens of the last dispatch."""
        self._call("combine", _FFI.cast("void *", answers), _FFI.cast("void *", result))


def fail_with(text: str, *, result: int) -> NoReturn:
    """Raise what a call of the library said, by its result."""
    if result == _REFUSED:
        raise UsageError(f"dispatch: {text}", hint="efaprof fabric lists the providers and what they can do")
    raise EfaprofError(f"dispatch: {text}", hint="the other ranks of the job have to be started again too")


def native_options(options: EngineOptions, provider: Any) -> Any:
    """The options as the C interfaces take them; `provider` must outlive their use."""
    native = _FFI.new("struct efaprof_moe_options *")
    native.struct_bytes = _FFI.sizeof("struct efaprof_moe_options")
    for name in ("rank", "ranks", "tokens", "hidden", "topk", "experts", "channels", "ring", "window", "timeout_s"):
        setattr(native, name, getattr(options, name))
    native.dtype = DTYPES.index(options.dtype)
    native.path = _PATHS.index(options.path)
    native.signal = _SIGNALS.index(options.signal)
    native.threads = options.threads or 0
    native.provider = provider
    for injection in options.inject:
        name = f"{injection.layer}_ns"
        setattr(native.inject, name, getattr(native.inject, name) + injection.delay_ns)
    return native


@cache
def _library() -> Any:
    return load(_FFI)


def load(ffi: FFI) -> Any:
    """The library as a handle of this FFI; EfaprofError when it cannot be loaded or is of another version."""
    path = lib_path(LIBRARY)
    try:
        library = ffi.dlopen(str(path), os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise EfaprofError(
            f"{path} cannot be loaded: {error}", hint="apt-get install libfabric1, or set LD_LIBRARY_PATH to another"
        ) from error
    if library.efaprof_moe_version() != _VERSION:
        raise EfaprofError(f"{path} is of another version", hint="pip install --force-reinstall efaprof")
    return library
