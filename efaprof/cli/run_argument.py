"""The RUN argument: a run directory, the newest one here when it is left out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from efaprof.trace import rundir

if TYPE_CHECKING:
    from efaprof.trace.rundir import Run

RUN_HELP = "Run directory [default: the newest efaprof-* here]."


def chosen_run(path: Path | None) -> Run:
    """The run that was asked for; a default is named on stderr."""
    if path is None:
        path = rundir.newest_run(Path())
        sys.stderr.write(f"run: {path}\n")
    return rundir.open_run(path)
