"""What is, and what is not, the pattern of dispatch in a list of remote writes."""

from __future__ import annotations

import polars as pl
import pytest

from efaprof.analyzers.signatures import segment
from efaprof.trace import schema

PEERS = (1, 2)
BARRIER = [(peer, 16, 0x100) for peer in PEERS]
TAIL = [(peer, 16, 0x200) for peer in PEERS]
NOTIFY = [(peer, 32, 0x300) for peer in PEERS]
DISPATCH = [*BARRIER, *NOTIFY, *[(peer, 1088, 0x1000) for peer in PEERS], *TAIL]
COMBINE = [*BARRIER, *[(peer, 1024, 0x2000) for peer in PEERS], *TAIL]
LAYER = [*DISPATCH, *COMBINE]
PAUSE_NS = 1_000_000


def table(groups, pause_ns=0, every=1, strays=()):
    """Operations of one process, a microsecond apart; groups of them with a pause before each `every`-th."""
    rows, time = [], 0
    for number, group in enumerate(groups):
        time += pause_ns if number % every == 0 or number in strays else 0
        for peer, size, remote in group:
            time += 1000
            rows.append((peer, size, remote, time))
    values = pl.DataFrame(rows, schema=["peer", "bytes", "remote", "post_ns"], orient="row")
    made = values.with_columns(
        process=1, nest=0, ret=0, kind=pl.lit("rma.write"), return_ns=pl.col("post_ns") + 400,
        done_ns=pl.col("post_ns") + 900,
    )  # fmt: skip
    return made.select(pl.col(name).cast(schema.OPS[name]) for name in made.columns).lazy()


def test_layers_are_split_at_every_second_barrier():
    found = segment(table([LAYER] * 20))
    (one,) = found.processes
    assert (one.layers, one.peers, one.barrier_bytes) == (20, 2, 16)
    assert one.writes.tolist() == [len(LAYER)] * 20
    # A write is 400 ns in libfabric, 500 ns more in the NIC, and the next is posted 1000 ns after it.
    assert found.layer_ns[1:] == (400 * len(LAYER), 500 * len(LAYER))
    assert found.layers_per_step is None


def test_a_phase_may_have_no_data_and_the_last_layer_no_end():
    bare = [*DISPATCH, *BARRIER, *TAIL]
    found = segment(table([*[LAYER, bare] * 10, DISPATCH]))
    assert found.processes[0].layers == 20
    assert found.processes[0].writes.tolist() == [len(LAYER), len(bare)] * 10


@pytest.mark.parametrize("strays", [(), (17,), (17, 40)])
def test_steps_are_told_by_pauses_even_if_one_or_two_more_are_there(strays):
    found = segment(table([LAYER] * 60, PAUSE_NS, every=6, strays=strays))
    assert (found.layers_per_step, found.first, found.decode) == (6, 0, 10)
    wall, libfabric, nic = found.step_ns
    assert (libfabric, nic) == (6 * 400 * len(LAYER), 6 * 500 * len(LAYER))
    assert wall > libfabric + nic


def test_pauses_that_do_not_repeat_tell_no_steps():
    found = segment(table([LAYER] * 60, PAUSE_NS, every=1000, strays=(5, 12, 14, 29, 31, 44, 50)))
    assert found.layers_per_step is None
    assert found.step_ns is None


@pytest.mark.parametrize(
    "groups",
    [
        [[(1, 8, 0x10)]] * 200,
        [[(1, 8, 0x10), (1, 65536, 0x1000)]] * 200,
        [[(1, 65536, 0x1000), (1, 8, 0x10)]] * 200,
        [BARRIER] * 200,
        [[*BARRIER, *TAIL]] * 200,
        [COMBINE] * 200,
        [[BARRIER[0], *TAIL, BARRIER[1]]] * 200,
        [[(1, 128, 0x100), *LAYER[1:]]] * 200,
        [LAYER] * 5,
    ],
    ids=[
        "one place", "flag and data", "data and flag", "barriers alone", "barriers and signals", "phases of one kind",
        "no barrier at once", "no small barrier", "too few",
    ],
)  # fmt: skip
def test_other_writes_are_not_taken_for_dispatch(groups):
    assert segment(table(groups)) is None
