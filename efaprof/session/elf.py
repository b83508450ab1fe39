"""What a file that is to be executed is: how it is linked and whether LD_PRELOAD can reach it."""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_MAGIC = b"\x7fELF"
_PT_INTERP = 3
_LONGEST_SHEBANG = 256  # bytes that the kernel looks at
_LONGEST_PATH = 4096
_MOST_INTERPRETERS = 5  # a script's interpreter may be a script: the kernel's own limit


@dataclass(frozen=True, slots=True)
class Elf:
    """The parts of an ELF file's headers that decide about preloading."""

    bits: int  # 32 or 64
    machine: int  # e_machine
    interpreter: str  # the dynamic loader; empty when there is none (static)

    @property
    def is_foreign(self) -> bool:
        """Its loader cannot load our libraries: other C library, word size or processor (run by an emulator)."""
        own = _own_elf()
        is_glibc = not self.interpreter or "musl" not in Path(self.interpreter).name
        return not is_glibc or (own is not None and (self.bits, self.machine) != (own.bits, own.machine))


@dataclass(frozen=True, slots=True)
class Program:
    """A file to execute and the ELF file that the kernel ends up with (itself, or a script's interpreter)."""

    path: Path
    elf: Elf | None  # None: not ELF, or not readable
    elf_path: Path
    is_text: bool = False  # no ELF and no `#!`, but text: shells run it with /bin/sh

    @property
    def obstacle(self) -> str:
        """Why LD_PRELOAD does not reach this program; empty when it does."""
        if self.elf is None:
            return "" if self.is_text else f"{self.elf_path} cannot be read as an ELF file"
        if _gains_privileges(self.elf_path):
            return f"{self.elf_path} is set-user-ID, and the loader ignores LD_PRELOAD for those"
        if not self.elf.interpreter:
            return f"{self.elf_path} is statically linked"
        if self.elf.is_foreign:
            return f"{self.elf_path} ({self.elf.bits}-bit, loader {self.elf.interpreter}) cannot load our libraries"
        return ""


def inspect(path: Path) -> Program:
    """What executing `path` will run. Never raises for what is in the file."""
    elf_path = path
    for _ in range(_MOST_INTERPRETERS):
        try:
            with elf_path.open("rb") as file:
                start = file.read(_LONGEST_SHEBANG)
        except OSError:
            return Program(path, None, elf_path)
        if start.startswith(_MAGIC):
            return Program(path, _read_elf(elf_path), elf_path)
        interpreter = start[2:].split(b"\n", 1)[0].split()
        if not start.startswith(b"#!") or not interpreter:
            return Program(path, None, elf_path, is_text=b"\0" not in start.split(b"\n", 1)[0])
        elf_path = Path(os.fsdecode(interpreter[0]))
        if elf_path.name == "env" and len(interpreter) > 1 and (named := _env_target(interpreter[1:])):
            elf_path = named
    return Program(path, None, elf_path)


@cache
def _own_elf() -> Elf | None:
    return _read_elf(Path("/proc/self/exe"))


def _env_target(words: list[bytes]) -> Path | None:
    """The program that `#!/usr/bin/env [-S] [NAME=VALUE…] PROG` runs."""
    for word in words:
        if not word.startswith(b"-") and b"=" not in word:
            for folder in os.get_exec_path():
                candidate = Path(folder) / os.fsdecode(word)
                if candidate.is_file() and os.access(candidate, os.X_OK):
                    return candidate
            return None
    return None


def _gains_privileges(path: Path) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return bool(
        (status.st_mode & stat.S_ISUID and status.st_uid != os.geteuid())
        or (status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IXGRP and status.st_gid != os.getegid())
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the fields that we need lie, and how wide an address is, in one ELF class."""

    bits: int
    word: str  # struct letter of an address
    phoff_at: int
    phentsize_at: int
    p_offset_at: int
    p_filesz_at: int


_LAYOUTS = {1: _Layout(32, "I", 28, 42, 4, 16), 2: _Layout(64, "Q", 32, 54, 8, 32)}


def _read_elf(path: Path) -> Elf | None:
    try:
        with path.open("rb") as file:
            ident = file.read(64)
            layout = _LAYOUTS[ident[4]]
            order = "<" if ident[5] == 1 else ">"
            (table,) = struct.unpack_from(order + layout.word, ident, layout.phoff_at)
            size, count = struct.unpack_from(f"{order}HH", ident, layout.phentsize_at)
            interpreter = ""
            for index in range(count):
                file.seek(table + index * size)
                header = file.read(size)
                if struct.unpack_from(f"{order}I", header)[0] == _PT_INTERP:
                    (offset,) = struct.unpack_from(order + layout.word, header, layout.p_offset_at)
                    (length,) = struct.unpack_from(order + layout.word, header, layout.p_filesz_at)
                    file.seek(offset)
                    interpreter = os.fsdecode(file.read(min(length, _LONGEST_PATH)).rstrip(b"\0"))
            return Elf(layout.bits, struct.unpack_from(f"{order}H", ident, 18)[0], interpreter)
    except (OSError, IndexError, KeyError, struct.error):
        return None
