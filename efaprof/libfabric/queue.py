"""Completion queues."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from efaprof.libfabric.cdef import ffi
from efaprof.libfabric.errors import CompletionError
from efaprof.libfabric.handle import Handle, new_handle
from efaprof.libfabric.words import CqFormat, Op, WaitObj

if TYPE_CHECKING:
    from efaprof.libfabric.objects import Domain

_EAVAIL = 259  # FI_EAVAIL: an entry in error is waiting
_NO_ADDRESS = (1 << 64) - 1
_ENTRY_BYTES = {CqFormat.CONTEXT: 8, CqFormat.MSG: 24, CqFormat.DATA: 40, CqFormat.TAGGED: 48}
_TEXT_BYTES = 256
_ERR_DATA_BYTES = 256


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion; what the queue's format does not carry is None."""

    context: object  # what was given at the post; None for what a peer's operation completed here
    flags: Op | None = None
    length: int | None = None  # bytes received, or of a peer's write
    data: int | None = None  # the immediate, meaningful with REMOTE_CQ_DATA
    tag: int | None = None
    source: int | None = None  # of readfrom: the sender's number in the address vector, when the provider knows it


class CompletionQueue(Handle):
    """Where operations complete; reading it drives transfers where progress is MANUAL."""

    noun = "completion queue"

    def __init__(self, domain: Domain, size: int, cq_format: CqFormat, wait: WaitObj) -> None:
        """Open a completion queue of `domain`."""
        if cq_format not in _ENTRY_BYTES:
            raise ValueError(f"{cq_format!r} is no format that can be read")
        library, raw = domain.library, new_handle()
        library.check("fi_cq_open", library.shim.efaprof_fi_cq_open(domain.raw, size, cq_format, wait, raw))
        super().__init__(library, raw[0], (domain,))
        self._domain, self._format = domain, cq_format
        self._shim = library.shim

    @property
    def entry_bytes(self) -> int:
        """Size of an entry as the library writes it."""
        return _ENTRY_BYTES[self._format]

    def read(self, count: int = 16) -> list[Completion]:
        """Up to `count` completions, none when nothing has completed; CompletionError for one in error."""
        room = self._room(count)
        got = self._shim.efaprof_fi_cq_read(self.raw, room, count)
        return [self._entry(room, at, None) for at in range(self._checked("fi_cq_read", got))]

    def readfrom(self, count: int = 16) -> list[Completion]:
        """As `read`, with each completion's source."""
        room, sources = self._room(count), ffi().new(f"uint64_t[{count}]", [_NO_ADDRESS] * count)
        got = self._shim.efaprof_fi_cq_readfrom(self.raw, room, count, sources)
        return [self._entry(room, at, int(sources[at])) for at in range(self._checked("fi_cq_readfrom", got))]

    def sread(self, count: int = 16, *, timeout_ms: int = -1) -> list[Completion]:
        """As `read`, but waits for the first completion (-1: for ever); none when time is up. Needs a wait object."""
        room = self._room(count)
        got = self._shim.efaprof_fi_cq_sread(self.raw, room, count, timeout_ms)
        return [self._entry(room, at, None) for at in range(self._checked("fi_cq_sread", got))]

    def signal(self) -> None:
        """Wake a thread that waits in sread."""
        self.library.check("fi_cq_signal", self._shim.efaprof_fi_cq_signal(self.raw))

    def strerror(self, prov_errno: int, err_data: bytes = b"") -> str:
        """The provider's words for its own error code."""
        room = ffi().new(f"char[{_TEXT_BYTES}]")
        extra = ffi().from_buffer(err_data) if err_data else ffi().NULL
        text = self._shim.efaprof_fi_cq_strerror(self.raw, prov_errno, extra, room, _TEXT_BYTES)
        return str(ffi().string(text).decode(errors="replace")) if text else ""

    def _room(self, count: int) -> Any:
        return ffi().new(f"char[{count * _ENTRY_BYTES[self._format]}]")

    def _checked(self, call: str, result: int) -> int:
        if result == -_EAVAIL:
            raise self._error()
        if result in (-errno.EAGAIN, -errno.ECANCELED):  # nothing there; signalled
            return 0
        return self.library.check(call, result)

    def _entry(self, room: Any, at: int, source: int | None) -> Completion:
        # The formats are prefixes of one another: read the longest, as far as it goes.
        raw = ffi().cast("struct fi_cq_tagged_entry *", room + at * _ENTRY_BYTES[self._format])
        has = self._format
        return Completion(
            context=self._domain.in_flight.take(raw.op_context),
            flags=Op(raw.flags) if has >= CqFormat.MSG else None,
            length=int(raw.len) if has >= CqFormat.MSG else None,
            data=int(raw.data) if has >= CqFormat.DATA else None,
            tag=int(raw.tag) if has >= CqFormat.TAGGED else None,
            source=None if source in (None, _NO_ADDRESS) else source,
        )

    def _error(self) -> CompletionError:
        raw, extra = ffi().new("struct efaprof_fi_cq_error *"), ffi().new(f"char[{_ERR_DATA_BYTES}]")
        got = self._shim.efaprof_fi_cq_readerr(self.raw, raw, extra, _ERR_DATA_BYTES)
        self.library.check("fi_cq_readerr", got)
        err_data = bytes(ffi().buffer(extra, min(raw.err_data_size, _ERR_DATA_BYTES)))
        text, prov_text = self.library.strerror(raw.err), self.strerror(raw.prov_errno, err_data)
        return CompletionError(
            f"an operation completed in error: {text} (provider: {prov_text or '-'}, code {raw.prov_errno})",
            errno=abs(raw.err),  # shm of 1.17 has it negative
            text=text,
            prov_errno=int(raw.prov_errno),
            prov_text=prov_text,
            context=self._domain.in_flight.take(raw.op_context),
            flags=int(raw.flags),
            length=int(raw.len),
            overflow=int(raw.olen),
            data=int(raw.data),
            tag=int(raw.tag),
            err_data=err_data,
        )
