"""Several posters to one queue pair of the emulated device: threads of this CPU, and warps (tests/fakes/simt.h)."""

from __future__ import annotations

import json

import pytest
from softefa_runs import need_softefa, on_softefa

REORDERING = "latency=5us,reorder=0.5"


@pytest.fixture(scope="module")
def program(dispatch_program):
    need_softefa()
    return dispatch_program


@pytest.fixture(scope="module")
def with_warps(program, beside_warps):
    """The same beside kernels that run on a CPU."""
    return beside_warps(program)


def posters(program, *words, emulate=""):
    done = on_softefa(program, "posters", "--queues", "verbs", "--json", *map(str, words), emulate=emulate)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(found, entries, batch, *, is_ordered):
    assert found["entries"] == entries
    assert entries / batch <= found["doorbells"] <= entries
    if is_ordered:
        assert found["in_order"] is True


@pytest.mark.parametrize(("count", "batch", "send_queue", "seed"), [(2, 1, 8, 1), (4, 16, 64, 2), (8, 4, 8, 3)])
def test_threads_ring_in_turn_whatever_holds_them_up_between_their_stages(program, count, batch, send_queue, seed):
    words = ["--posters", count, "--batch", batch, "--send-queue", send_queue, "--seed", seed, "--entries", 8000]
    found = posters(program, *words)
    check(found, 8000, batch, is_ordered=True)
    assert found["turns_missed"] > 0


def test_each_entry_of_several_threads_arrives_once_where_the_wire_reorders(program):
    found = posters(program, "--posters", 4, "--entries", 8000, emulate=REORDERING)
    check(found, 8000, 16, is_ordered=False)
    assert found["in_order"] is False


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_many_interleavings_of_threads(program, seed):
    words = ["--posters", 2 + seed % 7, "--batch", 1 << seed % 5, "--send-queue", 16, "--seed", seed]
    check(posters(program, *words, "--entries", 60000), 60000, 1 << seed % 5, is_ordered=True)


@pytest.mark.parametrize(("count", "batch", "emulate"), [(2, 4, ""), (7, 16, ""), (3, 32, REORDERING)])
def test_warps_of_one_block_ring_in_turn(with_warps, count, batch, emulate):
    words = ["--device", "cuda", "--posters", count, "--batch", batch, "--entries", 1500, "--seed", count]
    check(posters(with_warps, *words, emulate=emulate), 1500, batch, is_ordered=emulate == "")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_posters_whose_entries_fail_end_with_the_status(program, with_warps, device):
    one = program if device == "cpu" else with_warps
    words = ["posters", "--queues", "verbs", "--device", device, "--entries", "1000"]
    done = on_softefa(one, *words, emulate="loss=0.3,retries=0,rto=1us")
    assert done.returncode == 1
    assert "ended with status 1" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--posters", "0"], "--posters must be a whole number from 1 to 64, not 0"),
        (["--send-queue", "12"], "--send-queue must be a power of two"),
        (["--entries"], "--entries must be a whole number from 1 to 4000000, not nothing"),
        (["--device", "cuda", "--posters", "32"], "at most 31 warps post"),
        (["--what"], "--what is not an option"),
    ],
)
def test_what_posters_cannot_be_asked_is_refused(program, words, said):
    done = on_softefa(program, "posters", *words)
    assert done.returncode == 2
    assert said in done.stderr
