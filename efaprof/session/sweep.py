"""A grid of runs of the dispatch path: every combination of what is varied, in turns, each recorded into its folder."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from efaprof.errors import EfaprofError, UsageError
from efaprof.instrument.dispatch import DispatchOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

FIXED = frozenset(
    {"inject", "late", "posting", "steps", "warmup", "seed"}
)  # the first three are no numbers, the others make no other configuration
VARIABLE = tuple(one.name for one in fields(DispatchOptions) if one.name not in FIXED)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run to be made."""

    values: Mapping[str, str]
    seed: int
    path: Path


def parse_vary(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """`channels=4,8,16` as names with their values; UsageError when it names no option, or one value alone."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        name = name.replace("-", "_")
        if name not in VARIABLE:
            raise UsageError(f"--vary {text}: {name!r} cannot be varied", hint=f"choose of {', '.join(VARIABLE)}")
        parts = tuple(dict.fromkeys(part.strip() for part in values.split(",") if part.strip()))
        if len(parts) < 2 or name in found:
            raise UsageError(f"--vary {text} gives no two values", hint="write it like --vary channels=4,8,16")
        found[name] = parts
    if not found:
        raise UsageError("nothing is varied", hint="efaprof sweep dispatch --vary channels=4,8,16")
    return found


def grid(vary: Mapping[str, Sequence[str]], *, repeat: int, folder: Path) -> list[Cell]:
    """Every combination `repeat` times, with another seed each time; whole rounds, so that drift meets all alike."""
    cells = []
    for seed in range(1, repeat + 1):
        for values in itertools.product(*vary.values()):
            named = dict(zip(vary, values, strict=True))
            name = "-".join(f"{key}{value}" for key, value in named.items())
            cells.append(Cell(named, seed, folder / (name if repeat == 1 else f"{name}-{seed}")))
    return cells


def run_cells(cells: Sequence[Cell], options: Sequence[str]) -> Iterator[Cell]:
    """Each cell when it is recorded; EfaprofError with the program's words when one fails."""
    for cell in cells:
        varied = [word for name, value in cell.values.items() for word in (f"--{name.replace('_', '-')}", value)]
        argv = ["bench", "dispatch", *options, *varied, "--seed", str(cell.seed), "-o", str(cell.path)]
        command = [sys.executable, "-m", "efaprof", *argv]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            words = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
            raise EfaprofError(
                f"{cell.path.name} failed: {words[0].removeprefix('error: ')}", hint=f"efaprof {' '.join(argv)}"
            )
        yield cell
