"""The compiled inlines: the functions that the binding declares, and nothing of libfabric linked."""

from __future__ import annotations

import re
import shutil
import subprocess

import fabric_runs
import pytest

from efaprof.libfabric import cdef
from efaprof.libfabric.library import SHIM
from efaprof.native import lib_path


@pytest.fixture
def shim() -> str:
    fabric_runs.need_shim()
    if shutil.which("readelf") is None:
        pytest.skip("no readelf (apt install binutils)")
    return str(lib_path(SHIM))


def test_what_is_declared_is_what_is_exported(shim):
    symbols = subprocess.run(["readelf", "-W", "--dyn-syms", shim], capture_output=True, text=True, check=True).stdout
    exported = set(re.findall(r"FUNC\s+GLOBAL\s+DEFAULT\s+\d+\s+(\w+)", symbols))
    declared = set(re.findall(r"(efaprof_fi_\w+)\(", cdef._SHIM))
    assert exported == declared
    assert all(callable(getattr(cdef.ffi().dlopen(shim), name)) for name in declared)


def test_no_libfabric_is_linked(shim):
    dynamic = subprocess.run(["readelf", "-d", shim], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"NEEDED\D*\[(.*?)\]", dynamic) == ["libc.so.6"]
