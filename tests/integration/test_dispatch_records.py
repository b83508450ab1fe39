"""What a dispatch run records: complete, predicted to the operation, joinable from end to end."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from dispatch_runs import begin, record, seq

from efaprof.instrument.dispatch import DispatchOptions, SignalMode
from efaprof.trace import layout
from efaprof.trace.layout import Command, Compute, Phase, Shape, Stage, StepKind, WaitKind

PATH = (Stage.KERNEL, Stage.RING, Stage.PROXY, Stage.LIBFABRIC, Stage.NIC, Stage.TOLD)
SMALL = {"layers": 2, "tokens": 4, "hidden": 64, "topk": 3, "experts": 12, "channels": 3, "compute_us": 0, "steps": 6,
         "warmup": 2}  # fmt: skip
RUNS = [
    *((provider, ranks, signal, None) for provider in ("tcp", "shm") for ranks in (2, 3, 4) for signal in SignalMode),
    ("tcp", 2, SignalMode.IMM, 3),
    ("shm", 2, SignalMode.FENCE, 3),
    *(("tcp", 3, signal, 2, "--no-imm") for signal in (SignalMode.FENCE, SignalMode.FENCE_BATCH)),
    ("shm", 2, SignalMode.FENCE_BATCH, 3, "--no-imm"),
]


@pytest.fixture(scope="module", params=RUNS, ids=lambda run: "-".join(str(part) for part in run if part))
def recorded(request, tmp_path_factory):
    provider, ranks, signal, threads, *more = request.param
    options = DispatchOptions(provider=provider, ranks=ranks, signal=signal, threads=threads or 2, **SMALL)
    return record(options, tmp_path_factory.mktemp("dispatch"), *more)


def per_step(options):
    return [options.step_counts(step) for step in range(options.warmup + options.steps)]


def test_every_token_of_every_step_is_verified(recorded):
    options = recorded.options
    tokens = options.tokens * options.layers * (options.steps + options.warmup)
    assert recorded.summary["verified_tokens"] == tokens * options.ranks
    assert recorded.summary["provider"].startswith(options.provider)
    for rank in recorded.ranks:
        assert rank.counters["verify.tokens"][-1] == tokens
        assert set(rank.counters["verify.mismatches"]) == {0}


def test_no_record_is_lost_and_each_operation_has_each_stage_once(recorded):
    assert recorded.dropped == 0
    for rank, predicted in zip(recorded.ranks, recorded.options.run_counts(), strict=True):
        for stage in PATH:
            assert np.array_equal(seq(rank.stages[stage]), np.arange(predicted.total)), stage


def test_operations_by_kind_are_the_predicted_ones(recorded):
    for rank, predicted in zip(recorded.ranks, recorded.options.run_counts(), strict=True):
        kinds = Counter((rank.issued["x"] >> 12).tolist())
        assert kinds == {
            Command.PUT: predicted.put, Command.NOTIFY: predicted.notify, Command.SIGNAL: predicted.signal,
            Command.BARRIER: predicted.barrier,
        }  # fmt: skip
    summary = recorded.summary["operations"]
    assert sum(summary.values()) == sum(counts.total for counts in recorded.options.run_counts())


def test_what_was_announced_is_in_every_stage(recorded):
    for number, rank in enumerate(recorded.ranks):
        first = rank.stages[Stage.KERNEL]
        assert set((first["op"] >> np.uint64(48)).tolist()) == {number}  # the ring
        assert set(first["peer"].tolist()) == set(range(recorded.options.ranks)) - {number}
        for stage in PATH[1:]:
            for field in ("op", "bytes", "peer", "x"):
                assert np.array_equal(rank.stages[stage][field], first[field]), (stage, field)


def test_fences_are_those_that_the_signal_mode_asks_for(recorded):
    options = recorded.options
    for rank, predicted in zip(recorded.ranks, options.run_counts(), strict=True):
        expected = {
            SignalMode.IMM: 0,
            SignalMode.FENCE: predicted.signal,
            SignalMode.FENCE_BATCH: predicted.signal // options.channels,
        }[options.signal]
        fenced = rank.issued[rank.issued["x"] & layout.X_FENCE != 0]
        assert len(fenced) == expected
        assert np.array_equal(seq(rank.stages[Stage.FENCE]), seq(fenced))
        has_imm = rank.issued["x"] & layout.X_IMM != 0
        is_signal = rank.issued["x"] >> 12 >= Command.SIGNAL
        if not recorded.summary["immediate"]:
            assert not has_imm.any()
        else:
            assert np.array_equal(has_imm, is_signal | (options.signal is SignalMode.IMM))


def test_a_fenced_operation_is_called_after_all_earlier_ones_to_its_peer_completed(recorded):
    for rank in recorded.ranks:
        called = begin(rank.stages[Stage.LIBFABRIC])
        seen = rank.stages[Stage.NIC]["t_end"]
        peer = rank.issued["peer"]
        for op in seq(rank.stages[Stage.FENCE]):
            earlier = np.flatnonzero(peer[:op] == peer[op])
            assert (seen[earlier] <= called[op]).all()


def test_the_stages_of_an_operation_abut(recorded):
    for rank in recorded.ranks:
        stages = rank.stages
        fenced = seq(stages[Stage.FENCE])
        before_proxy = stages[Stage.RING]["t_end"].copy()
        assert np.array_equal(begin(stages[Stage.FENCE]), before_proxy[fenced])
        before_proxy[fenced] = stages[Stage.FENCE]["t_end"]
        assert np.array_equal(begin(stages[Stage.RING]), stages[Stage.KERNEL]["t_end"])
        assert np.array_equal(begin(stages[Stage.PROXY]), before_proxy)
        assert np.array_equal(begin(stages[Stage.LIBFABRIC]), stages[Stage.PROXY]["t_end"])
        assert np.array_equal(begin(stages[Stage.TOLD]), stages[Stage.NIC]["t_end"])
        # A completion that is seen before the call returns has no length, and says so by lying before its return.
        nic, returned = stages[Stage.NIC], stages[Stage.LIBFABRIC]["t_end"]
        early = nic["t_end"] < returned
        assert (nic["dur"][early] == 0).all()
        assert np.array_equal(begin(nic)[~early], returned[~early])
        assert recorded.options.threads == 3 or not early.any()


def test_every_sequenced_operation_meets_exactly_one_arrival(recorded):
    arrivals = {}
    for target, rank in enumerate(recorded.ranks):
        rx = rank.records[Shape.RX]
        sequences = rx["seq"].astype(np.int64) @ (1 << (8 * np.arange(6, dtype=np.int64)))
        for row, wire in zip(rx, sequences, strict=True):
            key = (int(row["src"]), target, int(row["channel"]), int(wire))
            assert key not in arrivals
            arrivals[key] = row
    sent = {}
    for source, rank in enumerate(recorded.ranks):
        for op, wire in zip(rank.issued, rank.wire_seq, strict=True):
            if wire >= 0:
                sent[source, int(op["peer"]), int(op["x"]) & 0xFF, int(wire)] = op
    assert arrivals.keys() == sent.keys()
    for (source, _, channel, wire), row in arrivals.items():
        assert row["imm"] == (source << 24 | channel << 16 | wire & 0xFFFF if recorded.summary["immediate"] else 0)
        kind = int(sent[source, _, channel, wire]["x"]) >> 12
        assert bool(row["x"] & layout.RX_SIGNAL) == (kind >= Command.SIGNAL)


def test_an_arrival_is_handed_over_after_its_command_was_published(recorded):
    published = {}
    for source, rank in enumerate(recorded.ranks):
        for op, wire in zip(rank.issued, rank.wire_seq, strict=True):
            published[source, int(op["peer"]), int(op["x"]) & 0xFF, int(wire)] = int(op["t_end"])
    for target, rank in enumerate(recorded.ranks):
        for row in rank.records[Shape.RX]:
            wire = int.from_bytes(row["seq"].tobytes(), "little")
            assert published[int(row["src"]), target, int(row["channel"]), wire] <= row["t_end"]


def test_steps_and_layers_are_cut_by_sequence(recorded):
    options = recorded.options
    layer_marks = [Phase.COMPUTE, Phase.DISPATCH, Phase.COMPUTE, Phase.COMBINE, Phase.COMPUTE]
    every = options.warmup + options.steps
    expected = [
        (step, layer, phase, StepKind.WARM_UP if step < options.warmup else StepKind.DECODE)
        for step in range(every)
        for layer, phase in [
            (0, Phase.STEP),
            *((layer, phase) for layer in range(options.layers) for phase in layer_marks),
        ]
    ]
    predicted = per_step(options)
    for number, rank in enumerate(recorded.ranks):
        marks = rank.records[Shape.MARK]
        found = [(int(m["step"]), int(m["layer"]), int(m["phase"]), int(m["x"])) for m in marks]
        assert found == [*expected, (every, 0, Phase.STEP, StepKind.DECODE)]
        assert (np.diff(marks["t_end"].astype(np.int64)) >= 0).all()
        first = marks["first_seq"].astype(np.int64) @ (1 << (8 * np.arange(6, dtype=np.int64)))
        steps = first[marks["phase"] == Phase.STEP]
        assert np.diff(steps).tolist() == [counts[number].total for counts in predicted]
        in_compute = np.diff(first)[marks["phase"][:-1] == Phase.COMPUTE]
        assert (in_compute == 0).all()


def test_every_gate_names_the_operation_that_released_it(recorded):
    options = recorded.options
    gates = [WaitKind.BARRIER, WaitKind.POLL, WaitKind.BARRIER, WaitKind.FLUSH, WaitKind.POLL]
    for number, rank in enumerate(recorded.ranks):
        waits = rank.records[Shape.WAIT]
        assert (waits["kind"] & 0xFF).tolist() == gates * options.layers * (options.warmup + options.steps)
        assert (waits["t_sig"] <= waits["t_end"]).all()
        for wait in waits:
            kind = WaitKind(int(wait["kind"]) & 0xFF)
            if kind is WaitKind.FLUSH:
                op = rank.issued[int(wait["seq"])]
                assert (int(wait["src"]), int(wait["channel"])) == (number, int(op["x"]) & 0xFF)
                assert rank.stages[Stage.TOLD]["t_end"][int(wait["seq"])] == wait["t_sig"]
                continue
            source = recorded.ranks[int(wait["src"])]
            chosen = (source.issued["peer"] == number) & (source.wire_seq == int(wait["seq"]))
            chosen &= source.issued["x"] & 0xFF == wait["channel"]
            (op,) = source.issued[chosen]
            assert int(op["x"]) >> 12 == (Command.BARRIER if kind is WaitKind.BARRIER else Command.SIGNAL)
            assert (wait["channel"] == options.channels) == (kind is WaitKind.BARRIER)
            assert op["t_end"] <= wait["t_sig"]


def test_own_work_is_recorded_by_what_it_is(recorded):
    options = recorded.options
    layers = options.layers * (options.warmup + options.steps)
    for rank in recorded.ranks:
        assert Counter(rank.stages[Stage.COMPUTE]["x"].tolist()) == dict.fromkeys(Compute, layers)


def test_ticks_account_for_every_command_and_completion(recorded):
    for number, rank in enumerate(recorded.ranks):
        ticks = rank.records[Shape.TICK]
        assert set(ticks["x"].tolist()) == {number}
        assert ticks["n_cmd"].sum() == len(rank.issued)
        assert ticks["n_done"].sum() == len(rank.issued) + len(rank.records[Shape.RX])
        assert (ticks["n_cmd"] + ticks["n_done"] > 0).all()


def test_each_rank_says_who_it_is_and_what_is_emulated(recorded):
    for number, rank in enumerate(recorded.ranks):
        assert rank.counters["job.rank"] == [number]
        assert rank.counters["job.ranks"] == [recorded.options.ranks]
        assert rank.notes == {"emulated: kernel: a CPU thread": 1}
        assert min(rank.counters["ops.in_flight"]) >= 0
        assert max(rank.counters["ops.in_flight"]) <= recorded.options.window
