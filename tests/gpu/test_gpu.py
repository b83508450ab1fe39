"""The dispatch path with kernels on a real GPU. Also runs without pytest: python tests/gpu/test_gpu.py"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_runs import (
    LIMIT_S,
    POSTED,
    POSTED_STAMPS,
    command,
    dispatch,
    library_folder,
    main_without_pytest,
    missing,
    on_device,
    run,
    stamped,
)

try:
    import pytest
except ImportError:  # a machine with a GPU may have none
    pytest = None

if pytest is not None:
    pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def check_shape(*options):
    ended = dispatch(*options)
    assert ended.code == 0, ended.err
    summary = ended.summary
    tokens = int(options[options.index("--tokens") + 1]) if "--tokens" in options else 8
    steps = summary["steps"] + summary["warmup"]
    assert summary["verified_tokens"] == summary["ranks"] * tokens * summary["layers"] * steps
    assert summary["gpu"]["dispatch_us"]["p50"] > 0
    return summary


def test_every_command_of_the_ring_arrives_as_it_was_pushed():
    binary = str(library_folder() / "efaprof-dispatch")
    ended = run([binary, "ring", "--device", "cuda", "--commands", "3000000", "--trips", "20000", "--json"])
    assert ended.code == 0, ended.err
    assert ended.summary["wrong"] == 0
    assert ended.summary["commands"] > 3_000_000


def test_tokens_in_bf16_come_bit_for_bit_and_sums_within_tolerance():
    summary = check_shape("--tokens", "128", "--hidden", "7168")
    assert summary["operations"]["put"] > 0


def test_tokens_in_fp8_come_bit_for_bit_and_sums_within_tolerance():
    check_shape("--dtype", "fp8", "--tokens", "8", "--hidden", "7168")


def test_one_token_of_an_odd_shape():
    check_shape("--tokens", "1", "--hidden", "1032", "--topk", "3", "--experts", "6", "--channels", "3")


def test_four_ranks_share_a_gpu():
    check_shape("--ranks", "4", "--tokens", "5")


def test_a_small_ring_that_is_always_full():
    check_shape("--ring", "64", "--window", "16", "--tokens", "64")


def test_signals_behind_fences():
    check_shape("--signal", "fence")
    check_shape("--signal", "fence-batch")


def test_without_stamps_nothing_else_changes():
    summary = check_shape("--no-stamps")
    assert summary["gpu"]["stamps"] is False


def test_shared_doorbells_and_small_batches():
    check_shape("--more", "--drain", "4")


def test_a_rank_with_several_proxies_moves_every_token():
    summary = check_shape("--proxies", "2")
    assert (summary["proxies"], (summary["threads"] - 1) % 2) == (2, 0)
    check_shape("--proxies", "4", "--channels", "5", "--signal", "fence-batch", "--threads", "2")
    check_shape("--proxies", "3", "--ring", "64", "--window", "16", "--tokens", "64", "--threads", "2")


def test_it_issues_what_the_routes_say():
    from efaprof.instrument.dispatch import DispatchOptions

    summary = check_shape("--tokens", "7", "--seed", "12")
    options = DispatchOptions(
        ranks=2, layers=2, tokens=7, hidden=2048, topk=8, experts=64, steps=summary["steps"],
        warmup=summary["warmup"], seed=12,
    )  # fmt: skip
    counts = options.run_counts()
    for kind, number in summary["operations"].items():
        assert number == sum(getattr(one, kind) for one in counts), kind


def test_a_damaged_token_is_found_and_named():
    ended = dispatch("--corrupt", "7")
    assert ended.code == 1
    assert "data does not verify" in ended.err
    assert "step 7 layer 0" in ended.err


def test_a_rank_that_stays_away_is_named_in_time():
    begin = time.monotonic()
    ended = dispatch("--late", "1=4s", timeout_s=1)
    assert ended.code == 1
    assert "the kernel waited 1 s for a barrier (rank 1" in ended.err
    assert time.monotonic() - begin < 60


def test_a_killed_rank_leaves_nothing_running():
    program = subprocess.Popen(command("--steps", "1000000"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    victim = wait_for_rank(program.pid)
    os.kill(victim, signal.SIGKILL)
    _, err = program.communicate(timeout=LIMIT_S)
    assert program.returncode == 1
    assert f"(pid {victim}) was killed by signal 9" in err
    check_shape()  # the GPU is free for the next run


def wait_for_rank(parent):
    """Pid of the second rank, once it has issued for a while."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        children = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True, check=False).stdout
        names = {int(pid): Path(f"/proc/{pid}/comm").read_text().strip() for pid in children.split()}
        for pid, name in names.items():
            if name == "lane1" and cpu_seconds(pid) > 3:
                return pid
        time.sleep(0.05)
    raise AssertionError("the second rank did not start")


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_ranks_that_would_take_turns_on_a_gpu_are_refused():
    ended = run([*command(), "--ranks", "64"], PATH="/nonexistent")
    assert ended.code == 2
    assert "MPS is not there" in ended.err


