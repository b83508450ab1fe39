"""Operations in flight: their contexts, and what must stay alive until they complete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from efaprof.libfabric.cdef import ffi

_BATCH = 256
_CONTEXT_BYTES = 64  # struct fi_context2: room that a provider may write into while the operation is in flight


@dataclass(frozen=True, slots=True)
class Pending:
    """One operation in flight."""

    context: object  # what the user gave
    buffer: Any  # keeps the memory of the operation alive
    endpoint: object


class InFlight:
    """Contexts of a domain's operations: the address of a 64-byte slot each, free again at its completion."""

    def __init__(self) -> None:
        self._slabs: list[Any] = []
        self._free: list[int] = []
        self._pending: dict[int, Pending] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, pending: Pending) -> Any:
        """A `void *` to post with."""
        if not self._free:
            slab = ffi().new(f"struct efaprof_fi_context[{_BATCH}]")
            start = int(ffi().cast("uintptr_t", slab))
            self._slabs.append(slab)
            self._free.extend(range(start + (_BATCH - 1) * _CONTEXT_BYTES, start - 1, -_CONTEXT_BYTES))
        address = self._free.pop()
        self._pending[address] = pending
        return ffi().cast("void *", address)

    def take(self, raw: Any) -> object:
        """The user's context of a completion, or None for one that no operation of ours asked for."""
        address = int(ffi().cast("uintptr_t", raw))
        pending = self._pending.pop(address, None)
        if pending is None:
            return None
        self._free.append(address)
        return pending.context

    def find(self, context: object, endpoint: object) -> Any:
        """The `void *` of an operation of this endpoint that was posted with this very object, or None."""
        for address, pending in self._pending.items():
            if pending.context is context and pending.endpoint is endpoint:
                return ffi().cast("void *", address)
        return None

    def forget(self, endpoint: object) -> None:
        """Give up what a closed endpoint will not complete."""
        for address in [address for address, one in self._pending.items() if one.endpoint is endpoint]:
            del self._pending[address]
            self._free.append(address)
