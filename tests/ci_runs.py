"""Groups of synthetic runs as a CI job records them: interleaved, with noise between runs, one side maybe slower."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from efaprof.trace.steady import Steady, write_steady

if TYPE_CHECKING:
    from pathlib import Path

    from efaprof.trace.rundir import Run

BASE = Steady(steps=40, commands=9, proxy_ns=7_000)
ORDER = "ABBAAB"


def interleaved(
    folder: Path, *, order: str = ORDER, noise: float = 0.005, seed: int = 1, **slower: Any
) -> tuple[list[Run], list[Run]]:
    """Runs of sides A and B in that order of starts; `slower` are the durations that B has instead.

    A run's compute time is off by a normal deviate of `noise` of the step, as machines are between runs.
    """
    rng = np.random.default_rng(seed)
    sides: dict[str, list[Run]] = {"A": [], "B": []}
    for number, side in enumerate(order):
        steady = replace(BASE, **slower) if side == "B" else BASE
        compute_ns = steady.compute_ns + round(rng.normal(0, noise) * BASE.wall_ns)
        run = write_steady(folder / f"{side}{number}", replace(steady, compute_ns=compute_ns))
        sides[side].append(changed(run, started_realtime_ns=1_000_000 + number))
    return sides["A"], sides["B"]


def changed(run: Run, **fields: Any) -> Run:
    """The run with other fields in its manifest."""
    manifest = replace(run.manifest, **fields)
    manifest.write(run.path)
    return replace(run, manifest=manifest)
