"""The kernels that post by themselves, warp by warp on a CPU (tests/fakes/warps.cpp), against the emulated device."""

from __future__ import annotations

import json
import os
import re

import pytest
from softefa_runs import need_softefa, on_softefa

WORDS = ("--device", "cuda", "--dtype", "bf16", "--provider", "efa-direct", "--path", "gdaki", "--queues", "verbs",
         "--layers", "2", "--tokens", "6", "--hidden", "64", "--compute-us", "0", "--warmup", "1", "--steps", "3",
         "--timeout", "30")  # fmt: skip
COUNTED = ("--completion", "counter")
SMALL = ("--batch", "4", "--send-queue", "8", "--window", "16")


@pytest.fixture(scope="module")
def program(dispatch_program, beside_warps):
    """efaprof-dispatch beside kernels that run on a CPU."""
    need_softefa()
    return beside_warps(dispatch_program)


def posted(program, monkeypatch, *words, emulate=""):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", os.fspath(program.parent))  # ranks need no daemon here
    return on_softefa(program, *WORDS, *words, emulate=emulate)


@pytest.mark.parametrize(
    ("words", "emulate"),
    [
        ([], ""),
        (SMALL, "latency=5us,reorder=0.5"),
        (["--signal", "fence", "--ranks", "3", "--experts", "18"], "latency=5us,reorder=0.5"),
        (["--signal", "fence-batch", "--window", "1", "--dtype", "fp8", "--hidden", "128", "--no-stamps"], ""),
        (["--signal", "fence", *COUNTED], "counters=on,latency=5us,reorder=0.5"),
        (["--signal", "fence-batch", "--ranks", "3", "--experts", "18", *SMALL, *COUNTED], "counters=on,reorder=0.5"),
    ],
    ids=["plain", "small queues, reordered", "fenced, reordered", "one in flight", "counted", "counted, small queues"],
)
def test_a_warp_posts_what_its_peers_verify(program, monkeypatch, words, emulate):
    done = posted(program, monkeypatch, "--json", *words, emulate=emulate)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["verified_tokens"] == found["ranks"] * 6 * 2 * 4
    assert found["gpu"]["violations"] == 0


def test_a_peer_that_stays_away_is_named_in_time(program, monkeypatch):
    done = posted(program, monkeypatch, "--late", "1=4s", "--timeout", "1")
    assert done.returncode == 1
    assert "the kernel waited 1 s for a barrier (rank 1" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "a write ended with status 1[35] \\(the peer "),
        (["--signal", "fence", *COUNTED], "the device's counter of errors went up by [1-9]"),
    ],
    ids=["queue", "counter"],
)
def test_a_wire_that_loses_ends_the_run_in_one_line(program, monkeypatch, words, said):
    words = ["--steps", "40", "--timeout", "3", *words]
    done = posted(program, monkeypatch, *words, emulate="counters=on,loss=0.2,retries=0,rto=1us")
    assert done.returncode == 1
    assert re.search(said, one_line(done))


@pytest.mark.parametrize("seed", ["1", "2"])
def test_spoiled_entries_end_in_the_right_answer_or_in_one_line(program, monkeypatch, seed):
    words = ["--fuzz", "20", "--timeout", "2", "--seed", seed, "--json"]
    done = posted(program, monkeypatch, *words, emulate="latency=2us,reorder=0.3")
    if done.returncode == 0:
        assert json.loads(done.stdout)["verified_tokens"] == 2 * 6 * 2 * 4
        return
    assert done.returncode == 1
    assert one_line(done)


def one_line(done):
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("efaprof-dispatch: ")]
    return line


def test_damaged_tokens_are_found(program, monkeypatch):
    done = posted(program, monkeypatch, "--corrupt", "2")
    assert done.returncode == 1
    assert "data does not verify" in done.stderr
