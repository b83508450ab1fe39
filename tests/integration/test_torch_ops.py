"""torch.ops.efaprof: the operators keep torch's rules, and the dense arm gives what they give."""

from __future__ import annotations

import functools
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from moe_engines import OPTIONS, Rank, ranks

from efaprof.errors import UsageError
from efaprof.instrument import ops
from efaprof.instrument.ops import registry

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(scope="module", autouse=True)
def _operators():
    torch.set_num_threads(1)
    ops.load()
    ops.load()  # the second time nothing happens


class Peer(threading.Thread):
    """Rank 1, without tokens of its own: takes part in whatever rank 0 calls, until it is told that that is over."""

    def __init__(self, first: Rank, second: Rank) -> None:
        super().__init__()
        self._rank, self.calls = second, queue.SimpleQueue()
        self._real = {"dispatch": first.engine.dispatch, "combine": first.engine.combine}
        for name in self._real:
            setattr(first.engine, name, functools.partial(self._call, name))
        self.start()

    def _call(self, name, *arguments):
        self.calls.put(name)
        return self._real[name](*arguments)

    def run(self) -> None:
        none = np.zeros((0, OPTIONS.hidden), np.float32), np.zeros((0, 2), np.int64), np.zeros((0, 2), np.float32)
        self._rank.engine.begin_step(0)
        for name in iter(self.calls.get, None):
            if name == "dispatch":
                self._rank.dispatch(0, *none)
            else:
                self._rank.combine(np.zeros((OPTIONS.rows, OPTIONS.topk, OPTIONS.hidden), np.float32), 0)


def given(count=3):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, OPTIONS.hidden, generator=generator)
    experts = torch.rand(count, OPTIONS.experts, generator=generator).topk(OPTIONS.topk).indices
    return x, experts, torch.rand(count, OPTIONS.topk, generator=generator)


def test_operators_pass_torchs_own_checks():
    with ranks() as (rank, other):
        peer = Peer(rank, other)
        rank.engine.begin_step(0)
        x, experts, weights = given()
        check, operators = torch.library.opcheck, torch.ops.efaprof
        check(operators.dispatch.default, (x, experts, weights, rank.engine.handle, 0))
        received = operators.dispatch(x, experts, weights, rank.engine.handle, 0)[0]
        y = received[:, None, :].expand(-1, OPTIONS.topk, -1).contiguous()
        check(operators.combine.default, (y, 3, rank.engine.handle, 0))
        peer.calls.put(None)
        peer.join()


def layer(rank, x, experts, weights):
    received, chosen, _, _ = torch.ops.efaprof.dispatch(x, experts, weights, rank.engine.handle, 0)
    y = received[:, None, :] * (chosen[..., None] + 1)  # an expert multiplies by its number among its rank's, and 1
    return torch.ops.efaprof.combine(y, len(x), rank.engine.handle, 0)


def expected(x, experts, weights):
    return (x[:, None, :] * (experts % 4 + 1)[..., None] * weights[..., None]).sum(1)


def test_operators_dispatch_and_combine():
    def one(rank):
        rank.engine.begin_step(0)
        arguments = given(3 + rank.options.rank)
        return layer(rank, *arguments), expected(*arguments)

    with ranks() as job, ThreadPoolExecutor(2) as pool:
        for result, wanted in pool.map(one, job):
            torch.testing.assert_close(result, wanted)


def test_a_traced_layer_gives_what_it_gives_untraced():
    def trace(rank):
        rank.engine.begin_step(0)
        make = torch.fx.experimental.proxy_tensor.make_fx
        return make(lambda *three: layer(rank, *three), tracing_mode="fake")(*given(3))

    with ranks() as job:
        graphs = [trace(rank) for rank in job]  # tracing moves nothing: no rank waits for the other
        assert [node.target for node in graphs[0].graph.nodes if "efaprof" in str(node.target)] == [
            torch.ops.efaprof.dispatch.default, torch.ops.efaprof.combine.default,
        ]  # fmt: skip
        with ThreadPoolExecutor(2) as pool:
            for result in pool.map(lambda graph: graph(*given(3)), graphs):
                torch.testing.assert_close(result, expected(*given(3)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x, e, w: (x.double(), e, w), "dispatch takes f32 tokens of 40 elements, not torch.float64"),
        (lambda x, e, w: (x[:, :8], e, w), "of 40 elements"),
        (lambda x, e, w: (x, e.int(), w), "int64 experts"),
        (lambda x, e, w: (x, e[:2], w), "experts of shape"),
        (lambda x, e, w: (x, e, w.double()), "float32 weights"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(change, said):
    with ranks() as job:
        job[0].engine.begin_step(0)
        with pytest.raises(UsageError, match=said):
            torch.ops.efaprof.dispatch(*change(*given()), job[0].engine.handle, 0)


def test_a_number_that_is_no_engines_is_refused():
    with pytest.raises(UsageError, match="no open engine 0"):
        torch.ops.efaprof.dispatch(*given(), 0, 0)


def test_a_closed_engines_number_is_forgotten():
    with ranks() as job:
        number = job[0].engine.handle
        assert registry.find(number) is job[0].engine
    with pytest.raises(UsageError, match="no open engine"):
        registry.find(number)


@pytest.mark.parametrize(("dtype", "element"), [("f32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_dense_arm_gives_what_the_operators_give(tmp_path, dtype, element):
    import torch.distributed as dist

    from efaprof.instrument.dense import Dense

    options = replace(OPTIONS, ranks=1, dtype=dtype)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        x, experts, weights = given(4)
        x = x.to(element)
        with Dense(options) as arm:
            arm.begin_step(0, ops.StepKind.DECODE)
            received, chosen, factors, counts = arm.dispatch(x, experts, weights, 0)
            y = received[:, None, :] * (chosen[..., None] + 1)
            result = arm.combine(y.to(element), 4, 0)
            arm.end_step()
        assert counts.tolist() == [4]
        assert chosen.tolist() == [*experts.tolist(), *[[-1, -1]] * 2]
        torch.testing.assert_close(factors[:4], weights)
        torch.testing.assert_close(received[:4], x)
        y = (x[:, None, :] * (experts[..., None] + 1)).to(element).float()
        torch.testing.assert_close(result, (y * weights[..., None]).sum(1).to(element))
    finally:
        dist.destroy_process_group()
