"""The dispatch library: what it moves, what it adds up, what it refuses, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from moe_engines import OPTIONS, from_bf16, ranks, to_bf16, together

from efaprof.errors import EfaprofError, UsageError
from efaprof.instrument.dispatch import Injection, SignalMode
from efaprof.instrument.ops.engine import Engine, StepKind
from efaprof.trace.layers import Layer


def choices(random, count, options):
    """Different experts for each token, and their weights."""
    order = np.argsort(random.random((count, options.experts)), axis=1)[:, : options.topk]
    return order.astype(np.int64), random.random((count, options.topk), np.float32)


def answers(received, rank):
    """Expert e turns x into (e + 1)·x + e; what no expert is asked for is no number."""
    first = rank.options.rank * rank.options.experts // rank.options.ranks
    expert = (received.experts + first).astype(np.float32)[..., None]
    y = (expert + 1) * received.x[:, None, :] + expert
    return np.where(received.experts[..., None] < 0, np.nan, y).astype(np.float32)


def reference(x, experts, weights):
    """The same in double precision, from what was given alone."""
    numbers = experts[..., None].astype(np.float64)
    return (((numbers + 1) * x[:, None, :] + numbers) * weights[..., None]).sum(axis=1)


def run_steps(rank, steps=4, layers=2, counts=None):
    """Largest relative error of any element."""
    random = np.random.default_rng(rank.options.rank)
    worst = 0.0
    for step in range(steps):
        rank.engine.begin_step(step, StepKind.DECODE)
        for layer in range(layers):
            count = int(random.integers(0, rank.options.tokens + 1)) if counts is None else counts
            x = random.standard_normal((count, rank.options.hidden), np.float32)
            if rank.options.dtype == "bf16":
                x = from_bf16(to_bf16(x))
            experts, weights = choices(random, count, rank.options)
            received = rank.dispatch(layer, x, experts, weights)
            result = rank.combine(answers(received, rank), count)
            expected = reference(x, experts, weights)
            if count:
                worst = max(worst, float((np.abs(result - expected) / (np.abs(expected) + 1)).max()))
        rank.engine.end_step()
    return worst


@pytest.mark.parametrize(
    ("change", "tolerance"),
    [
        ({}, 1e-6),
        ({"dtype": "bf16"}, 0.02),
        ({"dtype": "bf16", "hidden": 33}, 0.02),
        ({"signal": SignalMode.FENCE}, 1e-6),
        ({"signal": SignalMode.FENCE_BATCH, "channels": 1}, 1e-6),
        ({"ranks": 4, "experts": 12, "topk": 5}, 1e-6),
        ({"threads": 3, "ring": 4, "window": 2}, 1e-6),
    ],
    ids=lambda value: "-".join(f"{name}={one}" for name, one in value.items()) if isinstance(value, dict) else "",
)
def test_tokens_come_back_as_the_weighted_sum_of_their_experts_answers(change, tolerance):
    with ranks(replace(OPTIONS, **change)) as job:
        assert max(together(job, run_steps)) < tolerance


def test_a_sum_does_not_depend_on_how_experts_are_shared_out():
    def results(count):
        with ranks(replace(OPTIONS, ranks=count)) as job:
            return together(job, one_layer)[0]

    def one_layer(rank):
        random = np.random.default_rng(5)
        x = random.standard_normal((6, rank.options.hidden), np.float32)
        experts, weights = choices(random, 6, rank.options)
        experts = np.sort(experts, axis=1)
        rank.engine.begin_step(0)
        return rank.combine(answers(rank.dispatch(0, x, experts, weights), rank), 6)

    two, four = results(2), results(4)
    np.testing.assert_array_equal(two, four)


def test_a_dispatch_says_where_each_row_came_from():
    def dispatched(rank):
        count = rank.options.rank + 2
        x = np.full((count, rank.options.hidden), rank.options.rank, np.float32)
        experts = np.tile(np.array([[1, 6]]), (count, 1))  # one of each rank
        weights = np.full((count, 2), 0.5, np.float32)
        rank.engine.begin_step(0)
        return rank.dispatch(0, x, experts, weights)

    with ranks() as job:
        first, second = together(job, dispatched)
    for received, own in ((first, [1, -1]), (second, [-1, 2])):
        assert received.counts.tolist() == [2, 3]
        rows = received.experts.tolist()
        assert rows == [own, own, *[[-1, -1]] * 4, own, own, own, *[[-1, -1]] * 3]
        assert received.weights[0].tolist() == [0.5 if choice >= 0 else 0.0 for choice in own]
        assert received.x[6:9].tolist() == np.ones((3, OPTIONS.hidden)).tolist()


def test_every_operation_is_counted_by_kind():
    with ranks() as job:
        together(job, lambda rank: run_steps(rank, steps=3, layers=2, counts=0))
        counts = [rank.engine.counts() for rank in job]
    phases = 3 * 2 * 2
    for count in counts:
        assert (count.put, count.notify, count.barrier) == (0, 2 * 6, phases)
        assert count.signal == phases * OPTIONS.channels


def test_phases_may_be_repeated():
    def repeated(rank):
        random = np.random.default_rng(rank.options.rank)
        x = random.standard_normal((4, rank.options.hidden), np.float32)
        experts, weights = choices(random, 4, rank.options)
        rank.engine.begin_step(0)
        for _ in range(3):
            received = rank.dispatch(0, x, experts, weights)
        y = answers(received, rank)
        return [rank.combine(y, 4) for _ in range(3)], reference(x, experts, weights)

    with ranks() as job:
        for results, expected in together(job, repeated):
            for result in results:
                np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_a_pause_between_steps_changes_nothing():
    def paused(rank):
        worst = run_steps(rank, steps=1)
        rank.engine.begin_step(7, StepKind.PAUSE)
        return max(worst, run_steps(rank, steps=1))

    with ranks() as job:
        assert max(together(job, paused)) < 1e-6


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ranks": 1}, "2 to 255 ranks"),
        ({"rank": 2}, "none of the job's"),
        ({"topk": 9}, "topk to 65535 experts"),
        ({"experts": 9}, "shared out evenly"),
        ({"tokens": 0}, "tokens must be"),
        ({"channels": 255}, "channels must be"),
        ({"window": 3}, "window must be a power of two"),
        ({"threads": 4}, "threads must be"),
        ({"proxies": 2}, "an engine has one ring and one proxy"),
        ({"dtype": "fp8"}, "a CPU moves f32 or bf16"),
        ({"provider": "none-such"}, "offers no provider none-such here; it has: "),
        ({"provider": "x" * 64}, "provider must be a name"),
    ],
)
def test_options_that_cannot_be_are_refused(change, said):
    with pytest.raises(UsageError) as caught:
        Engine(replace(OPTIONS, **change))
    assert said in caught.value.message


def test_calls_that_cannot_be_are_refused_and_harm_nothing():
    row, weights = np.zeros((1, OPTIONS.hidden), np.float32), np.ones((1, 2), np.float32)
    with ranks() as job:
        rank = job[0]
        for step, said in (
            (lambda: rank.dispatch(0, row, np.array([[0, 1]]), weights), "no step has begun"),
            (lambda: rank.engine.connect([b"x" * 256] * 2), "connected already"),
            (lambda: rank.engine.end_step(), "no step has begun"),
            (lambda: rank.combine(np.zeros((12, 2, OPTIONS.hidden), np.float32), 1), "nothing was dispatched"),
        ):
            with pytest.raises(UsageError, match=said):
                step()
        rank.engine.begin_step(0)
        for experts, count, said in (
            ([[0, 8]], 1, "does not exist"),
            ([[-1, 0]], 1, "does not exist"),
            ([[3, 3]], 1, "names an expert twice"),
            ([[0, 1]] * 7, 7, "more tokens than"),
        ):
            many = np.zeros((count, OPTIONS.hidden), np.float32), np.ones((count, 2), np.float32)
            with pytest.raises(UsageError, match=said):
                rank.dispatch(0, many[0], np.array(experts), many[1])
        rank.engine.end_step()
        assert max(together(job, run_steps)) < 1e-6


def test_a_closed_engine_says_so():
    with ranks() as job:
        pass
    job[0].engine.close()
    with pytest.raises(ValueError, match="closed"):
        job[0].engine.begin_step(0)


@pytest.mark.parametrize("change", [{"hidden": 48}, {"signal": SignalMode.FENCE}])
def test_ranks_with_other_options_are_not_connected(change):
    engines = [Engine(OPTIONS), Engine(replace(OPTIONS, rank=1, **change))]
    contacts = [engine.contact() for engine in engines]
    with pytest.raises(EfaprofError, match="rank 1 was opened with other options than rank 0"):
        engines[0].connect(contacts)
    for engine in engines:
        engine.close()


def test_contacts_must_be_in_the_order_of_ranks():
    engines = [Engine(replace(OPTIONS, rank=rank)) for rank in range(2)]
    contacts = [engine.contact() for engine in engines]
    with pytest.raises(UsageError, match="all 2 ranks"):
        engines[0].connect(contacts[:1])
    with pytest.raises(EfaprofError, match="contact 0 is not one of rank 0"):
        engines[0].connect(contacts[::-1])
    for engine in engines:
        engine.close()


def test_a_peer_that_does_not_come_is_named_in_bounded_time():
    with ranks(replace(OPTIONS, timeout_s=1)) as job:
        job[0].engine.begin_step(3)
        with pytest.raises(EfaprofError) as caught:
            job[0].dispatch(
                1, np.zeros((0, OPTIONS.hidden), np.float32), np.zeros((0, 2)), np.zeros((0, 2), np.float32)
            )
        assert "step 3 layer 1: waited 1 s for a barrier (rank 1 channel 2)" in caught.value.message
        with pytest.raises(EfaprofError, match="waited 1 s"):  # it stays so
            job[0].engine.begin_step(4)


_PEER = """
import sys, json, time
from dataclasses import replace
from efaprof.instrument.ops.engine import Engine, EngineOptions
options = EngineOptions(**json.loads(sys.argv[1]))
engine = Engine(options)
print(engine.contact().hex(), flush=True)
engine.connect([bytes.fromhex(sys.stdin.readline()) for _ in range(options.ranks)])
print("connected", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("provider", ["tcp", "shm"])
def test_a_peer_that_was_killed_is_named_soon(provider):
    options = replace(OPTIONS, provider=provider, timeout_s=100)
    given = {name: getattr(OPTIONS, name) for name in ("ranks", "tokens", "hidden", "topk", "experts", "channels")}
    words = [sys.executable, "-c", _PEER, json.dumps({**given, "rank": 1, "provider": provider, "timeout_s": 100})]
    engine = Engine(options)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        contacts = [engine.contact(), bytes.fromhex(peer.stdout.readline())]
        engine.connect(contacts)
        peer.stdin.write("".join(f"{contact.hex()}\n" for contact in contacts))
        peer.stdin.flush()
        assert peer.stdout.readline() == "connected\n"
        engine.begin_step(0)
        os.kill(peer.pid, signal.SIGKILL)
        begin = time.monotonic()
        none = np.zeros(1, np.int64).ctypes.data
        room = np.zeros(10_000, np.float32).ctypes.data
        with pytest.raises(EfaprofError, match=rf"rank 1 \(pid {peer.pid}\) has ended|to rank 1 failed"):
            engine.dispatch(0, 0, (none, none, none), (room, room, room, room))
        assert time.monotonic() - begin < 60
    engine.close()


def test_an_injected_delay_lengthens_every_layer_call():
    def seconds(inject):
        with ranks(replace(OPTIONS, inject=inject)) as job:
            begin = time.monotonic()
            together(job, lambda rank: run_steps(rank, steps=2, layers=2, counts=1))
            return time.monotonic() - begin

    # Each of four dispatches and combines waits for at least one operation that is 20 ms late.
    assert seconds((Injection(Layer.NIC, 20_000_000),)) > 8 * 0.02
