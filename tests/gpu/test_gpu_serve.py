"""The example server on a real GPU: decoding by CUDA graphs against launching kernel by kernel.

Also without pytest: python tests/gpu/test_gpu_serve.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu_runs import library_folder, main_without_pytest, missing

os.environ.setdefault("EFAPROF_LIB_DIR", str(library_folder()))

from serve_runs import Server

try:
    import pytest
except ImportError:
    pytest = None

MODEL = ("--device", "cuda", "--hidden", "64", "--experts", "8", "--topk", "2", "--timeout", "15")
PROMPTS = [[1], [7, 8, 9], [200, 3, 17, 42, 5, 6, 250, 11, 12, 13], "four words of text"]
ANSWER = 24  # tokens


def answers(*options):
    """Of one server to all prompts, one after the other and then together: one and several sequences at a time."""
    with Server(*MODEL, *options) as server:
        alone = [server.complete(prompt, ANSWER) for prompt in PROMPTS]
        asked = server.load("--concurrency", "4", "--requests", "8", "--isl", "9", "--osl", str(ANSWER))
        assert asked.returncode == 0, asked.stderr
        has_graphs = any("by CUDA graphs" in line for line in server.said)
        assert has_graphs != ("--eager" in options), server.said
    return alone


def same_answers(arm):
    from efaprof.instrument.mps import shared_gpus

    with shared_gpus(2):
        graphs, eager = answers("--arm", arm), answers("--arm", arm, "--eager")
    assert graphs == eager
    assert all(len(answer) == ANSWER for answer in graphs)
    assert len(set(graphs)) > 1


def test_graphs_that_hold_the_whole_step_give_the_tokens_of_single_launches():
    same_answers("proxy")


def test_graphs_between_collectives_give_the_tokens_of_single_launches():
    same_answers("dense")


def reason_to_skip():
    try:
        import torch
    except ImportError:
        return "no torch"
    return missing() if torch.cuda.is_available() else "torch has no GPU"


if pytest is not None:
    pytestmark = pytest.mark.skipif(reason_to_skip() is not None, reason=str(reason_to_skip()))

if __name__ == "__main__":
    sys.exit(main_without_pytest(reason_to_skip(), globals()))
