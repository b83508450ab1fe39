"""Which probes can record this command on this machine, and why the others cannot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from efaprof.errors import RecordError, UsageError
from efaprof.session import cpu, cuda, nic, pyspy
from efaprof.session.elf import inspect
from efaprof.session.probes import CUPTI_LIBRARY, NVTX_LIBRARY, ProbeName
from efaprof.trace.manifest import Probe, ProbeState

if TYPE_CHECKING:
    from pathlib import Path

    from efaprof.session.elf import Program

NOT_ASKED_FOR = "not asked for"
_ASK = {ProbeName.PYTHON: "--python"}  # where another option than --probes asks for a probe


@dataclass(frozen=True, slots=True)
class Plan:
    """What will record."""

    probes: tuple[Probe, ...]
    nics: tuple[nic.Device, ...]
    cgroup: cpu.Cgroup | None
    preload: tuple[Path, ...]
    nvtx: Path | None = None  # library for NVTX to load
    cuda: Path | None = None  # library for the CUDA driver to load; preloaded too

    def records(self, name: ProbeName) -> bool:
        """The probe is on, if only in part."""
        return any(probe.name == name and probe.state != ProbeState.OFF for probe in self.probes)


def make_plan(
    program: Program,
    *,
    selected: frozenset[ProbeName],
    required: frozenset[ProbeName],
    interposer: Path,
    libfabric: Path | None = None,
    cuda_detail: str = cuda.AUTO,
) -> Plan:
    """The plan for `program`; RecordError when a required probe would not be fully on."""
    if libfabric is not None:
        _check_libfabric(libfabric)
    devices = nic.find_devices() if ProbeName.NIC in selected else ()
    cgroup = cpu.find_cgroup() if ProbeName.CPU in selected else None
    probes = tuple(
        _judge(name, program, interposer, devices, cgroup, cuda_detail)
        if name in selected
        else Probe(name, ProbeState.OFF, NOT_ASKED_FOR, _ASK.get(name, f"--probes {name}"))
        for name in ProbeName
    )
    for probe in probes:
        if probe.name in required and probe.state != ProbeState.ON:
            raise RecordError(f"the required probe {probe.name} cannot work: {probe.reason}", hint=probe.hint or None)
    plan = Plan(probes, devices, cgroup, ())
    preload = [interposer] if plan.records(ProbeName.LIBFABRIC) else []
    nvtx = interposer.with_name(NVTX_LIBRARY) if plan.records(ProbeName.NVTX) else None
    cupti = interposer.with_name(CUPTI_LIBRARY) if plan.records(ProbeName.CUDA) else None
    everything = [*preload, *([cupti] if cupti else []), *([libfabric] if libfabric else [])]
    return replace(plan, preload=tuple(everything), nvtx=nvtx, cuda=cupti)


def _judge(
    name: ProbeName,
    program: Program,
    interposer: Path,
    devices: tuple[nic.Device, ...],
    cgroup: cpu.Cgroup | None,
    cuda_detail: str,
) -> Probe:
    match name:
        case ProbeName.LIBFABRIC:
            return _libfabric(program, interposer)
        case ProbeName.NIC:
            return _nic(devices)
        case ProbeName.NVTX:
            return _nvtx(interposer.with_name(NVTX_LIBRARY))
        case ProbeName.CUDA:
            return cuda.judge(interposer.with_name(CUPTI_LIBRARY), cuda_detail)
        case ProbeName.CPU:
            return _cpu(cgroup)
        case ProbeName.PYTHON:
            return _python()


def _check_libfabric(path: Path) -> None:
    elf = inspect(path).elf
    if elf is None or elf.bits != 64:
        what = "is not a 64-bit shared library" if path.is_file() else "does not exist"
        raise UsageError(f"--libfabric {path} {what}", hint="efaprof doctor lists the libfabrics of this machine")


def _libfabric(program: Program, interposer: Path) -> Probe:
    name = ProbeName.LIBFABRIC
    if not interposer.is_file():
        return Probe(
            name, ProbeState.OFF, f"{interposer} was not built", "install libfabric-dev and build again: pip install ."
        )
    if program.elf is not None and program.elf.is_foreign:
        # Preloading there makes the loader complain on the program's stderr, or refuse to start it.
        return Probe(name, ProbeState.OFF, program.obstacle, "build the program for glibc on this processor")
    if program.obstacle:
        return Probe(
            name,
            ProbeState.DEGRADED,
            f"{program.obstacle}: LD_PRELOAD reaches only the programs that it starts",
            "link it dynamically; record a set-user-ID program as its owner",
        )
    return Probe(name, ProbeState.ON)


def _nic(devices: tuple[nic.Device, ...]) -> Probe:
    name = ProbeName.NIC
    if not devices:
        return Probe(
            name, ProbeState.OFF, "no NIC counters under /sys/class/infiniband or /sys/class/net", "ls /sys/class/net"
        )
    rates = [device.name for device in devices if device.rate_bytes_s is None and device.name != "lo"]
    unknown = f"; line rate unknown for {', '.join(rates)}" if rates else ""
    return Probe(name, ProbeState.ON, f"counters of {', '.join(device.name for device in devices)}{unknown}")


def _nvtx(library: Path) -> Probe:
    if not library.is_file():
        return Probe(ProbeName.NVTX, ProbeState.OFF, f"{library} was not built", "build again: pip install .")
    return Probe(ProbeName.NVTX, ProbeState.ON)


def _cpu(cgroup: cpu.Cgroup | None) -> Probe:
    name = ProbeName.CPU
    has_throttling = cgroup is not None and bool(cgroup.throttled_files())
    if cpu.has_run_delay():
        note = "" if has_throttling else "no cgroup with a CPU quota account: throttling is not sampled"
        return Probe(name, ProbeState.ON, note)
    reason = "this kernel keeps no run-queue delay (/proc/self/schedstat)"
    hint = "needs a kernel with CONFIG_SCHED_INFO"
    return Probe(name, ProbeState.DEGRADED if has_throttling else ProbeState.OFF, reason, hint)


def _python() -> Probe:
    name = ProbeName.PYTHON
    if pyspy.find_program() is None:
        return Probe(name, ProbeState.OFF, "py-spy is not on PATH", pyspy.INSTALL)
    return Probe(name, ProbeState.ON, "stacks sampled by py-spy")
