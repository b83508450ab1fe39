"""Ground truth from the other side of the wire: times of operations against the log of the device that carried them."""

from __future__ import annotations

import sys
from itertools import permutations

import polars as pl
import pytest
from softefa_runs import need_softefa, on_softefa

from efaprof.analyzers.layers import OPERATION_SPANS
from efaprof.instrument.dispatch import DispatchOptions
from efaprof.report.attribution_report import report_on
from efaprof.session.softefa_truth import Op, read_truth
from efaprof.trace import dispatch
from efaprof.trace.layers import Layer
from efaprof.trace.reader import open_tables
from efaprof.trace.rundir import open_run
from efaprof.trace.survey import survey

OPTIONS = DispatchOptions(provider="efa", layers=2, tokens=4, hidden=256, steps=40, warmup=5, compute_us=0)
LATENCY_NS = 1_000_000  # next to which it is little that this machine's threads wait for cores
# What efa puts before a write's payload; with the sender's address until the peer has answered.
HEADER_BYTES = {44, 80}
HANDSHAKE_BYTES = 24


def read_operations(run):
    """Rows of all operations, in the order in which each rank's proxy posted them."""
    chunks = dispatch.chunks(survey(sorted((run / "raw").iterdir())))
    return pl.concat(chunk.operations for chunk in chunks).sort("rank", "seq")


def is_same(pairs):
    """Each message is its operation's payload and a header, posted before the NIC took it, seen after it was there."""
    return pairs.select(
        (pl.col("sent_bytes").cast(pl.Int64) - pl.col("bytes").cast(pl.Int64)).is_in(HEADER_BYTES)
        & (pl.col("call_ns") <= pl.col("doorbell_ns"))
        & (pl.col("delivered_ns") <= pl.col("arrival_ns"))
    ).to_series()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the run lies, and the device's log."""
    return tmp_path_factory.mktemp("carried")


@pytest.fixture(scope="module")
def carried_run(carried, folder):
    """The run directory."""
    return open_run(folder / "run")


@pytest.fixture(scope="module")
def carried(folder):
    """Operations as recorded, and what the device says it sent (without what libfabric says to itself)."""
    need_softefa()
    argv = [sys.executable, "-m", "efaprof", "bench", "dispatch", *OPTIONS.arguments(), "-o", folder / "run"]
    done = on_softefa(*argv, emulate="latency=1ms", truth=folder / "truth.bin")
    assert done.returncode == 0, done.stderr
    log = read_truth(folder / "truth.bin")
    assert log.dropped == 0
    is_ours = (pl.col("op") == Op.SEND) & (pl.col("delivered_ns") > 0) & (pl.col("bytes") > HANDSHAKE_BYTES)
    sent = log.table().filter(is_ours).rename({"bytes": "sent_bytes"}).sort("src_device", "seq").drop("seq")
    return read_operations(folder / "run"), sent


@pytest.fixture(scope="module")
def pairs(carried):
    """Each operation of the steps that count beside the device's record of it.

    Which NIC a rank took is not told: one way alone fits. In the first steps libfabric holds some back, and sends them
    later in another order, until the peer has receives for them.
    """
    operations, sent = carried
    found = []
    for devices in permutations(sent["src_device"].unique().to_list()):
        in_order = [sent.filter(pl.col("src_device") == device) for device in devices]
        if [len(one) for one in in_order] == operations.group_by("rank", maintain_order=True).len()["len"].to_list():
            found.append(pl.concat([operations, pl.concat(in_order)], how="horizontal"))
    found = [one.filter(pl.col("step") >= OPTIONS.warmup) for one in found]
    fitting = [one for one in found if is_same(one).all()]
    assert len(fitting) == 1, [is_same(one).mean() for one in found]
    return fitting[0]


def test_as_many_operations_are_recorded_as_the_device_carried(carried):
    operations, sent = carried
    predicted = sum(counts.total for step in range(45) for counts in OPTIONS.step_counts(step))
    assert len(operations) == len(sent) == predicted


def test_time_in_the_nic_is_what_the_device_took_per_operation(pairs):
    """Medians within 15 %, or within what one in ten deliveries of the device was late by for want of a core."""
    begin, end = OPERATION_SPANS[Layer.NIC]
    recorded = pairs.select((end - begin).median()).item()
    true = (pairs["delivered_ns"] - pairs["doorbell_ns"]).median()
    late = (pairs["delivered_ns"] - pairs["due_ns"]).quantile(0.9)
    assert true >= LATENCY_NS
    assert recorded == pytest.approx(true, abs=max(0.15 * true, late))


def test_utilisation_is_of_the_line_that_one_rank_has(carried_run):
    """Each rank has a NIC of its own, of 100 Gb/s."""
    section = report_on([(carried_run, open_tables(carried_run))]).decode
    assert section is not None
    costs = section.decode.step_costs.filter(pl.col("kind") == "decode")
    communicated_s = (costs["wall_ns"] - costs["compute_ns"]).sum() / 1e9
    found = section.decode.features["utilisation_active"].value
    assert found == pytest.approx(costs["bytes"].sum() / communicated_s / 12.5e9)
