"""The interposer under the sanitizers, with a provider and a driver that are built with them too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
TARGETS = ["efaprof-fi", "fake-fi", "fake_driver"]
SCENARIOS = [
    "owners", "many 40", "calls", "threads 200", "forked 10", "reopened 9", "refused 20", "errno", "nothing", "names",
    "scalable", "shared", "memory", "gda", "storm 9", "disorder 20", "full 50",
]  # fmt: skip


def build(folder: Path, sanitizers: str) -> None:
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if cmake is None:
        pytest.skip("no cmake: pip install cmake")
    options = [f"-DEFAPROF_SANITIZE={sanitizers}", "-DEFAPROF_TESTS=ON", "-DEFAPROF_CUDA=OFF"]
    for command in (
        [cmake, "-S", REPO, "-B", folder, *options],
        [cmake, "--build", folder, "--parallel", "2", "--target", *TARGETS],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        said = done.stdout + done.stderr
        if done.returncode and "cannot find" in said:
            pytest.skip(f"the compiler has no {sanitizers} sanitizer libraries")
        if done.returncode and "unknown target" in said:
            pytest.skip("no libfabric headers: apt-get install libfabric-dev")
        assert done.returncode == 0, said


@pytest.mark.slow
@pytest.mark.parametrize(("sanitizers", "runtime"), [("thread", "libtsan.so"), ("address,undefined", "libasan.so")])
def test_the_interposer_is_clean_under(sanitizers: str, runtime: str, tmp_path: Path):
    build(tmp_path / "build", sanitizers)
    found = subprocess.run(["gcc", f"-print-file-name={runtime}"], capture_output=True, text=True, check=True)
    rings = tmp_path / "rings"
    rings.mkdir(mode=0o700)
    env = {
        **os.environ,
        "EFAPROF_RING_DIR": str(rings),
        "FI_PROVIDER_PATH": f"{tmp_path / 'build' / 'fakes'}:/nonexistent",
        "FI_PROVIDER": "fake",
        "TSAN_OPTIONS": "halt_on_error=1",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "ASAN_OPTIONS": "detect_leaks=0",  # libfabric's own
    }
    preload = f"{found.stdout.strip()} {tmp_path / 'build' / 'lib' / 'libefaprof-fi.so'}"
    for scenario in SCENARIOS:
        command = ["env", f"LD_PRELOAD={preload}", tmp_path / "build" / "bin" / "fake_driver", *scenario.split()]
        mode = {"FAKE_MODE": "tables"} if scenario.startswith("many") else {"FAKE_MODE": "swap"}
        done = subprocess.run(command, env={**env, **mode}, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, scenario + "\n" + done.stdout + done.stderr
