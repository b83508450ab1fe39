"""`efaprof bench dispatch --path dense`: the control arm, run, checked, recorded, and read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from recording import efaprof, wait_until

from efaprof.instrument.dispatch import DispatchOptions
from efaprof.trace.layers import DispatchPath

pytest.importorskip("torch", reason="torch is not installed")

SMALL = ("--path", "dense", "--layers", "2", "--hidden", "64", "--steps", "6", "--warmup", "2", "--compute-us", "0")


def test_its_steps_are_split_like_those_of_any_path(tmp_path):
    done = efaprof("bench", "dispatch", *SMALL, "--json", "-o", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["path"], summary["provider"]) == ("dense", "gloo")
    assert summary["verified_tokens"] == 2 * 8 * 2 * (6 + 2)
    report = json.loads(efaprof("attribute", "run", "--json", cwd=tmp_path).stdout)
    assert (report["run"]["path"], report["steps"], report["conservation_error_ns"]) == ("dense", 6, 0)
    assert report["operations"]["per_step"]["count"] == report["operations"]["predicted"] == 4
    assert report["operations"]["verified_tokens"] == summary["verified_tokens"]
    assert report["delivery"]["level"] == 3
    assert {"nic: gloo on one host", "compute: the host waits"} <= set(report["run"]["emulated"])


def test_a_late_rank_is_the_others_skew(tmp_path):
    words = ("--late", "1=20ms", "--steps", "8", "-o", "run")
    assert efaprof("bench", "dispatch", *SMALL, *words, cwd=tmp_path).returncode == 0
    layers = json.loads(efaprof("attribute", "run", "--json", cwd=tmp_path).stdout)["layers"]
    share = {layer["layer"]: layer["share"] for layer in layers}
    assert share["skew"] > 0.3  # of the mean of both ranks: the late one has none
    assert share["skew"] > share["nic"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--experts", "15"], "15 experts: their number must be a multiple of 2 ranks"),
        (["--provider", "nccl"], "--provider nccl: 2 ranks cannot share 0 GPUs"),
        (["--late", "5=1ms"], "there is no rank 5"),
        (["--device", "cuda"], "--device cuda: torch has no GPU here"),
    ],
)
def test_what_cannot_run_is_refused_and_leaves_nothing(words, said, tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there are GPUs here")
    done = efaprof("bench", "dispatch", *SMALL, *words, "-o", "run", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_dies_is_named_and_the_others_end():
    options = DispatchOptions(path=DispatchPath.DENSE, provider="auto", hidden=64, steps=1_000_000, compute_us=0)
    job = subprocess.Popen(options.command(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        ranks = wait_until(lambda: found if len(found := _ranks(job.pid)) == 2 else None)
        os.kill(ranks[1], signal.SIGKILL)
        _, said = job.communicate(timeout=60)
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 1
    assert "rank" in said
    assert "the others were stopped" in said
    assert not any(_is_there(rank) for rank in ranks)


def _ranks(pid: int) -> list[int]:
    """Its children that are ranks, in order of their start; the one beside them tracks their semaphores."""
    with Path(f"/proc/{pid}/task/{pid}/children").open() as children:
        found = [int(child) for child in children.read().split()]
    return [child for child in found if "spawn_main" in _command(child)]


def _command(pid: int) -> str:
    try:
        with Path(f"/proc/{pid}/cmdline").open() as words:
            return words.read()
    except OSError:
        return ""


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# A process of its own: the group of one rank is torch's for the whole process.
CHANGED = """
import sys
from efaprof.instrument import dense_rank

job = dense_rank.DenseJob(device="cpu", dtype="f32", ranks=1, layers=1, tokens=4, hidden=64, topk=2, experts=4,
                          compute_us=0, steps=2, warmup=0, seed=1, late_us=(0.0,), backend="gloo",
                          rendezvous=sys.argv[1])
rank = dense_rank._Rank(job, 0)
what, real = sys.argv[2], getattr(rank._dense, sys.argv[2])

def changed(*given):
    found = real(*given)
    (found[0] if what == "dispatch" else found)[1, 3] += 1
    return found

setattr(rank._dense, what, changed)
try:
    rank.run()
except dense_rank.Mismatch as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("what", "said"), [("dispatch", "tokens came that were not sent"), ("combine", "sums are wrong by more than")]
)
def test_data_that_is_not_what_it_must_be_is_found(what, said, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CHANGED, str(tmp_path / "ranks"), what], capture_output=True, text=True, check=False
    )
    assert said in done.stdout, done.stderr
