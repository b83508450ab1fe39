"""The emulated device as a device: work queue entries posted by hand, garbage in its queues, its process's end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from softefa_runs import need_program, need_softefa, on_softefa, wheel_libfabric

from efaprof import env
from efaprof.errors import RecordError
from efaprof.session.softefa import SoftEfa
from efaprof.session.softefa_spec import parse_emulation

ERROR_COMPLETION = 6
DEADLINE_S = 20


@pytest.fixture
def poster(build_dir) -> Path:
    need_softefa()
    return need_program(build_dir, "softefa_poster")


OPERATIONS = [["-o", "write"], ["-o", "writedata"], ["-o", "writedata", "-u"], ["-o", "read"], ["-o", "send"]]


@pytest.mark.parametrize("operation", OPERATIONS, ids=" ".join)
@pytest.mark.parametrize("memory", [[], ["-M"]], ids=["private", "shared"])
def test_entries_posted_by_hand_do_what_they_say(poster, operation, memory):
    # More than two laps of every ring, several queues, several entries a doorbell.
    options = [*operation, *memory, "-n", "20000", "-s", "48", "-q", "3", "-d", "5"]
    done = on_softefa(poster, *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ops 20000 ")


def test_large_operations_cross_in_parts_over_paths_that_overtake(poster):
    for operation in ("write", "read"):
        done = on_softefa(poster, "-o", operation, "-n", "64", "-s", "400000", emulate="latency=10us,reorder=0.5")
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("operation", ["write", "read"])
def test_a_flipped_bit_is_in_the_memory_that_was_written(poster, operation):
    done = on_softefa(poster, "-o", operation, "-n", "256", "-s", "64", emulate="corrupt=0.05")
    assert done.returncode == 3
    assert "slot" in done.stderr


MISTAKES = {  # what is wrong, with which operation, the status that EFA has for it
    "phase": ("write", 2), "operation": ("write", 3), "handle": ("write", 4), "local-key": ("write", 5),
    "length": ("write", 6), "key": ("write", 7), "range": ("read", 7), "no-access": ("write", 7), "qpn": ("send", 9),
    "qkey": ("send", 9), "no-receive": ("send", 10), "short-receive": ("send", 11), "stranger": ("write", 14),
}  # fmt: skip


COUNTED = ["-C", "-n", "5000", "-s", "48", "-q", "3", "-d", "4"]


@pytest.mark.parametrize("operation", [["-o", "writedata", "-u"], ["-o", "send"]], ids=" ".join)
def test_completions_can_lie_in_memory_of_the_program(poster, operation):
    done = on_softefa(poster, *operation, "-Q", "-n", "20000", "-s", "48", "-q", "3", "-d", "5")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mistake", ["short-ring", "unsealed-ring"])
def test_memory_that_does_not_hold_the_completions_or_could_go_away_is_refused(poster, mistake):
    done = on_softefa(poster, "-Q", "-n", "10", "-E", mistake)
    assert done.returncode == 4
    assert "efadv_create_cq: Invalid argument" in done.stderr


@pytest.mark.parametrize("memory", [[], ["-M"]], ids=["its memory", "ours"])
@pytest.mark.parametrize("wire", ["", ",latency=10us,reorder=0.5"], ids=["bare", "reordering"])
def test_completion_counters_count_past_their_largest_value(poster, memory, wire):
    done = on_softefa(poster, *COUNTED, *memory, emulate=f"counters=on{wire}")
    assert done.returncode == 0, done.stderr
    assert "counters=on" in done.stderr


def test_what_failed_is_counted_apart(poster):
    done = on_softefa(poster, "-C", "-n", "1", "-E", "key", emulate="counters=on")
    assert done.returncode == ERROR_COMPLETION
    assert "counted an error" in done.stderr


@pytest.mark.parametrize("memory", [[], ["-M"]], ids=["its memory", "ours"])
def test_a_device_has_no_completion_counters_unless_asked(poster, memory):
    done = on_softefa(poster, *COUNTED, *memory)
    assert done.returncode == 4
    assert "efadv_create_comp_cntr: Operation not supported" in done.stderr


def test_a_message_from_a_stranger_arrives_with_its_address(poster):
    done = on_softefa(poster, "-o", "send", "-n", "100", "-s", "64", "-E", "stranger")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_in_its_own_error_completion(poster, mistake):
    operation, status = MISTAKES[mistake]
    done = on_softefa(poster, "-o", operation, "-n", "1", "-E", mistake, emulate="latency=5us")
    assert done.returncode == ERROR_COMPLETION, done.stderr
    assert f"error completion: status {status} of a post\n" in done.stdout
    # The receiver's buffer is spent as well, and it is told; whether it looks before its peer is gone is open.
    assert mistake == "short-receive" or "of a receive" not in done.stdout


@pytest.mark.parametrize(
    "wire", ["", "latency=5us,reorder=0.3,loss=0.05,window=8,rate=10Gbps,timeout=1ms"], ids=["bare", "busy"]
)
def test_garbage_in_the_queues_does_not_stop_the_device(poster, wire):
    seeds = " ".join(str(seed) for seed in range(1, 5))
    script = f"for s in {seeds}; do {poster} -F $s -n 1500 -q 4 || exit 1; done; exec {poster} -n 1000"
    done = on_softefa("sh", "-c", script, emulate=wire)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ops 1000 ")  # and it still works afterwards


@pytest.mark.slow
def test_much_garbage_in_the_queues_does_not_stop_the_device(poster):
    script = f"for s in $(seq 100 160); do {poster} -F $s -n 3000 -q 8 || exit 1; done; exec {poster} -n 1000"
    done = on_softefa("sh", "-c", script, emulate="latency=5us,reorder=0.3,loss=0.05,window=8,timeout=1ms")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("fabric", ["efa", "efa-direct"])
def test_ranks_get_error_completions_when_the_device_is_killed(build_dir, fabric):
    need_softefa()
    client = need_program(build_dir, "softefa_client")
    libfabric = wheel_libfabric().environment
    device = SoftEfa(parse_emulation("latency=1s"))
    with pytest.raises(RecordError, match="without its summary"), device:
        told = device.environment({**os.environ, **libfabric})
        rank = subprocess.Popen(
            [client, "-f", fabric, "-m", "msg", "-s", "64", "-n", "1000"], env=told, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        until = time.monotonic() + DEADLINE_S
        while not _has_sent(device) and time.monotonic() < until:
            assert rank.poll() is None
        _process_of(device).kill()
        printed, said = rank.communicate(timeout=2 * DEADLINE_S)
    assert rank.returncode == ERROR_COMPLETION, said
    assert "error completion" in printed
    assert "the process of the emulated device has ended" in said


def _process_of(device: SoftEfa) -> subprocess.Popen[bytes]:
    assert device._process is not None
    return device._process


def _has_sent(device: SoftEfa) -> bool:
    counters = device.sysfs.glob("class/infiniband/*/ports/1/hw_counters/send_wrs")
    return any(int(counter.read_text()) > 0 for counter in counters)


def test_the_folder_is_gone_afterwards_whatever_happened(poster):
    device = SoftEfa(parse_emulation(""))
    with device:
        assert device.sysfs.is_dir()
        subprocess.run([poster, "-n", "10"], env=device.environment(os.environ), check=True, stdout=subprocess.DEVNULL)
    assert not device.folder.exists()
    assert device.summary.operations == 10
    with pytest.raises(RuntimeError, match="on purpose"), device:
        raise RuntimeError("on purpose")
    assert not device.folder.exists()


def test_the_device_ends_with_its_parent():
    need_softefa()
    program = (
        "import os, sys\n"
        "from efaprof.session.softefa import SoftEfa\n"
        "from efaprof.session.softefa_spec import parse_emulation\n"
        "device = SoftEfa(parse_emulation('')).__enter__()\n"
        "print(device._process.pid, device.folder, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    pid, folder = done.stdout.split()
    until = time.monotonic() + DEADLINE_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        pass
    assert not Path(f"/proc/{pid}").exists()
    assert not Path(folder).exists()


def test_the_command_is_told_what_is_emulated_and_where_its_files_are(tmp_path):
    need_softefa()
    names = [env.EMULATED, env.SYSFS, env.SYSFS_PATH, env.SOFTEFA_DIR, env.SOFTEFA_TRUTH, "LD_PRELOAD"]
    program = f"import os; print({{name: os.environ.get(name) for name in {names}}})"
    truth = tmp_path / "new" / "truth.bin"
    done = on_softefa(
        sys.executable,
        "-c",
        program,
        emulate="rate=100Gbps,reorder=30%",
        truth=truth,
        env={env.EMULATED: "kernel: cpu"},
    )
    assert done.returncode == 0, done.stderr
    told = eval(done.stdout)
    assert told[env.EMULATED] == "kernel: cpu;device: softefa rate=100Gbps reorder=0.3"
    assert told[env.SYSFS] == told[env.SYSFS_PATH] == f"{told[env.SOFTEFA_DIR]}/sysfs"
    assert told[env.SOFTEFA_TRUTH] == str(truth)
    assert [Path(one).name for one in told["LD_PRELOAD"].split(":")] == ["libibverbs.so.1", "libefa.so.1"]
    assert not Path(told[env.SOFTEFA_DIR]).exists()


@pytest.mark.parametrize(("program", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)])
def test_the_exit_code_is_the_commands_own(program, code):
    need_softefa()
    done = on_softefa("sh", "-c", program)
    assert done.returncode == code
    assert "emulated device: softefa" in done.stderr


def test_a_signal_sent_to_us_reaches_the_command():
    need_softefa()
    program = "trap 'echo got it; exit 9' USR1; echo ready; while :; do :; done"
    command = [sys.executable, "-m", "efaprof", "softefa", "-q", "--", "sh", "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGUSR1)
        assert running.stdout.readline() == "got it\n"
    assert running.returncode == 9
