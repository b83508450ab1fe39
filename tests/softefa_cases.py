"""Bottlenecks made on an emulated device, by name, and one run of each: calibrated, recorded, attributed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from efaprof.errors import NothingToAnalyse
from efaprof.ingest.profile import read_profile
from efaprof.report.attribution_report import report_on
from efaprof.trace.reader import open_tables
from efaprof.trace.rundir import open_run

if TYPE_CHECKING:
    from efaprof.analyzers.decode import Decode

TIMEOUT_S = 240
ENVIRONMENT = {"FI_EFA_ENABLE_SHM_TRANSFER": "0", "FI_EFA_RX_SIZE": "256"}
SHAPE = {"layers": 2, "tokens": 4, "hidden": 512, "topk": 2, "experts": 4, "channels": 4, "compute-us": 50,
         "threads": 2}  # fmt: skip
# The machine was quicker in the run than when it was calibrated: refused, which is no wrong name.
REFUSED = "calibrate again"


@dataclass(frozen=True)
class Case:
    """What is slow, and the labels that would be right; `steps` last some 6 s on a machine with enough cores."""

    name: str
    right: frozenset[str]
    emulate: str
    steps: int
    options: tuple[str, ...] = ()

    def is_right(self, path: str) -> bool:
        """One of the labels is right; balanced has none."""
        return bool(labels(path) & self.right)

    def is_wrong(self, path: str) -> bool:
        """Something was named, and it is not the bottleneck."""
        return not path.startswith("inconclusive") and not self.is_right(path)


def labels(path: str) -> set[str]:
    """Labels that a path verdict names."""
    return set(path.removeprefix("mixed(").removesuffix(")").split(", "))


ISSUE = frozenset({"issue-bound"})
CASES = (
    Case("bandwidth-limited", frozenset({"wire-bound/bandwidth"}), "rate=100Mbps", 400,
         ("--hidden", "4096")),
    Case("rate-limited", frozenset({"wire-bound/rate"}), "ops=4000", 600),
    Case("latency-limited", frozenset({"wire-bound/latency"}), "latency=2ms", 300),
    Case("slow proxy", ISSUE, "latency=20us", 500, ("--inject", "proxy=300us")),
    Case("slow kernel", ISSUE, "latency=20us", 500, ("--inject", "kernel=300us")),
    Case("slow libfabric", ISSUE, "latency=20us", 500, ("--inject", "libfabric=300us")),
    Case("slow receiver", frozenset({"receiver-bound"}), "latency=20us", 500, ("--inject", "rx=300us")),
    Case("late sender", frozenset({"skew-bound"}), "latency=20us", 1000, ("--late", "1=2ms")),
    Case("fenced signals", frozenset({"serialization-bound"}), "latency=500us", 400,
         ("--signal", "fence")),
    Case("balanced", frozenset(), "latency=20us", 1000, ("--inject", "proxy=150us", "--inject", "rx=150us")),
    Case("slow proxy, equally slow NIC", frozenset({"wire-bound/rate"}), "ops=3300", 500,
         ("--inject", "proxy=300us")),
)  # fmt: skip


def efaprof(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command in that folder, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "efaprof", *map(str, arguments)], cwd=folder, env={**os.environ, **ENVIRONMENT},
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def good(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """The same, which must have ended well."""
    assert done.returncode == 0, done.stderr
    return done


def calibrate(emulate: str, folder: Path, *, provider: str, duration_ms: int = 50) -> Path:
    """A profile of the emulated fabric."""
    path = folder / f"{provider}-{emulate.replace('=', '-')}.json"
    if not path.exists():
        words = ("--provider", provider, "--emulate", emulate, "--threads", "1", "--duration-ms", str(duration_ms))
        good(efaprof("calibrate", *words, "-o", path, folder=folder))
    return path


def record(case: Case, run: Path, *, provider: str, steps: int | None = None) -> None:
    """Make the bottleneck and record it."""
    shape = [word for name, value in SHAPE.items() for word in (f"--{name}", str(value))]
    good(efaprof("bench", "dispatch", "--provider", provider, *shape, "--steps", steps or case.steps, "--warmup", "5",
                 *case.options, "--emulate", case.emulate, "-o", run, folder=run.parent))  # fmt: skip


def attribute(run: Path, profile: Path) -> Decode | None:
    """The analysis of its steps; None where the profile was refused for being too low."""
    found = open_run(run)
    try:
        section = report_on([(found, open_tables(found))], profile=read_profile(profile)).decode
    except NothingToAnalyse as error:
        if error.hint and REFUSED in error.hint:
            return None
        raise
    assert section is not None
    assert section.is_verified
    return section.decode
