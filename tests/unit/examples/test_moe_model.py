"""The example model in shapes that do not depend on data, as on a GPU, against the one whose shapes do."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
EXAMPLES = Path(__file__).parents[3] / "examples"
TOKENS = 8
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in ("moe_rank", "moe_model"):
        monkeypatch.delitem(sys.modules, name, raising=False)


class Alone:
    """The exchange of a job of one rank: `room` rows, of which the first are its tokens."""

    def __init__(self, room):
        self.room = room

    def dispatch(self, x, experts, weights, _layer):
        empty = self.room - len(x)
        chosen = torch.nn.functional.pad(experts.to(torch.int32), (0, 0, 0, empty), value=-1)
        self.weights = torch.nn.functional.pad(weights, (0, 0, 0, empty))
        return torch.nn.functional.pad(x, (0, 0, 0, empty)), chosen, self.weights, torch.tensor([len(x)])

    def combine(self, y, tokens, _layer):
        return (y.float() * self.weights[..., None]).sum(1)[:tokens].to(y.dtype)


def made(place):
    from moe_model import Model
    from moe_rank import Shape

    return Model(Shape(layers=2, hidden=32, experts=4, slots=3, length=16), 0, 1, Alone(TOKENS), place)


def inputs(model, tokens, slots, positions):
    import moe_rank

    job = SimpleNamespace(tokens=TOKENS, shape=model.shape)
    return moe_rank._inputs(job, model, moe_rank.Work(tokens, slots, positions))


STEPS = [  # tokens, slots, positions
    ((5, 6, 7), (0, 0, 0), (0, 1, 2)),
    ((9, 10), (1, 1), (0, 1)),
    ((8, 11, 3), (0, 1, 2), (3, 2, 0)),
    ((), (), ()),
    (tuple(range(8)), (2,) * 8, tuple(range(1, 9))),
]


def test_filled_up_steps_give_the_logits_of_steps_that_are_not():
    from moe_model import HOST, Place

    free, static = made(HOST), made(Place(CPU, torch.float32, is_static=True))
    for step in STEPS:
        count = len(step[0])
        expected = free.forward(*inputs(free, *step), count)
        found = static.forward(*inputs(static, *step), count)
        assert (len(expected), len(found)) == (count, TOKENS)
        torch.testing.assert_close(found[:count], expected, rtol=1e-4, atol=1e-4)


def test_logits_do_not_depend_on_what_else_is_in_the_step():
    from moe_model import Place

    place = Place(CPU, torch.bfloat16, is_static=True)
    alone, among = made(place), made(place)
    first = alone.forward(*inputs(alone, (5, 6), (0, 0), (0, 1)), 2)
    other = among.forward(*inputs(among, (4, 5, 6, 1), (1, 0, 0, 2), (0, 0, 1, 0)), 4)
    assert torch.equal(first[:2], other[1:3])


def test_a_rehearsal_leaves_no_trace_in_what_follows():
    from moe_model import Place

    from efaprof.instrument.ops import EngineOptions

    place = Place(CPU, torch.bfloat16, is_static=True)
    rehearsed, fresh = made(place), made(place)
    options = EngineOptions(rank=0, ranks=1, tokens=TOKENS, hidden=32, topk=2, experts=4, dtype="bf16")
    nobody = rehearsed.shape.slots
    batches = [inputs(rehearsed, (0,) * n, (nobody,) * n, (0,) * n) for n in range(TOKENS + 1)]
    rehearsed.rehearse(options, batches)
    given = inputs(fresh, (5, 6), (0, 0), (0, 1))
    assert torch.equal(rehearsed.forward(*given, 2)[:2], fresh.forward(*given, 2)[:2])
