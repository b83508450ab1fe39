"""`efaprof calibrate`: loops over a real provider, and over an emulated device whose ceiling is known."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import fabric_runs
import pytest
from softefa_runs import need_softefa

from efaprof.ingest.profile import read_profile
from efaprof.session.calibration import Plan

TIMEOUT_S = 90


@pytest.fixture(autouse=True)
def _shim():
    fabric_runs.need_shim()


def calibrate(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "efaprof", "calibrate", *map(str, arguments)],
        env={**os.environ, "FI_EFA_RX_SIZE": "256"}, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("provider", ["tcp", "shm"])
def test_a_profile_is_measured_and_kept(provider, tmp_path):
    done = calibrate(
        "--provider", provider, "--duration-ms", 30, "--threads", "2", "-o", tmp_path / "profile.json", "--json"
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document == json.loads((tmp_path / "profile.json").read_text())
    profile = read_profile(tmp_path / "profile.json")
    assert profile.fingerprint["provider"] == provider
    assert profile.emulated == ()
    loops = Plan(provider, threads=(1, 2)).loops
    assert [(row.size_bytes, row.threads) for row in profile.rows] == [(one.size_bytes, one.threads) for one in loops]
    assert {row.threads for row in profile.rows} == {1, 2}
    assert sum(row.completed for row in profile.rows if row.threads == 2) > 0
    assert all(row.idle_ns <= row.elapsed_ns for row in profile.rows)
    assert min(profile.rows, key=lambda row: (row.size_bytes, row.window)).completed > 0
    assert profile.rate_ops_s.value == max(row.operations_s for row in profile.rows)


def test_an_emulated_device_is_not_measured_faster_than_it_is(tmp_path):
    need_softefa()
    target = tmp_path / "profile.json"
    done = calibrate("--provider", "efa-direct", "--emulate", "ops=20000,latency=20us", "--duration-ms", 40,
                     "-o", target)  # fmt: skip
    if "offers no provider" in done.stderr or "no libfabric" in done.stderr:
        pytest.skip("no libfabric with efa-direct here")
    assert done.returncode == 0, done.stderr
    profile = read_profile(target)
    assert profile.emulated and "softefa" in profile.emulated[0]
    # What is in flight when a loop begins to count may be a window's worth.
    assert profile.rate_ops_s.value <= 20_000 * 1.1 + 256 / 0.04
    assert profile.latency_us >= 20
    assert "emulated: device" in done.stdout


@pytest.mark.parametrize("text", ["0", "1,x", "1,,2", "64"])
def test_threads_are_a_list_of_numbers(text, tmp_path):
    done = calibrate("--provider", "tcp", "--threads", text, "-o", tmp_path / "profile.json")
    assert done.returncode == 2
    assert "is no list of numbers up to 32" in done.stderr


def test_an_unknown_provider_says_what_to_do(tmp_path):
    done = calibrate("--provider", "nosuch", "-o", tmp_path / "profile.json")
    assert done.returncode != 0
    assert "error:" in done.stderr and "hint:" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "profile.json").exists()
