"""One libfabric: loading it, its version, what it offers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from efaprof.errors import EfaprofError
from efaprof.libfabric import find
from efaprof.libfabric.cdef import ffi
from efaprof.libfabric.errors import FabricError, NoLibfabric, failed
from efaprof.libfabric.info import Info, offered_name, read_info
from efaprof.libfabric.words import AddrFormat, Cap, EpType, Mode, MrMode, Op, Order, Progress, Threading
from efaprof.native import lib_path

if TYPE_CHECKING:
    from efaprof.libfabric.objects import Fabric

NEWEST_API = (2, 6)  # the newest API whose meaning this binding was written for
SHIM = "libefaprof-fishim.so"
_SHIM_VERSION = 1
_TYPE_INFO = 0  # FI_TYPE_INFO
_ENODATA = 61
_SOURCE = 1 << 57  # FI_SOURCE
# What this binding does on its caller's behalf. RX_CQ_DATA is left out: with it, EFA makes every immediate consume a
# posted receive.
READY_MODE = Mode.CONTEXT | Mode.CONTEXT2 | Mode.ASYNC_IOV
# BASIC and SCALABLE are the old spelling, and exclude the new one.
READY_MR_MODE = MrMode(0xFFC)


@dataclass(frozen=True, slots=True)
class _Wish:
    """What is asked of fi_getinfo."""

    provider: str | None
    fabric: str | None
    domain: str | None
    caps: Cap
    ep_type: EpType
    mode: Mode
    mr_mode: MrMode
    addr_format: AddrFormat
    op_flags: Op
    msg_order: Order
    threading: Threading
    progress: Progress


class Libfabric:
    """A loaded libfabric. Loading stays for the life of the process: providers leave threads and handlers behind."""

    def __init__(self, path: str) -> None:
        """Load the libfabric at `path` (or of this name, as the loader resolves it)."""
        self.lib = _load(path)
        self.path = path if "/" in path else find.loaded_from(Path(path).name) or path
        try:
            packed = int(self.lib.fi_version())
        except AttributeError as error:
            raise NoLibfabric(f"{path} is no libfabric: {error}", hint="give the path of a libfabric.so.1") from error
        self.version = (packed >> 16, packed & 0xFFFF)

    def __repr__(self) -> str:
        return f"Libfabric({self.path!r}, version {self.version[0]}.{self.version[1]})"

    @property
    def shim(self) -> Any:
        """The compiled inlines; EfaprofError when they were not built."""
        return _load_shim(str(lib_path(SHIM)))

    @property
    def has_shim(self) -> bool:
        """Whether objects can be opened: efaprof was built with libfabric's headers."""
        try:
            return self.shim is not None
        except EfaprofError:
            return False

    def strerror(self, code: int) -> str:
        """Libfabric's words for an error code, of either sign."""
        return str(ffi().string(self.lib.fi_strerror(abs(code))).decode(errors="replace"))

    def check(self, call: str, result: int) -> int:
        """`result`, or the exception that it stands for when it is negative."""
        if result < 0:
            raise failed(call, -result, self.strerror(result))
        return result

    def text(self, info: Info) -> str:
        """`info` as libfabric itself writes it."""
        return str(ffi().string(self.lib.fi_tostr(info.raw, _TYPE_INFO)).decode(errors="replace"))

    def getinfo(
        self,
        *,
        provider: str | None = None,
        fabric: str | None = None,
        domain: str | None = None,
        caps: Cap = Cap.NONE,
        ep_type: EpType = EpType.UNSPEC,
        mode: Mode = READY_MODE,
        mr_mode: MrMode = READY_MR_MODE,
        addr_format: AddrFormat = AddrFormat.UNSPEC,
        op_flags: Op = Op.NONE,
        msg_order: Order = Order.NONE,
        threading: Threading = Threading.UNSPEC,
        progress: Progress = Progress.UNSPEC,
        node: str | None = None,
        service: str | None = None,
        is_source: bool = False,
    ) -> list[Info]:
        """What the providers offer that satisfies all of this, in libfabric's order; NothingOffered when nothing does.

        What is left out is left to the provider. `provider` is libfabric's name ("tcp" finds "tcp;ofi_rxm" too) or
        "efa-direct", which libfabric calls a fabric of "efa". `mode` and `mr_mode` are what the caller is ready to do:
        what this binding does by itself, unless given; an `efa-direct` that needs RX_CQ_DATA is only found with it.
        `is_source` makes node and service the local address instead of the peer's.
        """
        wish = _Wish(
            provider, fabric, domain, caps, ep_type, mode, mr_mode, addr_format, op_flags, msg_order, threading,
            progress,
        )  # fmt: skip
        hints = self._hints(wish)
        try:
            found = self._read_all(self._call_getinfo(hints, node, service, _SOURCE if is_source else 0, provider))
        finally:
            self.lib.fi_freeinfo(hints)  # the strings too, which is why they come from malloc
        if provider in {"efa", "efa-direct"}:  # libfabric gives both for either
            found = [info for info in found if (info.name == "efa-direct") == (provider == "efa-direct")]
        if not found:
            raise failed(_call_for(provider), _ENODATA, self.strerror(_ENODATA))
        return found

    def everything(self) -> list[Info]:
        """All that the providers offer, unasked: each entry with everything that it can do, and all that it requires.

        Some providers (efa of 2.x) give an order of messages or remote memory access only to those who ask for it in
        `getinfo`; here they are listed.
        """
        return self._read_all(self._call_getinfo(ffi().NULL, None, None, 0, None))

    def provider_names(self) -> list[str]:
        """Names of the providers that offer something, in libfabric's order."""
        names: list[str] = []
        first = self._call_getinfo(ffi().NULL, None, None, 0, None)
        at = first
        while at:
            attr = at.fabric_attr
            if attr and attr.prov_name:
                fabric = ffi().string(attr.name).decode(errors="replace") if attr.name else ""
                names.append(offered_name(ffi().string(attr.prov_name).decode(errors="replace"), fabric))
            at = at.next
        self.lib.fi_freeinfo(first)
        return list(dict.fromkeys(names))

    def fabric(self, info: Info) -> Fabric:
        """Open the fabric of `info`."""
        from efaprof.libfabric.objects import Fabric

        return Fabric(self, info)

    def _call_getinfo(self, hints: Any, node: str | None, service: str | None, flags: int, provider: str | None) -> Any:
        first = ffi().new("struct fi_info **")
        api = min(self.version, NEWEST_API)
        words = [ffi().NULL if word is None else word.encode() for word in (node, service)]
        with find.provider_path(self.path):
            result = self.lib.fi_getinfo(api[0] << 16 | api[1], *words, flags, hints, first)
        self.check(_call_for(provider), result)
        return first[0]

    def _read_all(self, first: Any) -> list[Info]:
        found, at = [], first
        while at:
            copy = ffi().gc(self.lib.fi_dupinfo(at), self.lib.fi_freeinfo)
            found.append(read_info(copy, self.version))
            at = at.next
        self.lib.fi_freeinfo(first)
        return found

    def _hints(self, wish: _Wish) -> Any:
        raw = self.lib.fi_dupinfo(ffi().NULL)  # the library's own size of every struct
        if not raw:
            raise FabricError("fi_allocinfo: out of memory")
        raw.caps, raw.mode, raw.addr_format = wish.caps, wish.mode, wish.addr_format
        raw.ep_attr.type = wish.ep_type
        raw.tx_attr.op_flags, raw.tx_attr.msg_order = wish.op_flags, wish.msg_order
        domain = raw.domain_attr
        domain.mode, domain.mr_mode = wish.mode, wish.mr_mode
        domain.threading, domain.data_progress = wish.threading, wish.progress
        provider = "efa" if wish.provider == "efa-direct" else wish.provider
        raw.fabric_attr.prov_name = self._copy(provider)
        raw.fabric_attr.name = self._copy(wish.fabric)
        domain.name = self._copy(wish.domain)
        return raw

    def _copy(self, text: str | None) -> Any:
        return ffi().NULL if text is None else self.lib.strdup(text.encode())


