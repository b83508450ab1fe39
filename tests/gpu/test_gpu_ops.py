"""torch.ops.efaprof with kernels on a real GPU: two ranks of one process, a stream each.

Also without pytest: python tests/gpu/test_gpu_ops.py
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # a kernel that is loaded late waits behind one that waits for it
sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_runs import library_folder, main_without_pytest, missing

os.environ.setdefault("EFAPROF_LIB_DIR", str(library_folder()))

try:
    import pytest
except ImportError:
    pytest = None
try:
    import torch
except ImportError:
    torch = None


def reason_to_skip():
    if torch is None or not torch.cuda.is_available():
        return "no torch with a GPU"
    return missing()


if pytest is not None:
    pytestmark = pytest.mark.skipif(reason_to_skip() is not None, reason=str(reason_to_skip()))

# Kernels that post by themselves, on an emulated device around this process: see test_gpu_posted.py.
IS_POSTED = os.environ.get("EFAPROF_TEST_POSTED") == "1"
RANKS, TOKENS, HIDDEN, TOPK, EXPERTS = 2, 16, 2048, 4, 16
LOCAL = EXPERTS // RANKS


class Job:
    """Two ranks in this process."""

    def __init__(self, dtype="bf16"):
        self.dtype = dtype

    def __enter__(self):
        from efaprof.instrument.ops import EngineOptions, load_cuda
        from efaprof.instrument.ops.cuda import CudaEngine
        from efaprof.trace.layers import DispatchPath

        way = {"path": DispatchPath.GDAKI, "provider": "efa-direct"} if IS_POSTED else {"provider": "shm"}
        load_cuda()
        self.streams = [torch.cuda.Stream() for _ in range(RANKS)]
        for (
            stream
        ) in self.streams:  # so that nothing is allocated or loaded while a kernel waits: that would wait for it
            with torch.cuda.stream(stream):
                warm = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
                answer(warm.view(torch.bfloat16)[: 16 * HIDDEN].view(16, HIDDEN), warm[:64].int().view(16, TOPK))
                small = [torch.zeros(1 << 19, dtype=torch.uint8, device="cuda") for _ in range(32)]
                del warm, small
        torch.cuda.synchronize()
        self.engines = [
            CudaEngine(
                EngineOptions(rank=rank, ranks=RANKS, tokens=TOKENS, hidden=HIDDEN, topk=TOPK, experts=EXPERTS,
                              dtype=self.dtype, timeout_s=5, **way)
            )
            for rank in range(RANKS)
        ]  # fmt: skip
        contacts = [engine.contact() for engine in self.engines]
        for engine in self.engines:
            engine.connect(contacts)
        return self

    def __exit__(self, *_error):
        together([engine.close for engine in self.engines])

    def on(self, rank):
        return torch.cuda.stream(self.streams[rank])


def together(calls):
    """All at once: they wait for each other."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def fresh(seed):
    """Tokens, routes and weights of one rank."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn(TOKENS, HIDDEN, generator=generator, device="cuda").to(torch.bfloat16)
    experts = torch.rand(TOKENS, EXPERTS, generator=generator, device="cuda").argsort(dim=1)[:, :TOPK].contiguous()
    weights = torch.rand(TOKENS, TOPK, generator=generator, device="cuda")
    return x, experts, weights


def answer(rows, chosen):
    """What this rank's experts make of the rows: expert e multiplies by e + 1."""
    scale = (chosen + 1).clamp(min=0).to(torch.bfloat16)
    return rows[:, None, :] * scale[:, :, None]


