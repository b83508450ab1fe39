"""What all objects of libfabric share: they are closed in order, once, and refuse to be used afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from efaprof.libfabric.cdef import ffi
from efaprof.libfabric.errors import Closed, StillInUse

if TYPE_CHECKING:
    from types import TracebackType

    from efaprof.libfabric.library import Libfabric


class Handle:
    """An open object; a context manager that closes it at the end of the block."""

    noun = "object"

    def __init__(self, library: Libfabric, raw: Any, needs: tuple[Handle, ...] = ()) -> None:
        """Take over a handle that needs these others open for as long as it is."""
        self.library = library
        self._raw = raw
        self._needs: list[Handle] = []
        self._users: list[Handle] = []
        for other in needs:
            self._needs.append(other)
            other._users.append(self)

    @property
    def is_open(self) -> bool:
        """Whether it was not closed yet."""
        return self._raw is not None

    @property
    def raw(self) -> Any:
        """Libfabric's own handle; Closed when there is none any more."""
        if self._raw is None:
            raise Closed(f"the {self.noun} is closed", hint="open another one")
        return self._raw

    def close(self) -> None:
        """Close it; StillInUse while others need it. Closing twice does nothing."""
        if self._raw is None:
            return
        if self._users:
            names = ", ".join(f"the {one.noun}" for one in reversed(self._users))
            raise StillInUse(f"the {self.noun} is still needed by {names}", hint="close those first, last opened first")
        self.library.check(f"fi_close of the {self.noun}", self.library.shim.efaprof_fi_close(self._raw))
        self._raw = None
        for other in self._needs:
            other._users.remove(self)
        self._needs.clear()

    def has_ops(self, name: str) -> bool:
        """Whether the provider gives a table of extra functions of this name (fi_open_ops)."""
        ops = ffi().new("void **")
        return self.library.shim.efaprof_fi_open_ops(self.raw, name.encode(), ops) == 0 and bool(ops[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_open(*handles: Handle) -> None:
    """Closed for the first that is not open: asked before something is opened that needs them."""
    for one in handles:
        _ = one.raw


def new_handle() -> Any:
    """Room for the handle that a call of libfabric opens."""
    return ffi().new("void **")
