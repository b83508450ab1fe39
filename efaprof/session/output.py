"""The run directory of a recording that is about to start, and how it was before should the start fail."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from efaprof.errors import EfaprofError, RecordError
from efaprof.session.salvage import is_being_recorded
from efaprof.trace import rundir
from efaprof.trace.manifest import FILE_NAME, read_manifest


@dataclass(frozen=True, slots=True)
class Output:
    """A fresh run directory, and what gave way to it."""

    path: Path
    replaced: Path | None  # the old run, set aside under another name
    made_parents: tuple[Path, ...]  # folders above that did not exist, innermost first

    def keep(self) -> None:
        """The recording took place: what was replaced goes."""
        if self.replaced:
            shutil.rmtree(self.replaced, ignore_errors=True)

    def undo(self) -> None:
        """The recording did not start: leave everything as it was."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.replaced:
            self.replaced.rename(self.path)
        for parent in self.made_parents:
            parent.rmdir()


def prepare(program: str, path: Path | None, *, force: bool) -> Output:
    """A new run directory at `path` (default: a new name here); RecordError when it exists or cannot be made."""
    target = (path or Path(rundir.new_name(program))).absolute()
    replaced = _set_aside(target) if force else None
    missing = [parent for parent in target.parents if not parent.exists()]
    try:
        rundir.create(target, force=force)
    except EfaprofError as error:
        if replaced:
            replaced.rename(target)
        raise RecordError(error.message, hint=error.hint) from error
    return Output(target, replaced, tuple(missing))


def _set_aside(path: Path) -> Path | None:
    """Rename the run at `path`, if it is one, so that it can come back; refuse one that is being recorded."""
    if path.is_symlink() or not (path / FILE_NAME).is_file():
        return None  # nothing there, or nothing of ours: rundir.create decides
    try:
        manifest = read_manifest(path)
    except EfaprofError:
        manifest = None  # damaged or of another version: still a run, and ended
    if manifest and is_being_recorded(path, manifest):
        raise RecordError(f"{path} is being recorded at this moment", hint="choose another -o, or end that recording")
    aside = path.with_name(f".{path.name}.replaced")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        path.rename(aside)
    except OSError as error:
        raise RecordError(f"{path} cannot be replaced: {error.strerror}", hint="choose another -o") from error
    return aside
