"""Decode steps as graphs against the model's own forward; graphs are emulated: operators taken down and run again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

EXAMPLES = Path(__file__).parents[3] / "examples"
TOKENS, SLOTS, RANKS = 8, 3, 1


class Taken(TorchDispatchMode):
    """Operators between entry and exit, with what they got and gave."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


class EmulatedGraph:
    """Runs what was taken down again, into the same memory."""

    def __init__(self):
        self.taken = Taken()

    def capture_begin(self, **_how):
        self.taken.__enter__()

    def capture_end(self):
        self.taken.__exit__(None, None, None)

    def replay(self):
        for func, args, kwargs, result in self.taken.calls:
            again = func(*args, **kwargs)
            for into, value in zip(leaves(result), leaves(again), strict=True):
                if into.data_ptr() != value.data_ptr():
                    into.copy_(value)


def leaves(result):
    return [one for one in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(one, torch.Tensor)]


class Alone:
    """The exchange of a job of one rank, all of it operators."""

    def __init__(self):
        self.calls = 0

    def dispatch(self, x, experts, weights, _layer):
        self.calls += 1
        empty = TOKENS - len(x)
        chosen = torch.nn.functional.pad(experts.to(torch.int32), (0, 0, 0, empty), value=-1)
        self.weights = torch.nn.functional.pad(weights, (0, 0, 0, empty))
        counts = torch.tensor([len(x)], dtype=torch.int32)
        return torch.nn.functional.pad(x, (0, 0, 0, empty)), chosen, self.weights, counts

    def combine(self, y, tokens, _layer):
        return (y.float() * self.weights[..., None]).sum(1)[:tokens].to(y.dtype)


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in ("moe_rank", "moe_model", "moe_graphs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import moe_graphs

    monkeypatch.setattr(torch.cuda, "CUDAGraph", EmulatedGraph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(moe_graphs, "_upload", lambda _graph: None)


def made():
    from moe_model import Model, Place
    from moe_rank import Shape

    place = Place(torch.device("cpu"), torch.bfloat16, is_static=True)
    return Model(Shape(layers=2, hidden=32, experts=4, slots=SLOTS, length=16), 0, RANKS, Alone(), place)


def graphs_of(model, *, is_capturable):
    from moe_graphs import DecodeGraphs

    from efaprof.instrument.ops import EngineOptions

    options = EngineOptions(rank=0, ranks=RANKS, tokens=TOKENS, hidden=32, topk=2, experts=4, dtype="bf16")
    return DecodeGraphs(model, options, most=SLOTS, is_capturable=is_capturable)


def rows(tokens, slots, positions):
    empty = TOKENS - len(tokens)
    return [tokens + (0,) * empty, slots + (SLOTS,) * empty, positions + (0,) * empty]


STEPS = [  # tokens, slots, positions: caches grow from step to step
    ((5,), (0,), (0,)),
    ((9, 10), (0, 1), (1, 0)),
    ((8, 11, 3), (0, 1, 2), (2, 1, 0)),
    ((), (), ()),
    ((7, 12), (2, 0), (1, 3)),
]


@pytest.mark.parametrize("is_capturable", [True, False])
def test_steps_as_graphs_give_the_tokens_of_steps_that_are_not(is_capturable):
    eager, model = made(), made()
    with torch.inference_mode():
        graphs = graphs_of(model, is_capturable=is_capturable)
        for step in STEPS:
            filled, count = rows(*step), len(step[0])
            expected = eager.forward(*torch.tensor(filled).unbind(), count).argmax(-1)
            assert torch.equal(graphs.forward(filled, count)[:count], expected[:count])


def test_an_exchange_that_cannot_be_captured_is_called_at_each_step_and_not_before():
    model = made()
    with torch.inference_mode():
        graphs = graphs_of(model, is_capturable=False)
        assert model.exchange.calls == 0
        for number in range(1, 4):
            graphs.forward(rows((5,), (0,), (number,)), 1)
            assert model.exchange.calls == number * model.shape.layers


def test_there_is_a_graph_for_each_number_of_sequences_up_to_the_slots():
    with torch.inference_mode():
        graphs = graphs_of(made(), is_capturable=True)
    assert [graphs.has(count) for count in (0, SLOTS, SLOTS + 1)] == [True, True, False]
