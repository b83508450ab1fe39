"""Operations that a kernel posted itself: from its issue over the doorbell to the NIC, without any host stage."""

from __future__ import annotations

import pytest
from hand_made import US, HandMade

from efaprof.analyzers.attribution import decode_split
from efaprof.analyzers.counts import step_counts
from efaprof.analyzers.critical import CriticalPath
from efaprof.analyzers.graph import build
from efaprof.analyzers.layers import LayerSplitter
from efaprof.analyzers.path_change import of_change, of_runs, posted_by_kernel, posted_cost_us
from efaprof.analyzers.replay import STANDARD, WITHOUT_FENCES, recoverable, scaled
from efaprof.analyzers.walk import walk
from efaprof.trace.layers import Layer
from efaprof.trace.postings import PARTS, PostTotals

HOST = (Layer.RING, Layer.PROXY, Layer.LIBFABRIC)


def batched() -> HandMade:
    """Rank 1 writes two entries and rings once; rank 0 waits for the second. In microseconds."""
    made = HandMade()
    made.step(0, 0, 70)
    made.step(1, 0, 70)
    made.compute(0, 0, 10)
    made.compute(0, 57, 70)
    made.compute(1, 0, 20)
    made.operation(1, 0, 0, kind="put", is_posted=True, enter=20, publish=24, **{"return": 30}, arrival=45, signal=45,
                   done=62)  # fmt: skip
    made.operation(1, 1, 0, wire_seq=1, is_posted=True, enter=24, publish=28, **{"return": 30}, arrival=50, signal=55,
                   done=60)  # fmt: skip
    made.wait(0, 10, 57, source=1, seq=1, signal=55)
    return made


def costs(made: HandMade, rank: int) -> dict[str, float]:
    """Microseconds of one rank's step along its critical path, by layer, where there are any."""
    windows = walk(build(made.chunk())).windows.filter(rank=rank)
    sums = {name.removesuffix("_ns"): windows[name].sum() / US for name in windows.columns if name.endswith("_ns")}
    return {layer.value: sums[layer.value] for layer in Layer if sums.get(layer.value)}


def test_the_path_leads_over_the_doorbell_to_the_entries_it_announced():
    # poll 57-55, rx 55-50, nic 50-30; the doorbell followed the second entry (28), that the first (24).
    assert costs(batched(), 0) == {"compute": 23, "kernel": 10, "nic": 20, "rx": 5, "poll": 2, "skew": 10}


def test_no_layer_of_the_host_has_time_on_or_under_the_path():
    steps, _, _ = CriticalPath(changes=STANDARD).split(batched().chunk())
    for layer in HOST:
        assert steps[f"{layer}_ns"].to_list() == steps[f"{layer}_overlapped_ns"].to_list() == [0, 0]
    assert steps["host_recoverable_ns"].to_list() == [0, 0]
    assert steps["kernel_recoverable_ns"].to_list()[0] == 10 * US
    split = decode_split(_joined(batched()))
    assert split is not None
    assert not {row.layer for row in split.layers} & set(HOST)


def _joined(made: HandMade):
    steps, _, _ = CriticalPath(changes=STANDARD).split(made.chunk())
    counts = step_counts(made.chunk())
    return counts.join(
        steps.with_columns(steps[name].cast(counts.schema[name]) for name in ("rank", "step")), on=["rank", "step"]
    )


def test_the_exclusive_sweep_gives_the_kernel_everything_up_to_the_doorbell():
    sender = LayerSplitter().split(batched().chunk()).row(1, named=True)
    assert sender["kernel_ns"] == (30 - 20) * US
    assert sender["nic_ns"] == (50 - 30) * US  # up to the last arrival
    assert not [name for name in sender if name.split("_")[0] in HOST and name.endswith("_ns") and sender[name]]