def expected_rows(rank, inputs):
    """Tokens that must arrive, by source."""
    found = []
    for x, experts, _ in inputs:
        goes = (experts // LOCAL == rank).any(dim=1)
        found.append((x[goes], experts[goes]))
    return found


def check_received(rank, received, inputs):
    rows, chosen, weights, counts = received
    for src, (tokens, experts) in enumerate(expected_rows(rank, inputs)):
        count = len(tokens)
        assert counts[src].item() == count
        block = slice(src * TOKENS, src * TOKENS + count)
        assert torch.equal(rows[block], tokens)
        local = torch.where(experts // LOCAL == rank, experts % LOCAL, -1).to(torch.int32)
        assert torch.equal(chosen[block], local)
        assert (chosen[src * TOKENS + count : (src + 1) * TOKENS] == -1).all()
        assert (weights[block][local < 0] == 0).all()


def through_fp8(x):
    """What tokens are after a way as e4m3 with a scale for each 128 elements."""
    groups = x.float().view(len(x), -1, 128)
    largest = groups.abs().amax(dim=2, keepdim=True)
    most = torch.full_like(largest, 448)  # a number would be inverted first: that rounds twice
    codes = (groups * (most / largest)).clamp(-448, 448).to(torch.float8_e4m3fn)
    return (codes.float() * (largest / most)).to(torch.bfloat16).view_as(x)


def check_result(result, given):
    x, experts, weights = given
    local = experts % LOCAL + 1
    exact = (weights * local).sum(dim=1, keepdim=True).double() * x.double()
    parts = (weights * local).sum(dim=1, keepdim=True).double() * x.double().abs()
    # An answer is rounded to bfloat16, each rank's sum of them too, and their sum.
    assert ((result.double() - exact).abs() <= parts * 3 / 256 + 1e-6).all()


def layer(engine, number, given):
    """Dispatch, experts, combine in the current stream."""
    received = torch.ops.efaprof.dispatch(*given, engine.handle, number)
    result = torch.ops.efaprof.combine(answer(received[0], received[1]), TOKENS, engine.handle, number)
    return received, result


def test_tokens_come_bit_for_bit_and_answers_add_up():
    with Job() as job:
        for step in range(5):
            inputs = [fresh(10 * step + rank) for rank in range(RANKS)]
            torch.cuda.synchronize()
            outcome = []
            for rank, engine in enumerate(job.engines):
                with job.on(rank):
                    engine.begin_step(step)
                    outcome.append([layer(engine, number, inputs[rank]) for number in range(3)])
                    engine.end_step()
            torch.cuda.synchronize()
            for rank in range(RANKS):
                for received, result in outcome[rank]:
                    check_received(rank, received, inputs)
                    check_result(result, inputs[rank])
        assert job.engines[0].counts().barrier == 5 * 3 * 2


def test_tokens_that_travel_as_fp8_come_as_what_that_leaves_of_them():
    with Job("fp8") as job:
        for step in range(3):
            inputs = [fresh(1000 + 10 * step + rank) for rank in range(RANKS)]
            torch.cuda.synchronize()
            outcome = []
            for rank, engine in enumerate(job.engines):
                with job.on(rank):
                    engine.begin_step(step)
                    outcome.append(layer(engine, 0, inputs[rank]))
                    engine.end_step()
            torch.cuda.synchronize()
            left = [(through_fp8(x), experts, weights) for x, experts, weights in inputs]
            assert not torch.equal(left[0][0], inputs[0][0])
            for rank in range(RANKS):
                received, result = outcome[rank]
                check_received(rank, received, left)
                check_result(result, left[rank])


def test_a_captured_step_moves_what_is_new_at_each_replay():
    with Job() as job:
        static = [fresh(rank) for rank in range(RANKS)]
        for rank, engine in enumerate(job.engines):  # once without a graph: torch's own kernels and memory
            with job.on(rank):
                layer(engine, 0, static[rank])
        torch.cuda.synchronize()
        graphs, outcome = [], []
        for rank, engine in enumerate(job.engines):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=job.streams[rank]):
                outcome.append([layer(engine, number, static[rank]) for number in range(2)])
            graphs.append(graph)
        for step in range(1, 8):
            inputs = [fresh(100 * step + rank) for rank in range(RANKS)]
            for rank in range(RANKS):
                for into, value in zip(static[rank], inputs[rank], strict=True):
                    into.copy_(value)
            torch.cuda.synchronize()
            for rank, engine in enumerate(job.engines):
                with job.on(rank):
                    engine.begin_step(step)
                    graphs[rank].replay()
                    engine.end_step()
            torch.cuda.synchronize()
            for rank in range(RANKS):
                for received, result in outcome[rank]:
                    check_received(rank, received, inputs)
                    check_result(result, inputs[rank])


def test_an_expert_that_does_not_exist_is_named():
    from efaprof.errors import EfaprofError

    with Job() as job:
        x, experts, weights = fresh(1)
        experts[3, 1] = EXPERTS
        engine = job.engines[0]
        with job.on(0):
            engine.begin_step(0)
            torch.ops.efaprof.dispatch(x, experts, weights, engine.handle, 0)
            engine.end_step()
        torch.cuda.synchronize()
        try:
            engine.begin_step(1)
        except EfaprofError as error:
            assert "choice 1 of token 3 names an expert that does not exist" in str(error.message)
        else:
            raise AssertionError("nothing was said")


if __name__ == "__main__":
    sys.exit(main_without_pytest(reason_to_skip(), globals()))
