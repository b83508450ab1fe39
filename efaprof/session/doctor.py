"""What works on this machine. Each check states only what it looked at; each "no" names the line to type."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from efaprof import env, native
from efaprof.errors import EfaprofError
from efaprof.libfabric.find import find_libfabrics
from efaprof.session import cpu, hooking, host, nic, pyspy, readiness, settings, workspace
from efaprof.session.checks import Check, State
from efaprof.session.environment import NVTX_INJECTION
from efaprof.session.probes import INTERPOSER, NVTX_LIBRARY
from efaprof.session.size import format_size
from efaprof.trace.header import Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCHEMA = "efaprof.doctor/1"
_SMALL_SHM = 64 << 20  # what Docker gives; 16 threads of 4 MiB
_FEW_CORES = 4  # below, a spinning program and its peers share cores
_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_BUFFER_BYTES = 4 << 20  # of a thread's ring, unless record --buffer says otherwise
DEFAULT_RATE_OPS_S = 2e5  # what one proxy thread posts when each takes it 5 µs
_CUDA_HOMES = ("/usr/local/cuda", "/opt/cuda")


def examine(*, rate_ops_s: float = DEFAULT_RATE_OPS_S) -> list[Check]:
    """Every check, in the order of the path: host, our libraries, libfabric, devices, GPU, tools, kernel-posting.

    `rate_ops_s`: operations a second of one thread, for which the ring's size is judged.
    """
    groups: tuple[Callable[[], Iterator[Check]], ...] = (
        _clock, _cores, settings.numa, _shm, _leftovers, _our_libraries, _libfabric, _variables, _rdma, _nics,
        _scheduler, _gpu, _tools, readiness.gdaki,
    )  # fmt: skip
    found = [check for group in groups for check in group()]
    return [*found, settings.ring_time(rate_ops_s, _buffer_bytes())]


def _buffer_bytes() -> int:
    chosen = os.environ.get(env.BUFFER, "")
    return int(chosen) if chosen.isdecimal() and int(chosen) else _BUFFER_BYTES


def _variables() -> Iterator[Check]:
    chosen = os.environ.get(env.LIBFABRIC)
    libraries = hooking.libfabrics(os.environ, sys.executable, Path(chosen) if chosen else None)
    searches = [search for one in libraries if (search := hooking.search_of(one))]
    files = [*libraries, *(file for one in searches for folder in one.folders for file in folder.glob("*-fi.so"))]
    here = readiness.Machine()
    readers = (
        ("libfabric", "FI_", tuple(files)),
        ("aws-ofi-nccl", "OFI_NCCL_", tuple(filter(None, [readiness.plugin(here)]))),
        ("NCCL", "NCCL_", tuple(filter(None, [readiness.nccl(here)]))),
    )
    yield settings.settings(os.environ, [settings.Reader(*reader) for reader in readers])


def _clock() -> Iterator[Check]:
    try:
        source = (host.CLOCKSOURCE / "current_clocksource").read_text().strip()
        available = (host.CLOCKSOURCE / "available_clocksource").read_text().split()
    except OSError:
        source, available = "unknown", []
    if source == "tsc":
        yield Check("clock", State.OK, "the kernel's clocksource is tsc: events are stamped with the raw TSC")
        return
    offered = "tsc" in available
    yield Check(
        "clock",
        State.DEGRADED,
        f"the kernel's clocksource is {source}: events are stamped with CLOCK_MONOTONIC",
        f"echo tsc > {host.CLOCKSOURCE}/current_clocksource"
        if offered
        else "boot with clocksource=tsc, if the CPU has a stable TSC",
    )


def _cores() -> Iterator[Check]:
    cores = len(os.sched_getaffinity(0))
    cgroup = cpu.find_cgroup()
    quota = cgroup.quota_cores if cgroup else None
    detail = f"{cores} usable" + (f", CPU quota of {quota:g}" if quota is not None else ", no CPU quota")
    if min(cores, quota if quota is not None else cores) >= _FEW_CORES:
        yield Check("cores", State.OK, detail)
    else:
        yield Check(
            "cores",
            State.DEGRADED,
            f"{detail}: threads that spin share cores",
            "use a machine with a core a thread and one more",
        )


def _shm() -> Iterator[Check]:
    try:
        space = os.statvfs(workspace.SHM)
    except OSError as error:
        detail = f"{workspace.SHM}: {error.strerror}; rings go to the run directory"
        yield Check("shared memory", State.DEGRADED, detail, f"mount -t tmpfs tmpfs {workspace.SHM}")
        return
    free, size = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
    detail = f"{workspace.SHM}: {format_size(free)} of {format_size(size)} free"
    if not os.access(workspace.SHM, os.W_OK | os.X_OK):
        yield Check(
            "shared memory",
            State.DEGRADED,
            f"{detail}, not writable: rings go to the run directory",
            f"ls -ld {workspace.SHM}",
        )
    elif free < _SMALL_SHM:
        yield Check("shared memory", State.DEGRADED, f"{detail}: rings are smaller, or go to the run directory",
                    f"mount -o remount,size=1g {workspace.SHM} (docker run --shm-size=1g)")  # fmt: skip
    else:
        yield Check("shared memory", State.OK, detail)


def _leftovers() -> Iterator[Check]:
    for folder in workspace.abandoned():
        if (left := workspace.claim(folder)) is None:
            continue
        run = workspace.run_of(left)
        left.unlock()
        hint = f"efaprof info {run}" if run.is_dir() else f"rm -r {folder}"
        yield Check(
            "leftover rings", State.DEGRADED, f"{folder} holds the rings of a recorder that was killed; run {run}", hint
        )


def _our_libraries() -> Iterator[Check]:
    try:
        core = native.lib_path()
        clock = Clock(native.clock_id()).name
    except EfaprofError as error:
        yield Check("trace core", State.NO, error.message, error.hint or "")
        return
    yield Check("trace core", State.OK, f"{core} loads, and stamps events with {clock}")
    interposer = core.with_name(INTERPOSER)
    if interposer.is_file():
        yield Check("libfabric interposer", State.OK, f"{interposer} is there")
    else:
        yield Check(
            "libfabric interposer",
            State.NO,
            f"{interposer} was not built",
            "apt install libfabric-dev; pip install --force-reinstall efaprof",
        )
    yield _nvtx(core.with_name(NVTX_LIBRARY))


def _nvtx(library: Path) -> Check:
    if not library.is_file():
        return Check("NVTX injection", State.NO, f"{library} was not built", "pip install --force-reinstall efaprof")
    users = os.environ.get(NVTX_INJECTION, "")
    more = f", and hands on to {users} ({NVTX_INJECTION})" if users and Path(users).name != library.name else ""
    return Check("NVTX injection", State.OK, f"{library} is there{more}")


def _libfabric() -> Iterator[Check]:
    libraries = find_libfabrics()
    if not libraries:
        yield Check("libfabric", State.NO, "the loader finds no libfabric.so.1, and no wheel here brings one",
                    "apt install libfabric1 (or pip install mpich, which brings one)")  # fmt: skip
    for library in libraries:
        if library.problem:
            yield Check(
                "libfabric",
                State.DEGRADED,
                f"{library.path} {library.version}: {library.problem}",
                f"ldd {library.path}",
            )
        else:
            node = readiness.newest_node(Path(library.path))
            detail = f"{library.path} {library.version} ({node}) offers {', '.join(library.providers)}"
            yield Check("libfabric", State.OK, detail)


def _rdma() -> Iterator[Check]:
    folder = nic.SYSFS / "class" / "infiniband"
    devices = sorted(folder.iterdir()) if folder.is_dir() else []
    drivers = {device.name: (device / "device" / "driver").resolve().name for device in devices}
    efa = [name for name, driver in drivers.items() if driver == "efa"]
    if efa:
        yield Check("EFA devices", State.OK, f"{', '.join(efa)} (driver efa under {folder})")
    else:
        yield Check(
            "EFA devices",
            State.NO,
            f"no device with the driver efa under {folder}",
            "modprobe efa, on an instance type with EFA",
        )
    if devices:
        counted = [device.name for device in nic.find_devices() if device.name.split("/")[0] in drivers]
        state = State.OK if counted else State.DEGRADED
        yield Check(
            "RDMA counters",
            state,
            f"readable for {', '.join(counted) or 'none'} of {', '.join(drivers)}",
            "" if counted else f"ls -l {folder}/*/ports/1/hw_counters",
        )
    else:
        yield Check(
            "RDMA counters",
            State.NO,
            f"{folder} has no devices",
            "modprobe ib_uverbs; lspci | grep -i -e ethernet -e infiniband",
        )


def _nics() -> Iterator[Check]:
    devices = nic.find_devices()
    rates = [
        f"{device.name} ({device.rate_bytes_s * 8 / 1e9:g} Gb/s)"
        if device.rate_bytes_s
        else f"{device.name} (rate unknown)"
        for device in devices
    ]
    known = any(device.rate_bytes_s for device in devices)
    detail = f"counters of {', '.join(rates)}" if rates else "no counters"
    yield Check(
        "NIC line rate", State.OK if known else State.DEGRADED, detail, "" if known else "cat /sys/class/net/*/speed"
    )


def _scheduler() -> Iterator[Check]:
    if cpu.has_run_delay():
        yield Check("run-queue delay", State.OK, "/proc/self/schedstat is readable")
    else:
        yield Check(
            "run-queue delay", State.NO, "/proc/self/schedstat is not readable", "boot a kernel with CONFIG_SCHED_INFO"
        )


def _gpu() -> Iterator[Check]:
    devices = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    if devices:
        yield Check("NVIDIA GPU", State.OK, f"{len(devices)} device files: /dev/{', /dev/'.join(devices[:8])}")
    else:
        yield Check("NVIDIA GPU", State.NO, "no /dev/nvidia0", "nvidia-smi; in a container: docker run --gpus all")
    compiler = shutil.which("nvcc") or next(
        (f"{home}/bin/nvcc" for home in _cuda_homes() if Path(home, "bin", "nvcc").exists()), None
    )
    if compiler:
        yield Check("nvcc", State.OK, f"{compiler} {_output_number(compiler, '--version', r'release ([0-9.]+)')}")
    else:
        yield Check(
            "nvcc", State.NO, f"not on PATH nor under {', '.join(_CUDA_HOMES)}", "apt install nvidia-cuda-toolkit"
        )
    cupti = [path for home in _cuda_homes() for path in Path(home).glob("**/libcupti.so.*") if path.is_file()]
    if cupti:
        yield Check("CUPTI", State.OK, str(min(cupti, key=lambda path: len(path.parts))))
    else:
        yield Check(
            "CUPTI",
            State.NO,
            f"no libcupti.so under {', '.join(_cuda_homes()) or 'CUDA_HOME'}",
            "apt install libcupti-dev",
        )
    headers = [path for home in _cuda_homes() if (path := Path(home, "include", "nvtx3", "nvToolsExt.h")).exists()]
    yield _module("nvtx", "nvtx", extra=f"; header {headers[0]}" if headers else "")


def _tools() -> Iterator[Check]:
    spy = pyspy.find_program()
    if spy is None:
        yield Check("py-spy", State.NO, "not on PATH: no --python", pyspy.INSTALL)
    else:
        yield _ptrace(spy)
    for module in ("perfetto", "viztracer", "wasmtime"):
        yield _module(module, module)


def _ptrace(spy: Path) -> Check:
    try:
        scope = int(_PTRACE_SCOPE.read_text())
    except OSError:
        scope = 0  # no Yama: the classic rule, same user
    # py-spy runs as our child and looks at a sibling: from scope 1 on that needs privileges.
    if scope == 0 or (os.geteuid() == 0 and scope < 3):
        return Check("py-spy", State.OK, f"{spy}, ptrace_scope {scope}")
    return Check("py-spy", State.DEGRADED, f"{spy}, but ptrace_scope is {scope}: it may not look at the program",
                 pyspy.ALLOW)  # fmt: skip


def _module(check: str, module: str, *, extra: str = "") -> Check:
    if importlib.util.find_spec(module) is None:
        return Check(check, State.NO, f"no Python module {module}{extra}", f"pip install {module}")
    try:
        version = metadata.version(module)
    except metadata.PackageNotFoundError:
        version = "of unknown version"
    return Check(check, State.OK, f"Python module {module} {version}{extra}")


def _cuda_homes() -> list[str]:
    chosen = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    return [home for home in dict.fromkeys((*chosen, *_CUDA_HOMES)) if Path(home).is_dir()]


def _output_number(program: str, option: str, pattern: str) -> str:
    try:
        output = subprocess.run([program, option], capture_output=True, timeout=20, check=False).stdout.decode(
            errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"({option} failed: {error})"
    found = re.search(pattern, output)
    return found[1] if found else "(version unknown)"
