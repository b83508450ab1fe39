from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from efaprof.session.cpu import Cgroup, CpuSampler, find_cgroup, has_run_delay, pid_namespace
from efaprof.session.ringname import RingName


class Sink(dict):
    def __call__(self, name, value, *, monotone=True):
        assert monotone
        self[name] = value


@pytest.fixture
def v2(tmp_path):
    """A pod's group with a quota above the container's group, as systemd and Kubernetes lay them out."""
    top = tmp_path / "cgroup"
    leaf = top / "kubepods.slice" / "pod1" / "app"
    leaf.mkdir(parents=True)
    (leaf / "cpu.max").write_text("max 100000\n")
    (leaf / "cpu.stat").write_text("usage_usec 9\nnr_throttled 0\nthrottled_usec 2\n")
    (leaf.parent / "cpu.max").write_text("150000 100000\n")
    (leaf.parent / "cpu.stat").write_text("usage_usec 9\nnr_throttled 4\nthrottled_usec 700\n")
    (top / "cpu.stat").write_text("usage_usec 9\n")
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/kubepods.slice/pod1/app\n")
    (proc / "self" / "mountinfo").write_text(f"31 23 0:28 / {top} rw shared:4 - cgroup2 cgroup2 rw\n")
    return proc


def test_the_tightest_quota_on_the_way_up_counts(v2):
    cgroup = find_cgroup(proc=v2)
    assert cgroup.is_v2
    assert cgroup.quota_cores == 1.5


def test_throttled_time_of_every_level_is_added_up_in_nanoseconds(v2):
    sampler = CpuSampler(list, find_cgroup(proc=v2))
    sink = Sink()
    sampler.sample(sink)
    assert sink == {"cpu.throttled_ns": 702_000}


def test_a_container_that_sees_only_its_own_group(v2):
    (v2 / "self" / "cgroup").write_text("0::/\n")
    cgroup = find_cgroup(proc=v2)
    assert cgroup.quota_cores is None
    assert cgroup.throttled_files() == []


def test_version_1_is_read_too(tmp_path):
    group = tmp_path / "cpu" / "docker" / "abc"
    group.mkdir(parents=True)
    (group / "cpu.stat").write_text("nr_periods 3\nnr_throttled 1\nthrottled_time 12345\n")
    (group / "cpu.cfs_quota_us").write_text("50000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("4:memory:/x\n3:cpu,cpuacct:/docker/abc\n0::/\n")
    (proc / "self" / "mountinfo").write_text(
        f"30 1 0:5 / {tmp_path}/unified rw - cgroup2 cgroup2 rw\n"
        f"31 1 0:6 / {tmp_path}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    )
    cgroup = find_cgroup(proc=proc)
    assert (cgroup.is_v2, cgroup.quota_cores) == (False, 0.5)
    sink = Sink()
    CpuSampler(list, cgroup).sample(sink)
    assert sink == {"cpu.throttled_ns": 12345}


@pytest.mark.parametrize("content", ["", "max\n", "a b\n", "1 0\n"])
def test_a_quota_that_cannot_be_read_is_no_quota(tmp_path, content):
    (tmp_path / "cpu.max").write_text(content)
    assert Cgroup((tmp_path,), is_v2=True).quota_cores is None


def test_without_cgroups_there_is_none(tmp_path):
    assert find_cgroup(proc=tmp_path) is None


def ring(pid: int, tid: int, *, pid_ns: int | None = None) -> RingName:
    return RingName("h", pid_namespace() if pid_ns is None else pid_ns, pid, tid, Path("x"))


@pytest.mark.skipif(not has_run_delay(), reason="this kernel keeps no run-queue delay (CONFIG_SCHED_INFO)")
def test_threads_with_rings_are_sampled_until_they_end():
    # The sampler leaves its own process out, so another one is looked at: the parent of this one.
    parent = os.getppid()
    rings = [ring(parent, parent), ring(os.getpid(), threading.get_native_id()), ring(parent, parent, pid_ns=1)]
    sampler = CpuSampler(lambda: rings, None)
    sink = Sink()
    sampler.sample(sink)
    assert list(sink) == [f"cpu.run_delay_ns.{parent}"]
    assert sink.popitem()[1] >= 0


def test_a_thread_that_ended_is_not_looked_for_again(tmp_path):
    schedstat = tmp_path / "7" / "task" / "8" / "schedstat"
    schedstat.parent.mkdir(parents=True)
    (tmp_path / "self" / "ns").mkdir(parents=True)
    (tmp_path / "self" / "ns" / "pid").touch()
    namespace = pid_namespace(tmp_path)
    sampler = CpuSampler(lambda: [ring(7, 8, pid_ns=namespace)], None, tmp_path)
    seen = []
    for content in ("100 20 3\n", "200 30 4\n", "", "300 40 5\n"):
        schedstat.write_text(content)
        sink = Sink()
        sampler.sample(sink)
        seen.append(sink.get("cpu.run_delay_ns.8"))
    assert seen == [20, 30, None, None]
