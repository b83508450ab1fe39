"""Whether kernels of this machine can post to EFA themselves (EFA-GDA, NCCL's GIN type 5), one row a requirement.

What is required stands in aws-ofi-nccl's getting-started page for GIN: its 1.21 wants the EFA driver 3.3, a libfabric
with the functions built against an rdma-core that has the queues, NCCL 2.31, GDRCopy 2.5, and a GPU driver that maps
device registers. Whether it works shows a run alone: none of it has run on EFA hardware here.
"""

from __future__ import annotations

import json
import mmap
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from efaprof.libfabric.find import candidates, quiet_environment
from efaprof.session.checks import Check, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_TIMEOUT_S = 20
_INSTALLER = (
    "curl -O https://efa-installer.amazonaws.com/aws-efa-installer-latest.tar.gz;"
    " tar xf aws-efa-installer-latest.tar.gz; cd aws-efa-installer; sudo ./efa_installer.sh -y"
)
_DRIVER = (3, 3)
_NCCL = (2, 31)
_GDRCOPY = (2, 5)
_QUEUES, _COUNTERS = b"EFA_1.4\0", b"EFA_1.7\0"  # version nodes of libefa: rdma-core 59 and 65
_GIN_TABLE = b"ncclGinPlugin_v14\0"  # aws-ofi-nccl 1.21's table for EFA-GDA
_LIBRARIES = ("/opt/amazon/efa/lib64", "/opt/amazon/efa/lib", "/opt/amazon/ofi-nccl/lib",
              "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu", "/opt/aws-ofi-nccl/lib", "/usr/local/lib", "/usr/lib64",
              "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    """Where to look: the file system's root, and environments whose packages count too."""

    root: Path = Path("/")
    prefixes: tuple[Path, ...] = (Path(sys.prefix),)

    def text(self, path: str) -> str | None:
        """A file's text, or None."""
        try:
            return (self.root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def library(self, pattern: str, wheel: str = "") -> Path | None:
        """The first library of this name where the loader or an installer puts it, or a wheel (`wheel` below lib/)."""
        for folder in _LIBRARIES:
            if found := sorted((self.root / folder.lstrip("/")).glob(pattern)):
                return found[-1]
        for prefix in self.prefixes:
            if wheel and (found := sorted(prefix.glob(f"lib/python3*/site-packages/{wheel}/{pattern}"))):
                return found[-1]
        return None


def gdaki(machine: Machine | None = None) -> Iterator[Check]:
    """One row a requirement, from the device up to NCCL."""
    here = machine or Machine()
    yield _driver(here)
    yield _rdma_core(here)
    yield _libfabric(candidates())
    yield _plugin(here)
    yield _nccl(here)
    yield _gdrcopy(here)
    yield _gpu_driver(here)


def _driver(machine: Machine) -> Check:
    text = machine.text("/sys/module/efa/version")
    if text is None:
        return Check("gdaki: EFA driver", State.NO, "the kernel module efa is not loaded", "sudo modprobe efa")
    return _by_version("gdaki: EFA driver", f"module efa {text.strip()}", text, _DRIVER, _INSTALLER)


def _by_version(name: str, detail: str, text: str, least: tuple[int, int], hint: str) -> Check:
    found = re.search(r"(\d+)\.(\d+)", text)
    if found and (int(found[1]), int(found[2])) >= least:
        return Check(name, State.OK, detail)
    return Check(name, State.NO, f"{detail}: {least[0]}.{least[1]} or later is needed", hint)


def _rdma_core(machine: Machine) -> Check:
    name = "gdaki: rdma-core"
    library = machine.library("libefa.so.1")
    if library is None:
        return Check(name, State.NO, "no libefa.so.1", "apt install ibverbs-providers")
    has = [node for node in (_QUEUES, _COUNTERS) if _holds(library, node)]
    if _QUEUES not in has:
        return Check(name, State.NO, f"{library} does not tell where queues lie: 59 or later is needed", _INSTALLER)
    if _COUNTERS not in has:
        detail = f"{library} tells where queues lie, but has no completion counters (65 and later)"
        return Check(name, State.DEGRADED, detail, _INSTALLER)
    return Check(name, State.OK, f"{library} tells where queues lie, and has completion counters")


def _holds(library: Path, text: bytes) -> bool:
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(text) >= 0
    except (OSError, ValueError):
        return False


def _libfabric(paths: Iterable[str]) -> Check:
    """The libfabric that gives the most: each is asked, by opening efa-direct and cntr_open_ext."""
    name, best = "gdaki: libfabric", ""
    for path in paths:
        answer = _ask(path)
        if answer.get("has_counters"):
            return Check(name, State.OK, f"{path} {answer['version']} has the GDA functions, cntr_open_ext too")
        if answer.get("has_ops"):
            best = f"{path} {answer['version']} has the GDA functions, but cntr_open_ext is not built in"
        elif answer.get("has_device") and not best:
            best = f"{path} {answer['version']} has efa-direct, but no GDA functions"
    if " has the GDA" in best:
        return Check(name, State.DEGRADED, best, _INSTALLER)
    if best:
        return Check(name, State.NO, best, _INSTALLER)
    detail = "no libfabric here offers efa-direct, so none can be asked for the GDA functions"
    return Check(name, State.NO, detail, "efaprof softefa -- efaprof doctor (asks on an emulated device)")


def _ask(path: str) -> dict[str, object]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "efaprof.libfabric.gda", path], capture_output=True, timeout=_TIMEOUT_S,
            check=False, env=quiet_environment(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {}
    answers = [line for line in done.stdout.decode(errors="replace").splitlines() if line.startswith("{")]
    return dict(json.loads(answers[-1])) if answers else {}


def plugin(machine: Machine) -> Path | None:
    """NCCL's plugin for libfabric."""
    return machine.library("libnccl-net-ofi.so") or machine.library("libnccl-net.so")


def nccl(machine: Machine) -> Path | None:
    """NCCL itself."""
    return machine.library("libnccl.so.2", wheel="nvidia/nccl/lib")


def newest_node(library: Path) -> str:
    """The highest version node of a libfabric, which says what programs may ask of it; "" when there is none."""
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            nodes = {int(number) for number in re.findall(rb"\0FABRIC_1\.(\d+)(?=\0)", data)}
    except (OSError, ValueError):
        return ""
    return f"FABRIC_1.{max(nodes)}" if nodes else ""


def _plugin(machine: Machine) -> Check:
    name = "gdaki: aws-ofi-nccl"
    library = plugin(machine)
    if library is None:
        return Check(name, State.NO, "no libnccl-net-ofi.so nor libnccl-net.so", _INSTALLER)
    if _holds(library, _GIN_TABLE):
        return Check(name, State.OK, f"{library} has GIN tables for kernels (type 5)")
    return Check(name, State.NO, f"{library} has no GIN table for kernels: 1.21 or later is needed", _INSTALLER)


def _nccl(machine: Machine) -> Check:
    name = "gdaki: NCCL"
    library = nccl(machine)
    if library is None:
        return Check(name, State.NO, "no libnccl.so.2", "pip install nvidia-nccl-cu13")
    version = _first(library, rb"NCCL version (\d+\.\d+\.\d+)")
    return _by_version(name, f"{library} {version or 'of unknown version'}", version, _NCCL,
                       "pip install -U nvidia-nccl-cu13")  # fmt: skip


def _first(library: Path, pattern: bytes) -> str:
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = re.search(pattern, data)
            return found[1].decode() if found else ""
    except (OSError, ValueError):
        return ""


def _gdrcopy(machine: Machine) -> Check:
    name = "gdaki: GDRCopy"
    library = machine.library("libgdrapi.so.2.*") or machine.library("libgdrapi.so.2")
    if library is None:
        return Check(name, State.NO, "no libgdrapi.so.2", "apt install gdrcopy")
    version = library.resolve().name.removeprefix("libgdrapi.so.")
    check = _by_version(name, f"{library}", version, _GDRCOPY, "apt install --only-upgrade gdrcopy")
    if check.state is State.OK and not (machine.root / "dev/gdrdrv").exists():
        return Check(name, State.DEGRADED, f"{library}, but no /dev/gdrdrv", "sudo modprobe gdrdrv")
    return check


def _gpu_driver(machine: Machine) -> Check:
    name = "gdaki: NVIDIA driver"
    if machine.text("/proc/driver/nvidia/version") is None:
        return Check(name, State.NO, "no NVIDIA driver (/proc/driver/nvidia/version)", "nvidia-smi")
    if "PeerMappingOverride=1" in (machine.text("/proc/driver/nvidia/params") or ""):
        return Check(name, State.OK, "kernels may map the device's registers (PeerMappingOverride=1)")
    hint = """echo 'options nvidia NVreg_RegistryDwords="PeerMappingOverride=1;"' > /etc/modprobe.d/efa-gda.conf"""
    detail = "PeerMappingOverride=1 is not set: kernels cannot ring a NIC's doorbell"
    return Check(name, State.NO, detail, f"{hint}; reboot")
