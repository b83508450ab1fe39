"""The line from a GPU's clock to the host's, fitted to a clock that is known (tests/fakes/fake_cuda.cpp)."""

from __future__ import annotations

import os
import subprocess

import pytest


def fitted(build_dir):
    """The bound that the fit claims and the largest distance from the truth, ns; how many exchanges."""
    program, fakes = build_dir / "bin" / "gpu_clock", build_dir / "fakes"
    if not program.is_file():
        pytest.skip(f"{program} is missing: make native")
    environment = os.environ | {"LD_LIBRARY_PATH": str(fakes)}
    said = subprocess.run(
        [program, fakes / "libefaprof-cuda.so"], env=environment, check=True, timeout=60, capture_output=True, text=True
    ).stdout
    claimed, found, exchanges = said.split()
    return int(claimed), int(found), int(exchanges)


def test_the_bound_of_the_fit_contains_the_true_clock(build_dir):
    claimed, found, exchanges = fitted(build_dir)
    # Reading two clocks together, and a tick of each, cost as much again as the distance that was hidden in the fake.
    assert found <= claimed + 300
    assert claimed >= 250  # half of the difference between its two directions cannot be known
    assert exchanges >= 4
