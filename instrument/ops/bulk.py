"""Records of collectives that somebody else runs (engine/efaprof_bulk.h)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cffi import FFI

from efaprof.errors import EfaprofError
from efaprof.instrument.ops.engine import load
from efaprof.trace.layers import DispatchPath

if TYPE_CHECKING:
    from efaprof.instrument.ops.engine import EngineOptions

_FFI = FFI()
_FFI.cdef("""
struct efaprof_bulk;
struct efaprof_bulk *efaprof_bulk_open(uint32_t rank, uint32_t ranks, const char *emulated,
                                       const char *options);
void efaprof_bulk_begin_step(struct efaprof_bulk *bulk, uint32_t step, int kind);
void efaprof_bulk_end_step(struct efaprof_bulk *bulk);
void efaprof_bulk_enter(struct efaprof_bulk *bulk, uint32_t layer, int phase);
void efaprof_bulk_leave(struct efaprof_bulk *bulk, uint32_t bytes);
void efaprof_bulk_verified(const struct efaprof_bulk *bulk, uint64_t tokens);
void efaprof_bulk_close(struct efaprof_bulk *bulk);
uint32_t efaprof_moe_version(void);
""")


class BulkRecords:
    """One rank's records; for one thread."""

    def __init__(self, options: EngineOptions, emulated: str | None) -> None:
        self._lib: Any = load(_FFI)
        text = emulated.encode() if emulated else _FFI.NULL
        words = {name: getattr(options, name) for name in ("ranks", "tokens", "hidden", "topk", "experts", "dtype")}
        said = " ".join(f"{name}={value}" for name, value in (words | {"path": DispatchPath.DENSE}).items())
        self._bulk = self._lib.efaprof_bulk_open(options.rank, options.ranks, text, said.encode())
        if self._bulk == _FFI.NULL:
            raise EfaprofError("out of memory")

    def begin_step(self, step: int, kind: int) -> None:
        """What follows belongs to this step."""
        self._lib.efaprof_bulk_begin_step(self._bulk, step, kind)

    def end_step(self) -> None:
        """The rank has computed all of the step."""
        self._lib.efaprof_bulk_end_step(self._bulk)

    def enter(self, layer: int, phase: int) -> None:
        """A collective is about to be called."""
        self._lib.efaprof_bulk_enter(self._bulk, layer, phase)

    def leave(self, size: int) -> None:
        """It has come back; `size` bytes went to each peer."""
        self._lib.efaprof_bulk_leave(self._bulk, size)

    def verified(self, tokens: int) -> None:
        """So many tokens have been compared so far, and were right."""
        self._lib.efaprof_bulk_verified(self._bulk, tokens)

    def close(self) -> None:
        """End the last step; the second time nothing happens."""
        bulk, self._bulk = self._bulk, _FFI.NULL
        self._lib.efaprof_bulk_close(bulk)
