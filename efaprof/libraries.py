"""Where our native libraries lie; without cffi, for programs that only annotate."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

from efaprof import env
from efaprof.errors import EfaprofError

CORE = "libefaprof.so"
ABI_VERSION = 2  # high half of efaprof_abi(): raised when functions that Python calls change


def lib_path(name: str = CORE) -> Path:
    """File of one of our native libraries: in EFAPROF_LIB_DIR when that is set, else in the package."""
    folder = os.environ.get(env.LIB_DIR)
    if folder:
        path = Path(folder) / name
        if path.is_file():
            return path.resolve()
        raise EfaprofError(
            f"{path} does not exist ({env.LIB_DIR} is set)", hint=f"unset {env.LIB_DIR}, or build {name} there"
        )
    packaged = resources.files("efaprof") / "_lib" / name
    with resources.as_file(packaged) as path:
        if path.is_file():
            return path
    raise EfaprofError(
        f"{name} is not part of this installation of efaprof",
        hint=f"pip install --force-reinstall efaprof, or build it and set {env.LIB_DIR}",
    )
