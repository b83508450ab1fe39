"""Ranks with several command rings, each drained by a proxy of its own: real processes, whole records, right data."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from dispatch_runs import finish, record, run, seq, start
from recording import efaprof
from softefa_runs import need_softefa, wheel_folder

from efaprof.instrument.dispatch import DispatchOptions, SignalMode
from efaprof.trace import dispatch
from efaprof.trace.layout import RINGS_APART, Phase, Shape, Stage, WaitKind
from efaprof.trace.rundir import open_run
from efaprof.trace.survey import survey

PATH = (Stage.KERNEL, Stage.RING, Stage.PROXY, Stage.LIBFABRIC, Stage.NIC, Stage.TOLD)
SMALL = {"layers": 2, "tokens": 4, "hidden": 64, "topk": 3, "experts": 12, "channels": 3, "compute_us": 0, "steps": 6,
         "warmup": 2, "threads": 2}  # fmt: skip
RUNS = [
    *(("tcp", 2, 2, signal) for signal in SignalMode),
    ("shm", 3, 3, SignalMode.IMM),
    ("shm", 2, 2, SignalMode.FENCE_BATCH, "--no-imm"),
]


@pytest.fixture(scope="module", params=RUNS, ids=lambda run: "-".join(str(part) for part in run))
def recorded(request, tmp_path_factory):
    provider, ranks, proxies, signals, *more = request.param
    options = DispatchOptions(provider=provider, ranks=ranks, proxies=proxies, signal=signals, **SMALL)
    return record(options, tmp_path_factory.mktemp("proxies"), *more)


def ring_of(stage):
    return (stage["op"] >> np.uint64(48)).astype(np.int64)


def test_every_token_is_verified_by_ranks_of_more_threads(recorded):
    options, summary = recorded.options, recorded.summary
    tokens = options.tokens * options.layers * (options.steps + options.warmup)
    assert summary["verified_tokens"] == tokens * options.ranks
    assert (summary["proxies"], summary["threads"]) == (options.proxies, 1 + options.proxies)


def test_each_ring_is_dense_and_each_operation_has_each_stage_once(recorded):
    assert recorded.dropped == 0
    for rank, (own, predicted) in enumerate(zip(recorded.ranks, recorded.options.run_counts(), strict=True)):
        rings = [RINGS_APART * proxy + rank for proxy in range(recorded.options.proxies)]
        assert len(own.issued) == predicted.total
        assert sorted(set(ring_of(own.issued).tolist())) == rings
        for ring in rings:
            count = int((ring_of(own.issued) == ring).sum())
            for stage in PATH:
                mine = own.stages[stage][ring_of(own.stages[stage]) == ring]
                assert np.array_equal(seq(mine), np.arange(count)), (ring, stage)


def test_a_channel_keeps_to_one_ring(recorded):
    for rank, own in enumerate(recorded.ranks):
        proxy = (own.issued["x"] & 0xFF) % recorded.options.proxies
        assert np.array_equal(ring_of(own.issued), RINGS_APART * proxy.astype(np.int64) + rank)


def test_every_ring_is_marked_at_the_same_times(recorded):
    for own in recorded.ranks:
        marks = own.records[Shape.MARK]
        by_ring = [marks[marks["ring"] == ring] for ring in np.unique(marks["ring"])]
        assert len(by_ring) == recorded.options.proxies
        for one in by_ring[1:]:
            for field in ("t_end", "step", "layer", "phase", "x"):
                assert np.array_equal(one[field], by_ring[0][field]), field
        steps = by_ring[0][by_ring[0]["phase"] == Phase.STEP]
        assert len(steps) == recorded.options.steps + recorded.options.warmup + 1


def test_a_fence_holds_within_its_ring(recorded):
    options = recorded.options
    of_batch = {SignalMode.IMM: 0, SignalMode.FENCE: options.channels, SignalMode.FENCE_BATCH: options.proxies}
    for own, predicted in zip(recorded.ranks, options.run_counts(), strict=True):
        fences = own.stages[Stage.FENCE]
        assert len(fences) == predicted.signal // options.channels * of_batch[options.signal]
        done = {int(one["op"]): int(one["t_end"]) for one in own.stages[Stage.NIC]}
        called = {int(one["op"]): int(one["t_end"]) - int(one["dur"]) for one in own.stages[Stage.LIBFABRIC]}
        for fence in fences:
            same = own.issued[(own.issued["peer"] == fence["peer"]) & (ring_of(own.issued) == ring_of(fence))]
            earlier = same["op"][same["op"] < fence["op"]]
            assert all(done[int(op)] <= called[int(fence["op"])] for op in earlier)


def test_a_flush_ends_after_everything_that_was_pushed_into_any_ring(recorded):
    for own in recorded.ranks:
        waits = own.records[Shape.WAIT]
        flushes = waits[(waits["kind"] & 0xFF) == WaitKind.FLUSH]
        assert len(flushes) == recorded.options.layers * (recorded.options.steps + recorded.options.warmup)
        published, done = own.stages[Stage.KERNEL], own.stages[Stage.NIC]
        order = np.argsort(published["op"])
        ended = done["t_end"][np.argsort(done["op"])]
        told = {int(one["op"]): int(one["t_end"]) for one in own.stages[Stage.TOLD]}
        for flush in flushes:
            before = published["t_end"][order] <= flush["t_end"] - flush["dur"]
            assert ended[before].max() <= flush["t_end"]
            # It names the one that was told last, by its ring and number.
            assert told[int(flush["ring"]) << 48 | int(flush["seq"])] == flush["t_sig"]
            assert max(told[int(op)] for op in published["op"][order][before]) == flush["t_sig"]


def attributed(folder, *more):
    """A recorded run of two ranks with two proxies each: its report and its operations."""
    base = DispatchOptions(proxies=2, **(SMALL | {"steps": 40, "topk": 4, "experts": 16}))
    words = [word for word in base.arguments() if word != "--provider"]
    words.remove("tcp")
    done = efaprof("bench", "dispatch", *words, *more, "--json", "-o", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["proxies"] == 2
    told = efaprof("attribute", "run", "--json", cwd=folder)
    assert told.returncode == 0, told.stderr
    chunks = dispatch.chunks(survey(open_run(folder / "run").raw_files))
    return json.loads(told.stdout), pl.concat([chunk.operations for chunk in chunks])


def check_whole(report):
    assert report["conservation_error_ns"] == 0
    assert report["coverage"] >= 0.99
    operations = report["operations"]
    assert operations["per_step"]["stamped"] == 1
    assert operations["per_step"]["count"] == operations["predicted"]
    assert (report["drops"], operations["mismatches"]) == (0, 0)
    assert operations["verified_tokens"] == 2 * 4 * 2 * 42


def layers_us(report):
    return {row["layer"]: row["us"]["value"] for row in report["layers"]}


def test_a_delay_in_the_proxies_lands_in_proxy_and_no_time_is_lost(tmp_path):
    calm, _ = attributed(tmp_path, "--provider", "tcp")
    shutil.rmtree(tmp_path / "run")
    slow, operations = attributed(tmp_path, "--provider", "tcp", "--inject", "proxy=200us")
    check_whole(calm)
    check_whole(slow)
    assert (operations["call_ns"] - operations["seen_ns"]).min() >= 199_000
    grown = {layer: us - layers_us(calm).get(layer, 0) for layer, us in layers_us(slow).items()}
    assert max(grown, key=lambda layer: grown[layer]) == "proxy"


def test_two_proxies_over_an_emulated_device_that_reorders(tmp_path):
    need_softefa()
    wheel_folder()
    report, operations = attributed(tmp_path, "--provider", "efa-direct", "--emulate", "latency=12us,reorder=0.3")
    check_whole(report)
    assert set((operations["ring"] // RINGS_APART).to_list()) == {0, 1}


def test_a_killed_rank_with_two_proxies_stops_the_others_and_is_named(tmp_path):
    options = DispatchOptions(proxies=2, **(SMALL | {"steps": 1_000_000}))
    process = start(options, rings=tmp_path)
    victim = rank_of(process.pid, "lane1")
    os.kill(victim, signal.SIGKILL)
    done = finish(process)
    assert done.returncode == 1
    assert f"rank 1 (pid {victim}) was killed by signal 9" in done.stderr


def rank_of(parent, name):
    """Pid of a rank whose threads all run, by its first thread's name."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for task in Path(f"/proc/{parent}/task").iterdir():
            for pid in (task / "children").read_text().split():
                threads = {one.read_text().strip() for one in Path(f"/proc/{pid}/task").glob("*/comm")}
                if {name, "proxy1.0", "proxy1.1"} <= threads:
                    return int(pid)
        time.sleep(0.01)
    raise AssertionError(f"no {name} with two proxies")


