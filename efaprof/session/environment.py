"""The recorded program's environment: the user's own, and what our libraries need."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from efaprof import env
from efaprof.session.hooking import PROVIDER_PATH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from efaprof.session.hooking import Hook

PRELOAD = "LD_PRELOAD"
NVTX_INJECTION = "NVTX_INJECTION64_PATH"
CUDA_INJECTION = "CUDA_INJECTION64_PATH"
# These must stay first in LD_PRELOAD: their start-up code ends the program when something comes before them.
_MUST_BE_FIRST = re.compile(r"lib(clang_rt\.)?(asan|tsan|lsan|msan|hwasan|ubsan)[-._\w]*\.so[.\d]*$")
_SEPARATORS = re.compile(r"([ :]+)")


@dataclass(frozen=True, slots=True)
class Wiring:
    """What the recorded program is told."""

    run: Path
    ring_dir: Path
    spill_dir: Path
    buffer: int | None  # bytes of one ring; None: what the user's environment says, or the default
    buffer_total: int  # bytes of all rings together
    preload: tuple[str, ...]  # libraries, in order; none may hold a space or a colon
    libfabric: Path | None = None  # the one that the program is to use
    hook: Hook | None = None  # the interposer as a provider, beside or instead of being preloaded
    nvtx: Path | None = None  # library for NVTX to load
    cuda: Path | None = None  # library for the CUDA driver to load
    cuda_detail: str = ""  # how much it tells
    steps: Mapping[str, str] = field(default_factory=dict)  # what tells the program's libraries to count its steps


def inherited() -> dict[str, str]:
    """The environment that we were started with, without what the Python interpreter added to it."""
    base = dict(os.environ)
    # In the C locale the interpreter sets LC_CTYPE for its children; the program must not see that.
    if "LC_CTYPE" in base:
        try:
            at_start = Path("/proc/self/environ").read_bytes().split(b"\0")
        except OSError:
            return base
        if not any(entry.startswith(b"LC_CTYPE=") for entry in at_start):
            del base["LC_CTYPE"]
    return base


def wired(base: dict[str, str], wiring: Wiring) -> dict[str, str]:
    """`base` and our variables; another recorder's, when record is called under record, give way."""
    result = dict(base)
    result[env.RUN_DIR] = str(wiring.run)
    result[env.RING_DIR] = str(wiring.ring_dir)
    result[env.SPILL_DIR] = str(wiring.spill_dir)
    result[env.BUFFER_TOTAL] = str(wiring.buffer_total)
    if wiring.buffer is not None:
        result[env.BUFFER] = str(wiring.buffer)
    if wiring.libfabric is not None:
        result |= choosing(wiring.libfabric, base)
    if wiring.hook is not None:
        result |= wiring.hook.variables(result)
    if wiring.preload:
        result[PRELOAD] = merge_preload(wiring.preload, base.get(PRELOAD, ""))
    for name in env.STEP_COUNTING:
        result.pop(name, None)
    result |= wiring.steps
    if wiring.nvtx is not None:
        result |= _injecting(wiring.nvtx, base, NVTX_INJECTION, env.NVTX_NEXT)
    if wiring.cuda is not None:
        result |= _injecting(wiring.cuda, base, CUDA_INJECTION, env.CUDA_NEXT)
        result[env.CUDA_DETAIL] = wiring.cuda_detail
    return result


def _injecting(library: Path, base: Mapping[str, str], variable: str, following: str) -> dict[str, str]:
    """What makes `variable`'s reader load our library, and our library the tool that the user had named there."""
    users = base.get(variable, "")
    if users and Path(users).name != library.name:
        return {variable: str(library), following: users}
    return {variable: str(library)}


def choosing(libfabric: Path, base: Mapping[str, str]) -> dict[str, str]:
    """What tells a program, beside preloading it, to use `libfabric`: its providers may lie in a folder beside it."""
    providers = libfabric.resolve().parent / "libfabric"
    chosen = {env.LIBFABRIC: str(libfabric)}
    if PROVIDER_PATH not in base and any(providers.glob("*-fi.so")):
        chosen[PROVIDER_PATH] = str(providers)
    return chosen


def preloadable(library: Path, folder: Path) -> str:
    """A path of `library` that LD_PRELOAD can hold: its own, or that of a link in `folder`."""
    if not _SEPARATORS.search(str(library)):
        return str(library)
    link = folder / library.name
    if not link.is_symlink():
        link.symlink_to(library)
    return str(link)


def merge_preload(ours: tuple[str, ...], theirs: str) -> str:
    """LD_PRELOAD with our libraries before the user's; sanitizer runtimes stay first, and nothing stands twice."""
    words = _SEPARATORS.split(theirs)  # library, separator, library, …: the user's own spelling is kept
    present = set(words[::2])
    added = [library for library in ours if library not in present]
    if not added:
        return theirs
    first = 0
    while first < len(words) and (not words[first] or _MUST_BE_FIRST.search(words[first])):
        first += 2
    before, after = "".join(words[:first]).rstrip(" :"), "".join(words[first:]).strip(" :")
    return ":".join(part for part in (before, *added, after) if part)
