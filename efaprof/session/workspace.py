"""The folder in shared memory that holds a recording's rings, locked while its recorder lives.

/dev/shm/efaprof-<uid>-<random>/     0700, flock'ed by the recorder: the kernel unlocks it however it dies
    rings/                           EFAPROF_RING_DIR
    run -> /path/of/the/run          where a later efaprof finds the run that these rings belong to
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from efaprof.errors import RecordError

SHM = Path("/dev/shm")
_RINGS, _RUN_LINK = "rings", "run"


@dataclass(frozen=True, slots=True)
class Workspace:
    """A recording's folder, locked by this process until `unlock`."""

    path: Path
    lock_fd: int
    is_in_memory: bool  # else the rings lie on a disk

    @property
    def ring_dir(self) -> Path:
        """Where producers create their rings."""
        return self.path / _RINGS

    def unlock(self) -> None:
        """Let another process take it."""
        os.close(self.lock_fd)

    def remove(self) -> None:
        """Remove the folder with all that is in it. Processes that still write a ring keep their memory."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.unlock()


def _prefix() -> str:
    return f"efaprof-{os.geteuid()}-"


def make(run: Path, *, shm: Path = SHM) -> Workspace:
    """A new workspace for `run`, in shared memory when that can be written, else in the run directory."""
    is_in_memory = True
    try:
        path = Path(tempfile.mkdtemp(prefix=_prefix(), dir=shm))
    except OSError:
        is_in_memory = False
        try:
            path = Path(tempfile.mkdtemp(prefix=_prefix(), dir=run))
        except OSError as error:
            raise RecordError(f"{run} cannot hold the rings: {error.strerror}", hint="choose another -o") from error
    lock_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    # Blocking: a salvager that looks at the new folder this very moment lets go of it at once.
    fcntl.flock(lock_fd, fcntl.LOCK_EX)
    (path / _RINGS).mkdir(mode=0o700)
    (path / _RUN_LINK).symlink_to(run.resolve())
    return Workspace(path, lock_fd, is_in_memory)


def claim(path: Path) -> Workspace | None:
    """The abandoned workspace at `path`, locked; None when its recorder lives or it is not one of ours."""
    try:
        lock_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    status = os.fstat(lock_fd)
    is_ours = (
        path.name.startswith(_prefix()) and status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o77
    )
    if is_ours:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            is_ours = False
    if is_ours and (path / _RUN_LINK).is_symlink():
        return Workspace(path, lock_fd, is_in_memory=True)
    os.close(lock_fd)
    return None


def run_of(workspace: Workspace) -> Path:
    """The run directory that the workspace's recorder wrote; it may have been moved or removed since."""
    return (workspace.path / _RUN_LINK).readlink()


def abandoned(*, shm: Path = SHM) -> list[Path]:
    """Folders in shared memory that look like workspaces of this user; `claim` tells which are abandoned."""
    try:
        return sorted(path for path in shm.iterdir() if path.name.startswith(_prefix()))
    except OSError:
        return []
