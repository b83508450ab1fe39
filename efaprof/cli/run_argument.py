"""The RUN argument: a run directory, the newest one here when it is left out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from efaprof.cli.talk import talk
from efaprof.errors import EfaprofError
from efaprof.trace import rundir

if TYPE_CHECKING:
    from efaprof.trace.rundir import Run

RUN_HELP = "Run directory [default: the newest efaprof-* here]."


def chosen_run(path: Path | None) -> Run:
    """The run that was asked for; a default is named on stderr."""
    if path is None:
        path = rundir.newest_run(Path())
        talk(f"run: {path}")
    _save_leftovers(path)
    return rundir.open_run(path)


def _save_leftovers(path: Path) -> None:
    """A recorder that was killed left records in its rings: they belong to the run."""
    if not path.is_dir():
        return
    from efaprof.session.salvage import salvage_run

    try:
        if salvage_run(path):
            talk(f"{path}: the recorder was killed; what its rings still held was saved")
    except (EfaprofError, OSError) as error:
        sys.stderr.write(f"{path}: what the killed recorder's rings still hold cannot be saved: {error}\n")
