"""The knobs of the emulated wire against what its own log says was done, and what the log says against the NIC's files.

The poster writes work queue entries by itself. Rates and times are taken from medians and slopes, which a machine that
pauses now and then does not move; they are far below what any machine can do.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from softefa_runs import need_program, need_softefa, on_softefa

from efaprof.session.softefa_truth import Flag, Op, TruthLog, read_truth

WITHIN = 0.05
NOT_KEPT = "warning: this machine did not keep the emulated wire's times"
ATTEMPTS = 4
UNREACHABLE = 15


@pytest.fixture
def poster(build_dir) -> Path:
    need_softefa()
    return need_program(build_dir, "softefa_poster")


@pytest.fixture
def log_of(poster, tmp_path):
    """Runs the poster on a wire, with payload in shared memory, and reads the truth log."""

    def run(emulate: str, *options: str, code: int = 0, in_time: bool = False) -> TruthLog:
        truth = tmp_path / "truth.bin"
        for _ in range(ATTEMPTS if in_time else 1):
            done = on_softefa(poster, "-M", *options, emulate=emulate, truth=truth)
            assert done.returncode == code, done.stderr
            if not in_time or NOT_KEPT not in done.stderr:
                log = read_truth(truth)
                assert log.dropped == 0
                return log
        pytest.skip("this machine is too busy to keep the emulated wire's times, and says so itself")

    return run


def spacing_ns(times: np.ndarray) -> float:
    """Median slope of sorted times over their order: ten segments, so that a pause spoils one."""
    times = np.sort(times)
    parts = np.array_split(times, 10)
    return float(np.median([(part[-1] - part[0]) / (len(part) - 1) for part in parts]))


def test_ops_is_the_rate_at_which_operations_are_delivered(log_of):
    log = log_of("ops=20K", "-n", "6000", "-w", "1000", in_time=True)
    assert spacing_ns(log.records["delivered_ns"]) == pytest.approx(1e9 / 20e3, rel=WITHIN)
    assert spacing_ns(log.records["cqe_ns"]) == pytest.approx(1e9 / 20e3, rel=WITHIN)


def test_rate_is_the_payload_per_second(log_of):
    log = log_of("rate=2Gbps", "-n", "1500", "-s", "65536", "-w", "256", in_time=True)
    assert spacing_ns(log.records["delivered_ns"]) == pytest.approx(65536 * 8 / 2, rel=WITHIN)


def test_pps_counts_packets_of_one_mtu(log_of):
    log = log_of("pps=40K,mtu=4096", "-n", "4000", "-s", "16384", "-w", "512", in_time=True)
    assert set(log.records["packets"]) == {4}
    assert spacing_ns(log.records["delivered_ns"]) == pytest.approx(4e9 / 40e3, rel=WITHIN)


@pytest.mark.parametrize("operation", ["write", "send", "read"])
def test_latency_is_what_an_operation_takes_there_and_its_completion_back(log_of, operation):
    log = log_of("latency=2ms", "-o", operation, "-n", "60", "-w", "1", in_time=True)
    there = np.median(log.records["delivered_ns"] - log.records["doorbell_ns"])
    # Completions are not in what the device calls late: the quick tenth of them waited for no core.
    to_completion = np.quantile(log.records["cqe_ns"] - log.records["doorbell_ns"], 0.1)
    assert there == pytest.approx(4e6 if operation == "read" else 2e6, rel=WITHIN)
    assert to_completion == pytest.approx(4e6, rel=WITHIN)


def test_window_bounds_what_is_in_flight(log_of):
    log = log_of("latency=200us,window=4", "-n", "400", "-w", "64")
    starts = np.sort(log.records["start_ns"])
    # The fifth starts when the first has come back, and so on.
    assert np.all(starts[4:] - starts[:-4] >= 399e3)


def test_jitter_has_its_mean(log_of):
    log = log_of("latency=20us,jitter=200us", "-n", "4000", "-w", "64")
    modelled = log.records["due_ns"] - log.records["start_ns"]
    assert modelled.min() >= 20e3
    assert modelled.mean() - 20e3 == pytest.approx(200e3, rel=0.1)  # 5 % = three standard errors of the mean


def test_without_reorder_nothing_overtakes(log_of):
    log = log_of("latency=50us", "-n", "2000", "-w", "64")
    assert np.all(np.diff(log.records["seq"].astype(np.int64)) == 1)
    assert not np.any(log.records["flags"] & Flag.DETOUR)


def test_reorder_is_the_share_that_detours_and_is_overtaken(log_of):
    log = log_of("latency=50us,reorder=0.3,spread=200us", "-n", "4000", "-w", "64")
    detours = (log.records["flags"] & Flag.DETOUR) != 0
    assert detours.mean() == pytest.approx(0.3, abs=0.03)
    by_seq = log.records[np.argsort(log.records["seq"])]
    assert np.mean(np.diff(by_seq["due_ns"]) < 0) > 0.1
    assert np.all((by_seq["due_ns"] - by_seq["start_ns"])[(by_seq["flags"] & Flag.DETOUR) == 0] == 50_000)


def test_a_seed_repeats_a_run_and_another_does_not(log_of):
    def detours(seed: int) -> list[int]:
        log = log_of(f"reorder=0.5,latency=20us,seed={seed}", "-n", "500")
        return sorted(log.records["seq"][(log.records["flags"] & Flag.DETOUR) != 0].tolist())

    assert detours(1) == detours(1)
    assert detours(1) != detours(2)


def test_a_lost_packet_is_sent_again_and_costs_a_timeout(log_of):
    log = log_of("latency=20us,loss=0.1,rto=300us", "-n", "2000", "-w", "64")
    again = log.records["retransmits"]
    assert np.all(log.records["status"] == 0)
    assert again.sum() == pytest.approx(2000 / 9, rel=0.25)  # 1/0.9 transmissions each
    assert np.all((log.records["due_ns"] - log.records["start_ns"]) == 20_000 + 300_000 * again)


def test_a_peer_that_nothing_reaches_is_unreachable(log_of):
    log = log_of("latency=20us,loss=1,rto=100us", "-n", "1", code=6)
    assert log.records["status"].tolist() == [UNREACHABLE]
    assert log.records["delivered_ns"].tolist() == [0]


def test_a_receiver_that_is_not_ready_is_tried_again(log_of):
    # Immediate data takes a receive; 1024 are posted, and the target posts the next ones as it polls.
    log = log_of("rnr=100us", "-o", "writedata", "-n", "4000", "-w", "512")
    assert np.all(log.records["status"] == 0)
    assert np.all(log.records["rx_cqe_ns"] >= log.records["delivered_ns"])


def test_the_log_names_what_was_done(log_of):
    log = log_of("", "-o", "writedata", "-u", "-n", "300", "-s", "64")
    records = log.records
    assert set(records["op"]) == {Op.WRITE}
    assert set(records["bytes"]) == {64}
    assert sorted(records["imm"]) == sorted(0x5000 + n % 256 for n in range(300))
    assert np.all(records["flags"] & (Flag.IMM | Flag.UNSOLICITED) == Flag.IMM | Flag.UNSOLICITED)
    assert (set(records["src_device"]), set(records["dst_device"])) == ({0}, {1})  # numbered like the ranks
    for earlier, later in (("doorbell_ns", "delivered_ns"), ("delivered_ns", "rx_cqe_ns"), ("rx_cqe_ns", "cqe_ns")):
        assert np.all(records[earlier] <= records[later]), (earlier, later)


READ_COUNTERS = """
import os, subprocess, sys, time
from pathlib import Path
from efaprof.session.nic import find_devices
sysfs = Path(os.environ["EFAPROF_SYSFS"])
print([device.name for device in find_devices(sysfs) if device.rate_bytes_s == 25_000_000_000 // 8])
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
until = time.monotonic() + 10
counted = {}
def has_all():
    return counted and counted["softefa0"].get("tx_pkts") == counted["softefa1"].get("rx_pkts") == 500
while time.monotonic() < until and not has_all():
    for device in find_devices(sysfs):
        counters = {one.path.name: one.read() for one in (*device.traffic, *device.others)}
        counted[device.name] = {name: value for name, value in sorted(counters.items()) if value}
print(counted["softefa0"])
print(counted["softefa1"])
"""


def test_the_nic_probe_finds_the_devices_their_rate_and_their_counters(poster):
    done = on_softefa(sys.executable, "-c", READ_COUNTERS, poster, "-n", "500", "-s", "1000", emulate="rate=25Gbps")
    assert done.returncode == 0, done.stderr
    before, sender, receiver = done.stdout.splitlines()
    assert before == "['softefa0', 'softefa1']"
    assert sender == "{'rdma_write_bytes': 500000, 'rdma_write_wrs': 500, 'tx_bytes': 500000, 'tx_pkts': 500}"
    assert receiver == "{'rdma_write_recv_bytes': 500000, 'rx_bytes': 500000, 'rx_pkts': 500}"


def test_a_machine_that_cannot_keep_up_is_named(poster):
    done = on_softefa(poster, "-n", "20000", "-w", "512", "-q", "4", emulate="ops=50M,latency=1us")
    assert done.returncode == 0, done.stderr
    assert NOT_KEPT in done.stderr


def test_a_slow_wire_is_kept_without_a_warning(log_of):
    log_of("ops=100,latency=500ms", "-n", "30", "-w", "30", in_time=True)
