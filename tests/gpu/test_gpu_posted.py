"""Models whose kernels post by themselves, on the emulated device. Also runs without pytest, as test_gpu.py does."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import urllib.request
from pathlib import Path

os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpu_runs import library_folder, main_without_pytest, on_device, run
from serve_runs import Server, record
from test_gpu_ops import reason_to_skip

os.environ.setdefault("EFAPROF_LIB_DIR", str(library_folder()))

try:
    import pytest
except ImportError:
    pytest = None

if pytest is not None:
    pytestmark = pytest.mark.skipif(reason_to_skip() is not None, reason=str(reason_to_skip()))

DEVICE = (sys.executable, "-m", "efaprof", "softefa", "-q", "--emulate", "latency=5us", "--")
ARMS = {"proxy": ("--provider", "shm"), "gdaki": ()}


def test_torchs_operators_do_the_same_when_the_kernels_post():
    os.environ["EFAPROF_TEST_POSTED"] = "1"
    try:
        ended = on_device([sys.executable, str(Path(__file__).parent / "test_gpu_ops.py")])
    finally:
        del os.environ["EFAPROF_TEST_POSTED"]
    assert ended.code == 0, ended.err + ended.out
    assert ended.out.strip().endswith("0 failed")
    assert "ok     test_a_captured_step" in ended.out


def answers(server):
    """What the server makes of some prompts."""
    found = []
    for prompt in ("a decode step", "the same, but longer than the other one"):
        body = json.dumps({"prompt": prompt, "max_tokens": 12}).encode()
        request = urllib.request.Request(f"{server.url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            found.append(json.load(reply)["choices"][0]["text"])
    return found


def test_a_server_answers_the_same_and_its_run_has_no_host_stages():
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for arm, more in ARMS.items():
            target = Path(folder) / arm
            prefix = (*(DEVICE if arm == "gdaki" else ()), *record(target))
            with Server("--arm", arm, "--device", "cuda", *more, prefix=prefix) as server:
                found[arm] = answers(server)
        assert found["gdaki"] == found["proxy"]
        told = run([sys.executable, "-m", "efaprof", "attribute", str(Path(folder) / "gdaki"), "--json"])
        assert told.code == 0, told.err
        report = json.loads(told.out)
        assert report["run"]["path"] == "gdaki"
        assert report["conservation_error_ns"] == 0
        layers = {row["layer"] for row in report["layers"]}
        assert {"kernel", "nic"} <= layers
        assert not layers & {"ring", "proxy", "libfabric"}


if __name__ == "__main__":
    sys.exit(main_without_pytest(reason_to_skip(), globals()))
