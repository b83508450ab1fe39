"""What the binding raises."""

from __future__ import annotations

import errno as errnos

from efaprof.errors import EfaprofError


class FabricError(EfaprofError):
    """A call of libfabric failed."""

    def __init__(
        self, message: str, *, errno: int = 0, text: str = "", call: str = "", hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.errno = errno  # positive; libfabric's own codes start at 256
        self.text = text  # as fi_strerror says it
        self.call = call


class NoLibfabric(FabricError):
    """There is no libfabric that can be loaded, or none that offers the provider."""


class NothingOffered(FabricError):
    """fi_getinfo found nothing that satisfies the request."""


class TryAgain(FabricError):
    """A queue is full: read completions, then call again."""


class Closed(FabricError):
    """The object was closed."""


class StillInUse(FabricError):
    """The object has others that were opened from it or are bound to it: close those first."""


class CompletionError(FabricError):
    """An operation completed in error.

    `errno` and `text` are libfabric's; `prov_errno` and `prov_text` the provider's. `context` is what was given when
    the operation was posted; `flags`, `length` (bytes done), `overflow` (bytes that did not fit), `tag` and `data` are
    the entry's; `err_data` is what the provider added.
    """

    def __init__(
        self,
        message: str,
        *,
        errno: int,
        text: str,
        prov_errno: int,
        prov_text: str,
        context: object,
        flags: int,
        length: int,
        overflow: int,
        data: int,
        tag: int,
        err_data: bytes,
    ) -> None:
        super().__init__(message, errno=errno, text=text, call="fi_cq_readerr")
        self.prov_errno, self.prov_text = prov_errno, prov_text
        self.context, self.flags, self.length, self.overflow = context, flags, length, overflow
        self.data, self.tag, self.err_data = data, tag, err_data


_KINDS: dict[int, type[FabricError]] = {
    errnos.EAGAIN: TryAgain,
    errnos.ENODATA: NothingOffered,
    errnos.EBUSY: StillInUse,
}


def failed(call: str, code: int, text: str) -> FabricError:
    """The exception of a call that returned `-code`."""
    name = errnos.errorcode.get(code, f"code {code}")
    return _KINDS.get(code, FabricError)(f"{call}: {text} ({name})", errno=code, text=text, call=call)
