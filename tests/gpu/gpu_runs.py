"""Runs of the dispatch path with kernels on a GPU, for tests/gpu and bench/gpu.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

REPO = Path(__file__).resolve().parents[2]
LIMIT_S = 90  # of one run: kernels give up long before


def library_folder() -> Path:
    """Where efaprof-dispatch and libefaprof-cuda.so of this build are."""
    if "EFAPROF_LIB_DIR" in os.environ:
        return Path(os.environ["EFAPROF_LIB_DIR"])
    return REPO / "build" / "dev" / "lib"


def missing() -> str | None:
    """Why no run can be made here; None when one can."""
    if not (library_folder() / "libefaprof-cuda.so").is_file():
        return "libefaprof-cuda.so is not built: nvcc was not there"
    if shutil.which("nvidia-smi") is None:
        return "no GPU here"
    if subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode != 0:
        return "nvidia-smi sees no GPU"
    return None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended."""

    code: int
    out: str
    err: str

    @property
    def summary(self) -> dict[str, Any]:
        """What a run with --json says of itself."""
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def last_words(self) -> str:
        """The last line that it said about itself."""
        return (self.err.strip().splitlines() or ["nothing was said"])[-1]


def command(*options: str, provider: str = "shm", timeout_s: int = 5) -> list[str]:
    """efaprof-dispatch on a GPU, in a small shape unless `options` say otherwise."""
    words = ["--device", "cuda", "--dtype", "bf16", "--provider", provider, "--timeout", str(timeout_s),
             "--ranks", "2", "--layers", "2", "--warmup", "5", "--steps", "40", "--compute-us", "20",
             "--tokens", "8", "--hidden", "2048", "--topk", "8", "--experts", "64", "--json"]  # fmt: skip
    return [str(library_folder() / "efaprof-dispatch"), *words, *options]


def run(argv: list[str], **environment: str) -> Ended:
    """The command, run to its end."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=os.environ | environment
        )
    except subprocess.TimeoutExpired:
        return Ended(124, "", f"not over after {LIMIT_S} s")
    return Ended(done.returncode, done.stdout, done.stderr)


def dispatch(*options: str, provider: str = "shm", timeout_s: int = 5) -> Ended:
    """One run."""
    return run(command(*options, provider=provider, timeout_s=timeout_s))


STAMPS = ("enter_ns", "publish_ns", "seen_ns", "call_ns", "return_ns", "done_ns", "told_ns", "arrival_ns")
POSTED_STAMPS = ("enter_ns", "return_ns", "done_ns", "arrival_ns")  # of what a kernel posted by itself


def stamped(target: Path, names: tuple[str, ...] = STAMPS) -> tuple[float, float]:
    """Shares of a recorded run's operations that have every stamp, and of these whose stamps are in order."""
    import polars as pl

    from efaprof.trace import dispatch as path
    from efaprof.trace.rundir import open_run
    from efaprof.trace.survey import survey

    chunks = path.chunks(survey(open_run(target).raw_files))
    frame = pl.concat([chunk.operations for chunk in chunks])
    whole = frame.drop_nulls(names)
    in_order = [pl.col(one) <= pl.col(later) for one, later in pairwise(names[: names.index("return_ns") + 1])]
    return len(whole) / len(frame), len(whole.filter(pl.all_horizontal(in_order))) / len(whole)


POSTED = ("--path", "gdaki", "--queues", "verbs")


def on_device(argv: list[str], emulate: str = "latency=5us") -> Ended:
    """The command on the emulated EFA device."""
    return run([sys.executable, "-m", "efaprof", "softefa", "-q", "--emulate", emulate, "--", *argv])


def main_without_pytest(reason: str | None, names: Mapping[str, Any]) -> int:
    """Every test among `names`, for a machine without pytest; the exit code. With arguments: those that have one of
    them in their name."""
    if reason is not None:
        print(f"nothing to test: {reason}")
        return 0
    failed = 0
    words = sys.argv[1:]
    for name, test in [(name, one) for name, one in names.items() if name.startswith("test_")]:
        if words and not any(word in name for word in words):
            continue
        begin = time.monotonic()
        try:
            test()
        except (AssertionError, OSError, RuntimeError, subprocess.SubprocessError, ValueError, KeyError):
            failed += 1
            traceback.print_exc()
            print(f"FAILED {name}")
        else:
            print(f"ok     {name} ({time.monotonic() - begin:.1f} s)")
    print(f"{failed} failed")
    return 1 if failed else 0
