"""How long the recorded threads waited for a CPU: run-queue delay and the cgroup's throttling.

`cpu.run_delay_ns.<tid>` counts nanoseconds that the thread was runnable and did not run; `cpu.throttled_ns` counts
nanoseconds for which the program's cgroup, or one above it, was held back by its CPU quota.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from efaprof.session.sample import CounterFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from efaprof.session.ringname import RingName
    from efaprof.session.sample import Emit

PROC = Path("/proc")
_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class Cgroup:
    """Where a process's CPU quota is accounted, from its own group up to the topmost visible one."""

    folders: tuple[Path, ...]
    is_v2: bool

    @property
    def quota_cores(self) -> float | None:
        """Cores that the tightest quota allows; None without one."""
        quotas = [quota for folder in self.folders if (quota := self._quota(folder)) is not None]
        return min(quotas, default=None)

    def _quota(self, folder: Path) -> float | None:
        try:
            if self.is_v2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text().strip()
                period = (folder / "cpu.cfs_period_us").read_text().strip()
            return int(quota) / int(period) if quota not in {"max", "-1"} else None
        except (OSError, ValueError, ZeroDivisionError):
            return None

    def throttled_files(self) -> list[CounterFile]:
        """The counters of throttled time, in nanoseconds, of each group that has one."""
        key, scale = (b"throttled_usec", 1000) if self.is_v2 else (b"throttled_time", 1)
        found: list[CounterFile] = []
        for folder in self.folders:
            try:
                words = (folder / "cpu.stat").read_bytes().split()
            except OSError:
                continue
            if key in words:
                found.append(CounterFile("cpu.throttled_ns", folder / "cpu.stat", words.index(key) + 1, scale))
        return found


def find_cgroup(pid: int | str = "self", *, proc: Path = PROC) -> Cgroup | None:
    """The CPU accounting group of a process, version 2 or 1; None when none is mounted."""
    try:
        memberships = [line.split(":", 2) for line in (proc / str(pid) / "cgroup").read_text().splitlines()]
        mounts = [line.split() for line in (proc / "self" / "mountinfo").read_text().splitlines()]
    except OSError:
        return None
    for is_v2 in (False, True):  # where both are mounted, version 1 holds the CPU controller if it has it
        path = next((path for _, names, path in memberships if _is_cpu_membership(names, is_v2=is_v2)), None)
        mount = next((words for words in mounts if _is_cpu_mount(words, is_v2=is_v2)), None)
        if path is None or mount is None:
            continue
        top, root = Path(mount[4]), mount[3]
        inside = path.removeprefix(root).strip("/") if root != "/" else path.strip("/")
        folder = top / inside
        if not folder.is_dir():
            folder = top  # a container sees its own group as the mount's root
        folders = [folder, *(parent for parent in folder.parents if parent.is_relative_to(top))]
        if any((entry / "cpu.stat").exists() for entry in folders):
            return Cgroup(tuple(folders), is_v2)
    return None


def _is_cpu_membership(controllers: str, *, is_v2: bool) -> bool:
    return not controllers if is_v2 else "cpu" in controllers.split(",")


def _is_cpu_mount(words: list[str], *, is_v2: bool) -> bool:
    kind, *_, options = words[words.index("-") + 1 :]
    return kind == "cgroup2" if is_v2 else kind == "cgroup" and "cpu" in options.split(",")


@dataclass(slots=True)
class CpuSampler:
    """Samples the run-queue delay of the threads that have rings, and the throttling of the program's cgroup."""

    ring_names: Callable[[], Iterable[RingName]]
    cgroup: Cgroup | None
    proc: Path = PROC
    interval_s: float = _INTERVAL_S
    _threads: dict[tuple[int, int], CounterFile] = field(default_factory=dict, init=False)
    _ended: set[tuple[int, int]] = field(default_factory=set, init=False)
    _throttled: list[CounterFile] = field(default_factory=list, init=False)
    _own_pid_ns: int = field(init=False)

    def __post_init__(self) -> None:
        self._throttled = self.cgroup.throttled_files() if self.cgroup else []
        self._own_pid_ns = pid_namespace(self.proc)

    @property
    def complaint(self) -> str:
        """Nothing goes wrong here that the plan did not say."""
        return ""

    def sample(self, emit: Emit) -> None:
        """Emit what can be read; a thread that ended is not looked for again."""
        throttled = [value for file in self._throttled if (value := file.read()) is not None]
        if throttled:
            emit("cpu.throttled_ns", sum(throttled))
        self._find_threads()
        for thread, file in list(self._threads.items()):
            if (value := file.read()) is not None:
                emit(file.name, value)
            else:
                self._ended.add(thread)
                del self._threads[thread]

    def _find_threads(self) -> None:
        for ring in self.ring_names():
            thread = (ring.pid, ring.tid)
            # Process ids of another namespace mean nothing in our /proc.
            if ring.pid_ns != self._own_pid_ns or ring.pid == os.getpid() or thread in self._ended:
                continue
            if thread not in self._threads:
                path = self.proc / str(ring.pid) / "task" / str(ring.tid) / "schedstat"
                self._threads[thread] = CounterFile(f"cpu.run_delay_ns.{ring.tid}", path, word=1)


def has_run_delay(proc: Path = PROC) -> bool:
    """The kernel keeps run-queue delays, and they can be read."""
    return CounterFile("", proc / "self" / "schedstat", word=1).read() is not None


def pid_namespace(proc: Path = PROC) -> int:
    """Inode of our pid namespace; 0 when it cannot be read."""
    try:
        return (proc / "self" / "ns" / "pid").stat().st_ino
    except OSError:
        return 0
