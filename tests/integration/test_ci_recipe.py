"""What docs/ci.md and action.yml tell a CI to run, run: a regression is red and its layer named, noise is green."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ci_runs import interleaved
from recording import efaprof

from efaprof.errors import EfaprofError
from efaprof.instrument import dispatch

REPO = Path(__file__).resolve().parents[2]
LOOP = REPO / "examples" / "abba.sh"
PAGE = REPO / "docs" / "ci.md"
ACTION = REPO / "action.yml"
pytestmark = pytest.mark.skipif(
    not (LOOP.is_file() and PAGE.is_file() and ACTION.is_file()), reason="no docs and examples: not a checkout"
)

# A program that "records" one synthetic run into $RUN: argv[1] is the proxy's time, argv[2] a seed for noise.
RECORD = """
import os, sys, zlib
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {tests!r})
from ci_runs import BASE, changed
from efaprof.trace.steady import write_steady
run = Path(os.environ["RUN"])
offset = zlib.crc32((run.name + sys.argv[2]).encode()) % 1000 - 500  # ns: under a percent of the step
steady = replace(BASE, proxy_ns=int(sys.argv[1]), compute_ns=BASE.compute_ns + offset)
marker = run.parent / "count"
number = int(marker.read_text()) + 1 if marker.exists() else 1
marker.write_text(str(number))
changed(write_steady(run, steady), started_realtime_ns=number)
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A folder as a CI job finds it: `efaprof` is a command, the loop lies beside the job."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "efaprof"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m efaprof "$@"\n')
    command.chmod(0o755)
    (tmp_path / "record.py").write_text(RECORD.format(tests=str(REPO / "tests")))
    shutil.copy(LOOP, tmp_path / "abba.sh")
    return tmp_path


def bash(script: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{cwd / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", script], cwd=cwd, env={**os.environ, "PATH": path, **environment}, capture_output=True,
        text=True, timeout=200, check=False,
    )  # fmt: skip


def recording(proxy_ns: int, seed: str = "1") -> str:
    return f"{sys.executable} record.py {proxy_ns} {seed}"


def recipe(page: Path = PAGE) -> str:
    found = re.search(r"^<!-- recipe: .*?-->\n```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def test_the_readme_has_the_same_recipe():
    assert recipe(REPO / "README.md") == recipe()


def test_the_recipe_is_green_on_noise_alone(job):
    done = bash(recipe(), job, BASE=recording(7_000), HEAD=recording(7_000))
    assert done.returncode == 0, done.stderr
    made = json.loads((job / "diff.json").read_text())
    assert (made["outcome"], made["order"], made["warnings"]) == ("unchanged", "ABBAAB", [])
    for name in ("diff.md", "gates.xml", "bench.json"):
        assert (job / name).stat().st_size > 100


def test_the_recipe_is_red_on_a_slower_proxy_and_names_it(job):
    done = bash(recipe(), job, BASE=recording(7_000), HEAD=recording(9_000))
    assert done.returncode == 4
    assert "gate failed: layer proxy within 10.0 %" in done.stderr
    failed = [
        gate["name"] for gate in json.loads((job / "diff.json").read_text())["gates"] if gate["status"] == "failed"
    ]
    assert [name for name in failed if name.startswith("layer ")] == ["layer proxy within 10.0 %"]


def test_the_loop_refuses_old_runs_and_commands_that_make_none(job):
    done = bash("bash abba.sh -n 1 -o runs true true", job)
    assert done.returncode == 1
    assert "made no run at $RUN (runs/A1)" in done.stderr
    (job / "runs" / "A1").mkdir()
    done = bash("bash abba.sh -n 1 -o runs true true", job)
    assert done.returncode == 2
    assert "already holds runs" in done.stderr
    assert bash("bash abba.sh -n x true true", job).returncode == 2


def test_the_instrumented_path_runs_in_turns_and_is_compared(job):
    try:
        dispatch.binary()
    except EfaprofError as error:
        pytest.skip(error.message)
    plan = 'efaprof bench dispatch --layers 2 --warmup 1 --compute-us 0 --steps 12 -o "$RUN"'
    done = bash(f"bash abba.sh -n 3 '{plan}' '{plan} --inject proxy=100us'", job)
    assert done.returncode == 0, done.stderr
    refused = efaprof("diff", *sorted(job.glob("runs/A*")), "--", *sorted(job.glob("runs/B*")), cwd=job)
    assert refused.returncode == 5
    assert "they differ in inject" in refused.stderr
    compared = efaprof(
        "diff", *sorted(job.glob("runs/A*")), "--", *sorted(job.glob("runs/B*")), "--allow", "inject", "--json", cwd=job
    )
    assert compared.returncode == 0, compared.stderr
    made = json.loads(compared.stdout)
    assert made["order"] == "ABBAAB"
    proxy = next(one for one in made["measures"] if one["name"] == "proxy")
    assert proxy["second_us"] > proxy["first_us"] + 100  # at least one injected operation lies on the path


# ---- the GitHub action ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def action():
    return pytest.importorskip("yaml", reason="no PyYAML").safe_load(ACTION.read_text())


def gate(action, job, **inputs):
    """The action's last step, with its inputs where GitHub puts them."""
    step = action["runs"]["steps"][-1]
    given = {name: spec.get("default", "") for name, spec in action["inputs"].items()} | inputs
    names = {name: re.fullmatch(r"\$\{\{ inputs\.(\w+) \}\}", value)[1] for name, value in step["env"].items()}
    return bash(step["run"], job, **{name: given[key] for name, key in names.items()})


def test_the_action_takes_inputs_by_the_environment_only(action):
    assert action["runs"]["using"] == "composite"
    for step in action["runs"]["steps"]:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"]


def test_the_action_compares_with_a_baseline(action, job):
    interleaved(job / "runs", proxy_ns=9_000)
    inputs = {"runs": "runs/B*", "baseline": "runs/A*"}
    red = gate(action, job, **inputs, gates="--fail-regression 5%")
    assert red.returncode == 4, red.stderr
    assert "layer proxy" in red.stderr
    assert {path.name for path in (job / "efaprof-reports").iterdir()} == {
        "diff.json", "diff.md", "diff.xml", "diff-bench.json",
    }  # fmt: skip
    assert gate(action, job, **inputs).returncode == 0


def test_the_action_gates_each_run_and_remembers_the_red_one(action, job):
    interleaved(job / "runs", order="AB", proxy_ns=9_000)
    done = gate(action, job, runs="runs/B*\nruns/A*", gates="--fail-above proxy=70us", reports="out")
    assert done.returncode == 4
    assert sorted(path.name for path in (job / "out").glob("*.json")) == [
        "attribution-1-bench.json", "attribution-1.json", "attribution-2-bench.json", "attribution-2.json",
    ]  # fmt: skip
    outcomes = [json.loads((job / "out" / f"attribution-{n}.json").read_text())["gates"][-1]["status"] for n in (1, 2)]
    assert outcomes == ["failed", "passed"]


def test_the_action_fails_when_nothing_matches(action, job):
    done = gate(action, job, runs="runs/*")
    assert done.returncode == 5
    assert "no run matches: runs/*" in done.stdout