def test_a_recorded_run_is_whole():
    check_recorded()


def test_a_recorded_run_of_two_proxies_is_whole():
    check_recorded("--proxies", "2")


def check_recorded(*more):
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "run"
        ended = run(
            [sys.executable, "-m", "efaprof", "record", "-o", str(target), "--", *command("--steps", "200", *more)]
        )
        assert ended.code == 0, ended.err
        share, causal = stamped(target)
        assert share >= 0.999
        assert causal >= 0.999
        told = run([sys.executable, "-m", "efaprof", "attribute", str(target), "--json"])
        assert told.code == 0, told.err
        report = json.loads(told.out)
        assert report["conservation_error_ns"] == 0
        us = {row["layer"]: row["us"]["value"] for row in report["layers"]}
        said = f"of {report['wall_us']['value']:.0f} µs a step {us}"
        assert us["unattributed"] < 0.02 * report["wall_us"]["value"], said
        # Between the kernels of a step's graph, and between graphs, nothing runs: some 40 to 70 µs on an H200, however
        # short the step is. Of a step of two proxies that is more than a tenth.
        assert us["idle"] < 100, said
        assert report["clock_error_ns"] > 0


def posted(*options, emulate="latency=5us", timeout_s=5):
    words = command(*POSTED, *options, provider="efa-direct", timeout_s=timeout_s)
    ended = on_device(words, emulate)
    assert ended.code == 0, ended.err
    summary = ended.summary
    steps = summary["steps"] + summary["warmup"]
    assert summary["verified_tokens"] == summary["ranks"] * 8 * summary["layers"] * steps
    assert summary["threads"] == 1
    return summary


def test_kernels_that_post_by_themselves_move_every_token():
    posted()


def test_their_entries_survive_a_device_that_reorders_and_a_queue_that_is_always_full():
    posted("--send-queue", "8", "--window", "16", "--batch", "4", emulate="latency=5us,reorder=0.5")


def test_their_signals_wait_behind_fences():
    posted("--signal", "fence", emulate="latency=5us,reorder=0.5")


def test_they_need_no_completion_queue_where_the_device_counts():
    posted("--signal", "fence", "--completion", "counter", emulate="counters=on,latency=5us,reorder=0.5")
    posted("--signal", "fence-batch", "--completion", "counter", "--send-queue", "8", "--window", "16", "--batch", "4",
           emulate="counters=on,latency=5us")  # fmt: skip


def posters(*options, emulate=""):
    binary = str(library_folder() / "efaprof-dispatch")
    ended = on_device([binary, "posters", "--device", "cuda", "--queues", "verbs", "--json", *options], emulate)
    assert ended.code == 0, ended.err
    return ended.summary


def test_warps_that_post_to_one_queue_pair_ring_in_turn():
    for count, batch, send_queue in ((2, 1, 8), (8, 16, 64), (31, 4, 32)):
        words = ["--posters", count, "--batch", batch, "--send-queue", send_queue, "--entries", 100000, "--seed", count]
        found = posters(*map(str, words))
        assert found["in_order"] is True
        assert found["entries"] / batch <= found["doorbells"] <= found["entries"]
        assert found["turns_missed"] > 0


def test_each_entry_of_several_warps_arrives_once_where_the_wire_reorders():
    assert posters("--posters", "8", "--entries", "50000", emulate="latency=5us,reorder=0.5")["in_order"] is False


def test_a_peer_that_stays_away_is_named_in_time_by_a_kernel_that_posts():
    begin = time.monotonic()
    words = command(*POSTED, "--late", "1=4s", provider="efa-direct", timeout_s=1)
    ended = on_device(words)
    assert ended.code == 1
    assert "the kernel waited 1 s for a barrier (rank 1" in ended.err
    assert time.monotonic() - begin < 60


def test_a_recorded_run_of_kernels_that_post_is_whole_and_has_no_host_stages():
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "run"
        words = ["--path", "gdaki", "--queues", "verbs", "--device", "cuda", "--emulate", "latency=5us",
                 "--layers", "2", "--tokens", "8", "--hidden", "2048", "--topk", "8", "--experts", "64",
                 "--steps", "100", "--warmup", "5", "-o", str(target)]  # fmt: skip
        ended = run([sys.executable, "-m", "efaprof", "bench", "dispatch", *words])
        assert ended.code == 0, ended.err
        share, causal = stamped(target, POSTED_STAMPS)
        assert share == 1
        assert causal >= 0.999
        told = run([sys.executable, "-m", "efaprof", "attribute", str(target), "--json"])
        assert told.code == 0, told.err
        report = json.loads(told.out)
        assert report["conservation_error_ns"] == 0
        assert report["coverage"] > 0.9
        layers = {row["layer"] for row in report["layers"]}
        assert {"kernel", "nic", "rx"} <= layers
        assert not layers & {"ring", "proxy", "libfabric"}
        assert report["kernel_parts"]["entries_per_doorbell"] > 1


if __name__ == "__main__":
    sys.exit(main_without_pytest(missing(), globals()))
