from __future__ import annotations

from pathlib import Path

import pytest

from efaprof.session import cpu, doctor, host, nic, workspace
from efaprof.session.checks import State


def only(checks):
    (check,) = checks
    return check


def test_every_check_that_is_not_ok_names_a_line_to_type():
    checks = doctor.examine()
    assert len({check.check for check in checks}) >= 15
    for check in checks:
        assert check.detail
        assert check.hint or check.state == State.OK, check


def test_another_clocksource_is_degraded_with_the_way_back(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "CLOCKSOURCE", tmp_path)
    for available, hint in (("tsc hpet", "echo tsc >"), ("kvm-clock", "boot with clocksource=tsc")):
        (tmp_path / "current_clocksource").write_text("hpet\n")
        (tmp_path / "available_clocksource").write_text(available)
        check = only(doctor._clock())
        assert (check.state, hint in check.hint) == (State.DEGRADED, True)
    (tmp_path / "current_clocksource").write_text("tsc\n")
    assert only(doctor._clock()).state == State.OK


def test_a_cpu_quota_below_the_cores_counts(monkeypatch):
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda _: set(range(64)))
    for quota, state in ((None, State.OK), (1.5, State.DEGRADED), (16.0, State.OK)):
        monkeypatch.setattr(cpu.Cgroup, "quota_cores", quota)
        monkeypatch.setattr(cpu, "find_cgroup", lambda: cpu.Cgroup((), is_v2=True))
        assert only(doctor._cores()).state == state


def test_shared_memory_that_is_missing_or_small(tmp_path, monkeypatch):
    monkeypatch.setattr(workspace, "SHM", tmp_path / "absent")
    assert only(doctor._shm()).state == State.DEGRADED
    monkeypatch.setattr(workspace, "SHM", tmp_path)
    monkeypatch.setattr(doctor, "_SMALL_SHM", 1 << 60)
    check = only(doctor._shm())
    assert (check.state, "--shm-size" in check.hint) == (State.DEGRADED, True)


def efa_tree(root: Path, *, counters: bool) -> None:
    driver = root / "bus" / "pci" / "drivers" / "efa"
    driver.mkdir(parents=True)
    device = root / "class" / "infiniband" / "rdmap0s6"
    (device / "device").mkdir(parents=True)
    (device / "device" / "driver").symlink_to(driver)
    port = device / "ports" / "1"
    (port / "hw_counters").mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("100 Gb/sec (4X EDR)\n")
    if counters:
        (port / "hw_counters" / "tx_bytes").write_text("1\n")


@pytest.mark.parametrize(("counters", "state"), [(True, State.OK), (False, State.DEGRADED)])
def test_efa_devices_are_found_by_their_driver(tmp_path, monkeypatch, counters, state):
    efa_tree(tmp_path, counters=counters)
    monkeypatch.setattr(nic, "SYSFS", tmp_path)
    monkeypatch.setattr(nic.find_devices, "__defaults__", (tmp_path,))
    devices, found = doctor._rdma()
    assert (devices.state, "rdmap0s6" in devices.detail) == (State.OK, True)
    assert found.state == state


def test_without_rdma_both_are_no(tmp_path, monkeypatch):
    monkeypatch.setattr(nic, "SYSFS", tmp_path)
    assert [check.state for check in doctor._rdma()] == [State.NO, State.NO]


@pytest.mark.parametrize(
    ("scope", "euid", "state"),
    [
        ("0", 1000, State.OK),
        ("1", 1000, State.DEGRADED),
        ("1", 0, State.OK),
        ("3", 0, State.DEGRADED),
        (None, 1000, State.OK),
    ],
)
def test_ptrace_scope_decides_whether_py_spy_may_look(tmp_path, monkeypatch, scope, euid, state):
    path = tmp_path / "ptrace_scope"
    if scope is not None:
        path.write_text(scope + "\n")
    monkeypatch.setattr(doctor, "_PTRACE_SCOPE", path)
    monkeypatch.setattr(doctor.os, "geteuid", lambda: euid)
    check = doctor._ptrace("/usr/bin/py-spy")
    assert (check.state, bool(check.hint)) == (state, state != State.OK)
