"""Writer, drain and index under the sanitizers: built apart with -DEFAPROF_SANITIZE, then run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


def build(folder: Path, sanitizers: str) -> Path:
    """The test programs with these sanitizers; their folder."""
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if cmake is None:
        pytest.skip("no cmake: pip install cmake")
    options = [
        f"-DEFAPROF_SANITIZE={sanitizers}",
        "-DEFAPROF_TESTS=ON",
        "-DEFAPROF_LIBFABRIC=OFF",
        "-DEFAPROF_CUDA=OFF",
    ]
    for command in (
        [cmake, "-S", REPO, "-B", folder, *options],
        [cmake, "--build", folder, "--parallel", "2", "--target", "ring_stress", "index_guard"],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode and "cannot find" in done.stderr + done.stdout:
            pytest.skip(f"the compiler has no {sanitizers} sanitizer libraries")
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "bin"


@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
def test_the_core_is_clean_under(sanitizers: str, tmp_path: Path) -> None:
    programs = build(tmp_path / "build", sanitizers)
    env = {
        **os.environ,
        "TSAN_OPTIONS": "halt_on_error=1",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "ASAN_OPTIONS": "detect_stack_use_after_return=1",
    }
    for turn in range(3):
        place = tmp_path / f"turn{turn}"
        place.mkdir()
        done = subprocess.run([programs / "ring_stress", place], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run([programs / "index_guard", "5", "60"], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
