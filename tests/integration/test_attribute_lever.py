"""`efaprof attribute RUN… --lever`: several runs compared on the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from efaprof.trace.steady import Steady, write_steady

BYTES = 65_536


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lever")
    return [
        str(write_steady(folder / f"run{n}", Steady(steps=40, commands=n, proxy_ns=5_000, len_bytes=BYTES // n)).path)
        for n in (8, 16, 32)
    ]


def attribute(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "efaprof", "attribute", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_runs_of_one_lever_give_an_elasticity_in_json(runs):
    done = attribute(*runs, "--lever", "commands", "--json")
    assert done.returncode == 0, done.stderr
    levers = json.loads(done.stdout)["levers"]
    assert levers["names"] == ["commands"]
    (found,) = levers["elasticities"]
    assert found["name"] == "elasticity_operations"
    assert found["lo"] <= found["value"] <= found["hi"]
    assert set(levers["refused"]) == {"elasticity_bytes", "elasticity_parallelism", "elasticity_load"}


def test_one_run_or_an_unmoved_lever_says_what_to_type(runs):
    alone = attribute(runs[0], "--lever", "commands")
    assert alone.returncode == 2
    assert "--lever compares several runs" in alone.stderr
    unmoved = attribute(*runs, "--lever", "ranks")
    assert unmoved.returncode == 2
    assert "every run has the same ranks" in unmoved.stderr
    assert "Traceback" not in unmoved.stderr
