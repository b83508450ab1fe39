"""The run directory: names in it, making one, finding the newest."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from efaprof.errors import NothingToAnalyse, TraceError, UsageError
from efaprof.trace.manifest import FILE_NAME, Manifest, read_manifest

RAW_DIR = "raw"
SPILL_DIR = "rings"
LOG_NAME = "log.txt"
RAW_SUFFIX = ".efr"
PYTHON_INDEX = "python.json"  # in raw/: which samples of Python stacks there are
PREFIX = "efaprof-"


@dataclass(frozen=True, slots=True)
class Run:
    """A run directory that exists and has a readable manifest."""

    path: Path
    manifest: Manifest

    @property
    def raw_files(self) -> list[Path]:
        """Raw trace files, in name order."""
        return sorted((self.path / RAW_DIR).glob(f"*{RAW_SUFFIX}"))


def new_name(program: str) -> str:
    """`efaprof-<prog>-<YYYYmmdd-HHMMSS>-<pid>`, safe in every file system."""
    stem = re.sub(r"[^A-Za-z0-9._+-]+", "_", Path(program).name)[:40] or "run"
    return f"{PREFIX}{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def create(path: Path, *, force: bool = False) -> Path:
    """Make the directory and its raw/; refuse one that exists, unless `force` and it is a run of ours."""
    if path.is_symlink() or path.exists():
        if not force:
            raise UsageError(
                f"{path} exists", hint=f"choose another -o, or replace it: efaprof record --force -o {path} -- …"
            )
        if path.is_symlink() or not (path / FILE_NAME).is_file():
            raise UsageError(
                f"{path} exists and is not an efaprof run directory; --force replaces only those",
                hint="choose another -o",
            )
        _remove_run(path)
    try:
        (path / RAW_DIR).mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be made: {error.strerror}", hint="choose another -o") from error
    return path


def _remove_run(path: Path) -> None:
    for root, folders, files in os.walk(path, topdown=False):
        for name in files:
            (Path(root) / name).unlink()
        for name in folders:
            folder = Path(root) / name
            folder.unlink() if folder.is_symlink() else folder.rmdir()
    path.rmdir()


def open_run(path: Path) -> Run:
    """The run at `path`; TraceError when it is none."""
    if not path.exists():
        raise TraceError(f"{path} does not exist", hint="efaprof record -- CMD makes a run; ls -d efaprof-*")
    if not path.is_dir():
        raise TraceError(f"{path} is not a run directory", hint="give the directory that efaprof record made")
    return Run(path, read_manifest(path))


def newest_run(folder: Path) -> Path:
    """The run directory in `folder` that was made last."""
    runs = [entry for entry in folder.glob(f"{PREFIX}*") if (entry / FILE_NAME).is_file()]
    if not runs:
        raise NothingToAnalyse(
            f"no {PREFIX}* run directory in {folder.resolve()}", hint="efaprof record -- CMD makes one"
        )
    return max(runs, key=lambda run: ((run / FILE_NAME).stat().st_mtime_ns, run.name))
