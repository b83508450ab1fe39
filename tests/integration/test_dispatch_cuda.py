"""The protocol of the ring and the wire is one source for the CPU and for a GPU kernel."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from efaprof.errors import EfaprofError
from efaprof.instrument.dispatch import binary

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


POSTING = ["--dtype", "bf16", "--path", "gdaki", "--provider", "efa-direct"]


def run_on_gpu(*words):
    try:
        program = binary()
    except EfaprofError as error:
        pytest.skip(error.message)
    argv = [program, "--device", "cuda", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dtype", "f32"], "--device cuda moves --dtype bf16 or fp8"),
        (["--dtype", "bf16", "--hidden", "1001"], "multiples of 8"),
        (["--dtype", "fp8", "--hidden", "1000"], "multiples of 128"),
        (["--dtype", "bf16", "--ring", "32"], "a warp pushes 32 commands at a time"),
        (["--dtype", "int8"], "--dtype must be f32, bf16 or fp8"),
        (["--dtype", "bf16", "--path", "gdaki"], "not through provider tcp"),
        ([*POSTING, "--inject", "rx=5us"], "nobody but the kernel could hold nic and rx back"),
        ([*POSTING, "--stamps-in-turns"], "--stamps-in-turns needs --path proxy"),
    ],
)
def test_what_kernels_do_not_move_is_refused(words, said):
    done = run_on_gpu(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_where_there_is_no_gpu_that_is_said_and_nothing_runs():
    if shutil.which("nvidia-smi") is not None:
        pytest.skip("there may be a GPU here")
    done = run_on_gpu("--dtype", "bf16")
    assert (done.returncode, done.stdout) == (2, "")
    assert "built without CUDA" in done.stderr or "no GPU here, or no driver" in done.stderr