def test_more_proxies_than_channels_are_refused():
    done = run(DispatchOptions(**SMALL), "--proxies", "4")
    assert done.returncode == 2
    assert "there are 3 channels" in done.stderr


@pytest.fixture(scope="module")
def warps(dispatch_program, beside_warps):
    """efaprof-dispatch beside a GPU's kernels that run on a CPU."""
    return beside_warps(dispatch_program)


@pytest.mark.parametrize(
    "words",
    [
        ["--proxies", "2"],
        ["--proxies", "3", "--signal", "fence-batch", "--ring", "64", "--window", "16", "--tokens", "40"],
    ],
    ids=["plain", "small rings, fenced"],
)
def test_a_warp_pushes_into_every_ring_what_its_peers_verify(warps, monkeypatch, tmp_path, words):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", os.fspath(warps.parent))  # ranks need no daemon here
    shape = ("--device", "cuda", "--dtype", "bf16", "--layers", "2", "--tokens", "6", "--hidden", "64",
             "--channels", "3", "--compute-us", "0", "--warmup", "1", "--steps", "3", "--timeout", "40",
             "--threads", "2")  # fmt: skip
    done = efaprof("record", "-o", "run", "--", warps, *shape, *words, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    tokens = int(words[words.index("--tokens") + 1]) if "--tokens" in words else 6
    assert summary["verified_tokens"] == 2 * tokens * 2 * 4
    assert summary["gpu"]["violations"] == 0
    chunks = list(dispatch.chunks(survey(open_run(tmp_path / "run").raw_files)))
    frame = pl.concat([chunk.operations for chunk in chunks])
    assert len(frame) == sum(summary["operations"].values())
    stamps = ("enter_ns", "publish_ns", "seen_ns", "call_ns", "return_ns", "done_ns", "told_ns")
    assert frame.select(pl.col(*stamps, "phase", "step").null_count()).sum_horizontal().item() == 0
    assert frame.filter(pl.col("kind").is_in(["signal", "barrier"]))["signal_ns"].null_count() == 0
    flushes = pl.concat([chunk.waits for chunk in chunks]).filter(pl.col("kind") == "flush")
    released = flushes.join(frame, on=["rank", "channel", "seq"], suffix="_of")
    assert len(released) == len(flushes) == 2 * 2 * 4
    assert (released["told_ns"] == released["signal_ns"]).all()
    # Each ring's commands stand in the phase in which they were pushed: barriers and tails are of both.
    tails = frame.filter(pl.col("kind") == "signal").group_by("rank", "channel", "phase").len()
    assert set(tails["phase"].to_list()) == {"dispatch", "combine"}
    assert set(tails["len"].to_list()) == {2 * 4}
