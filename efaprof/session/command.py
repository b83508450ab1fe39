"""Finding the file that a command line means, as the shell would."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from efaprof.errors import CommandNotFound, EfaprofError, NotExecutable
from efaprof.session.elf import Program, inspect


@dataclass(frozen=True, slots=True)
class Command:
    """A command that can be executed, as far as can be known before trying."""

    argv: tuple[str, ...]  # as typed
    path: str  # the file, spelled as exec gets it: a script sees it as its $0
    program: Program

    @property
    def exec_path(self) -> str:
        """The file to hand to exec."""
        return "/bin/sh" if self.program.is_text else self.path

    @property
    def exec_argv(self) -> tuple[str, ...]:
        """The arguments to hand to exec. A text without `#!` goes to /bin/sh, as execvp and every shell do it."""
        return ("/bin/sh", self.path, *self.argv[1:]) if self.program.is_text else self.argv


def resolve(argv: tuple[str, ...], *, search: str | None = None) -> Command:
    """The executable file of `argv[0]`, looked up in `search` (default: PATH); CommandNotFound or NotExecutable."""
    name = argv[0]
    if "/" in name:
        path = Path(name)
        if not path.exists():
            raise CommandNotFound(f"{name} does not exist", hint=_slash_hint(path))
        _check_executable(path)
        return Command(argv, name, inspect(path))
    denied: Path | None = None
    for folder in (os.environ.get("PATH", os.defpath) if search is None else search).split(os.pathsep):
        spelled = os.path.join(folder or ".", name)  # noqa: PTH118 - Path would drop the "./" that $0 shows
        candidate = Path(spelled)
        if not name or not candidate.is_file():
            continue
        if os.access(candidate, os.X_OK):
            return Command(argv, spelled, inspect(candidate))
        denied = denied or candidate
    if denied:
        _check_executable(denied)
    raise CommandNotFound(f"{name!r} is not a command", hint=_name_hint(name))


def exec_error(command: Command, error: OSError) -> EfaprofError:
    """What the kernel's refusal to execute means to the user."""
    path = command.exec_path
    if error.errno == errno.ENOEXEC:
        return NotExecutable(
            f"{path} is not in a format that this machine executes (exec format error)", hint=f"look at it: file {path}"
        )
    if error.errno == errno.ENOENT:
        # The file itself was there a moment ago: its interpreter is not.
        missing = command.program.elf_path if command.program.elf is None else command.program.elf.interpreter
        return CommandNotFound(
            f"{path} needs the interpreter {missing}, which does not exist",
            hint=f"look at its first line: head -1 {path}",
        )
    if error.errno == errno.E2BIG:
        return NotExecutable(
            f"{path} cannot be executed: {error.strerror}", hint="shorten the arguments or environment"
        )
    return NotExecutable(f"{path} cannot be executed: {error.strerror}", hint=f"look at it: ls -l {path}; file {path}")


def _check_executable(path: Path) -> None:
    if path.is_dir():
        raise NotExecutable(f"{path} is a directory", hint="give a program")
    if not os.access(path, os.X_OK):
        raise NotExecutable(f"{path} is not executable", hint=f"chmod +x {path}, or name its interpreter before it")


def _slash_hint(path: Path) -> str:
    return f"look for it: ls {path.parent}" if path.parent.is_dir() else f"{path.parent} does not exist either"


def _name_hint(name: str) -> str:
    if Path(name).is_file():
        return f"it is a file here: efaprof record -- ./{name}"
    if name.startswith("-"):
        return "options of efaprof record stand before the command: efaprof record --help"
    if "=" in name:
        return f"set variables through env: efaprof record -- env {name} …"
    if " " in name:
        return "the command and its arguments are separate words: leave the quotes out, or use sh -c '…'"
    return "check the spelling, or give its path"
