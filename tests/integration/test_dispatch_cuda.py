"""The protocol of the ring and the wire is one source for the CPU and for a GPU kernel."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


def test_the_protocol_headers_compile_for_a_gpu(tmp_path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc: the device side of the protocol is not compiled here")
    done = subprocess.run(
        [nvcc, "-std=c++17", "-arch=sm_90", "-ptx", f"-I{REPO / 'instrument'}", f"-I{REPO / 'native'}",
         "-Werror", "all-warnings", "-o", tmp_path / "protocol.ptx", REPO / "tests" / "native" / "protocol.cu"],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ptx = (tmp_path / "protocol.ptx").read_text()
    # What publishes a command is ordered for the whole system: the reader is a CPU.
    assert "st.release.sys.v2.u64" in ptx
    assert "ld.acquire.sys.u64" in ptx
    # A work queue entry lies in memory of the device, as eight words, fenced before the doorbell's one.
    assert "fence.acq_rel.sys" in ptx
    assert "st.relaxed.sys.u32" in ptx