def test_a_fence_is_waited_for_in_front_of_the_entry_and_is_nic_time():
    made = HandMade()
    made.step(0, 0, 82)
    made.step(1, 0, 82)
    made.compute(1, 0, 20)
    made.operation(1, 0, 0, kind="put", is_posted=True, enter=20, publish=22, **{"return": 22}, arrival=45, signal=45,
                   done=60)  # fmt: skip
    made.operation(1, 1, 0, wire_seq=1, is_posted=True, is_fenced=True, enter=22, fenced=60, publish=62,
                   **{"return": 64}, arrival=80, signal=81, done=82)  # fmt: skip
    made.wait(0, 0, 82, source=1, seq=1, signal=81)
    # 82-81 poll, 81-80 rx, 80-64 nic, 64-60 kernel, 60-22 the first write that the fence waited for, 22-20 kernel.
    assert costs(made, 0) == {"kernel": 6, "nic": 54, "rx": 1, "poll": 1, "skew": 20}
    bought = recoverable(build(made.chunk()), [WITHOUT_FENCES, scaled("kernel", (Layer.KERNEL,))])
    # Without it the second would arrive at 42; the receiver hands over the first at 45, then this one.
    assert bought["fence_recoverable_ns"].to_list()[0] == (82 - 47) * US
    assert bought["kernel_recoverable_ns"].to_list()[0] == 6 * US


def test_a_flush_is_let_go_by_the_completion_that_came_last_whichever_was_posted_last():
    made = batched()
    made.wait(1, 30, 63, source=1, kind="flush", phase="combine", signal=62)
    assert costs(made, 1) == {"compute": 20, "kernel": 10, "nic": 32, "poll": 1, "idle": 7}


def test_an_arrival_before_the_doorbells_stamp_is_the_kernels():
    made = HandMade()
    made.step(0, 0, 40)
    made.step(1, 0, 40)
    made.operation(1, 0, 0, is_posted=True, enter=10, publish=14, **{"return": 30}, arrival=20, signal=22, done=25)
    made.wait(0, 0, 24, source=1, signal=22)
    graph = build(made.chunk())
    assert costs(made, 0)["kernel"] == 10
    assert recoverable(graph, [scaled("nic", (Layer.NIC,))])["nic_recoverable_ns"].to_list()[0] == 0
    assert graph.events.cut_edges == 0


# ---- the claim --------------------------------------------------------------------------------------
def totals(**sums_ns: int) -> PostTotals:
    made = PostTotals(operations=100, doorbells=25.0)
    made.sum_ns |= sums_ns
    return made


def test_a_doorbells_cost_is_shared_by_the_entries_that_it_announced():
    found = totals(order=10**9, turn=10**9, slot=1_000, space=2_000, build=7_000, fence=4_000, doorbell=8_000)
    # 10 µs over 100 operations; fence and doorbell stand in each of the four records of their batch.
    assert posted_cost_us(found) == pytest.approx(0.1 + 0.12 / 4)
    assert set(found.sum_ns) == set(PARTS)


def test_the_replay_without_host_keeps_the_kernels_measured_time():
    made = HandMade()
    made.step(0, 0, 100)
    made.step(1, 0, 100)
    made.compute(1, 0, 20)
    made.operation(1, 0, 0, enter=20, publish=22, seen=40, call=50, **{"return": 60}, arrival=90, signal=95, done=96,
                   told=97)  # fmt: skip
    made.wait(0, 0, 100, source=1, signal=95)
    change = posted_by_kernel(2.0, 5.0)  # the kernel's 2 µs become 5
    bought = recoverable(build(made.chunk()), [change])
    assert bought[f"{change.name}_recoverable_ns"].to_list()[0] == (18 + 10 + 10 - 3) * US


def test_one_run_a_side_takes_its_interval_from_batches_and_several_from_runs():
    split = decode_split(_joined(batched()))
    assert split is not None
    one = of_runs([split], [split], "same")
    assert (one.us.value, one.us.lo, one.runs) == (0, None, 1)
    several = of_runs([split, split], [split, split], "same")
    assert (several.us.value, several.us.lo, several.us.hi) == (0, 0, 0)
    assert of_change([split], "nothing that was replayed", "x") is None