def open_libfabric(path: str | os.PathLike[str] | None = None, *, provider: str | None = None) -> Libfabric:
    """The libfabric at `path`, else the first that offers `provider` (or, without one, that can be loaded).

    The order: EFAPROF_LIBFABRIC, what the loader finds, Amazon's place, the wheels of this environment. NoLibfabric
    says what was there. One libfabric a process: providers that are files of their own bind to the first one loaded.
    """
    if path is not None:
        return _cached(os.fspath(path))
    tried: list[str] = []
    for candidate in find.candidates():
        if provider is None:
            try:
                return _cached(candidate)
            except NoLibfabric as error:
                tried.append(error.message)
            continue
        found = find.ask(candidate)
        if provider in found.providers or any(provider in name.split(";") for name in found.providers):
            return _cached(found.path)
        tried.append(f"{found.path} {found.version}: {found.problem or ', '.join(found.providers)}")
    wanted = "can be loaded" if provider is None else f"offers provider {provider}"
    raise NoLibfabric(
        f"no libfabric here {wanted}" + "".join(f"\n  {line}" for line in tried),
        hint="apt install libfabric1, or name one with --libfabric PATH or EFAPROF_LIBFABRIC",
    )


def _call_for(provider: str | None) -> str:
    return "fi_getinfo" if provider is None else f"fi_getinfo for provider {provider}"


def _cached(path: str) -> Libfabric:
    return _opened(os.path.realpath(path) if "/" in path else path)


@cache
def _opened(path: str) -> Libfabric:
    return Libfabric(path)


@cache
def _load(path: str) -> Any:
    try:
        # Not unloaded at exit: values that are freed last still call into it.
        return ffi().dlopen(path, ffi().RTLD_NOW | ffi().RTLD_NODELETE)
    except OSError as error:
        raise NoLibfabric(f"{path} cannot be loaded: {error}", hint="give the path of a libfabric.so.1") from error


@cache
def _load_shim(path: str) -> Any:
    try:
        shim = ffi().dlopen(path)
    except OSError as error:
        raise EfaprofError(f"{path} cannot be loaded: {error}", hint="pip install --force-reinstall efaprof") from error
    if shim.efaprof_fi_shim() != _SHIM_VERSION:
        raise EfaprofError(f"{path} is of another version of efaprof", hint="pip install --force-reinstall efaprof")
    return shim
