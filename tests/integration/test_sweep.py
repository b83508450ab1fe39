"""`efaprof sweep dispatch`: a small grid over a real provider, recorded, kept and compared."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from efaprof.errors import EfaprofError
from efaprof.instrument.dispatch import binary

SMALL = ["--provider", "shm", "--layers", "2", "--tokens", "4", "--hidden", "512", "--topk", "2", "--experts", "4",
         "--steps", "40", "--warmup", "5", "--threads", "2"]  # fmt: skip


def sweep(*arguments):
    argv = [sys.executable, "-m", "efaprof", "sweep", "dispatch", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=200, check=False)


def test_a_grid_is_recorded_kept_and_compared(tmp_path):
    try:
        binary()
    except EfaprofError as error:
        pytest.skip(error.message)
    folder = tmp_path / "grid"
    done = sweep("--vary", "channels=1,8", "-o", folder, "--json", "--", *SMALL)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [row["run"] for row in document["sweep"]] == ["channels1", "channels8"]
    assert all((folder / row["run"] / "manifest.json").is_file() for row in document["sweep"])
    first, second = document["levers"]["runs"]
    assert second["operations"] > 1.5 * first["operations"]
    known = {one["name"] for one in document["levers"]["elasticities"]}
    # Signals carry bytes too: whether they are few enough to call the bytes fixed is measured, not assumed.
    assert known | set(document["levers"]["refused"]) == {
        f"elasticity_{axis}" for axis in ("bytes", "operations", "parallelism", "load")
    }


def test_a_folder_that_is_there_is_left_alone(tmp_path):
    done = sweep("--vary", "channels=1,4", "-o", tmp_path)
    assert done.returncode == 2
    assert "is there already" in done.stderr
