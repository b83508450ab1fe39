"""Facts about this host and job that stand in the manifest."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from efaprof import env

if TYPE_CHECKING:
    from collections.abc import Mapping

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CPUINFO = Path("/proc/cpuinfo")
CLOCKSOURCE = Path("/sys/devices/system/clocksource/clocksource0")

# Variables that choose or tune the path of an operation, and the ids that launchers give.
_KEPT = re.compile(
    r"(FI|OFI|NCCL|EP|NVSHMEM)_\w+|CUDA_VISIBLE_DEVICES"
    r"|OMPI_COMM_WORLD_\w+|PMIX?_(RANK|SIZE|NAMESPACE|ID)|PALS_\w*ID|MV2_COMM_WORLD_\w+"
    r"|SLURM_(JOB|JOB_ID|JOBID|STEP_ID|STEPID|PROCID|LOCALID|NODEID|NTASKS|NNODES)"
    r"|RANK|LOCAL_RANK|WORLD_SIZE|TORCHELASTIC_RUN_ID"
)
_JOB_IDS = (
    env.JOB_ID, "SLURM_JOB_ID", "SLURM_JOBID", "PMIX_NAMESPACE", "PALS_APID", "PMI_ID", "TORCHELASTIC_RUN_ID",
)  # fmt: skip
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID", "RANK")


@dataclass(frozen=True, slots=True)
class Host:
    """The machine and the boot."""

    name: str
    boot_id: str
    cpus: int  # that this process may use
    cpu_model: str


def describe() -> Host:
    """The host that we run on, as far as it can be read."""
    model = re.search(r"^(?:model name|Model|CPU part)\s*:\s*(.+)$", _text(_CPUINFO), re.MULTILINE)
    return Host(socket.gethostname(), boot_id(), len(os.sched_getaffinity(0)), model[1].strip() if model else "")


def boot_id() -> str:
    """The id of this boot; the same for every process of one host until it restarts."""
    return _text(_BOOT_ID)


def snapshot(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that change what an operation goes through, and launcher ids; never the whole environment."""
    return {name: environment[name] for name in sorted(environment) if _KEPT.fullmatch(name)}


def emulated(environment: Mapping[str, str]) -> list[str]:
    """What the surroundings say is emulated: `efaprof softefa` around the recorder."""
    return [label for label in environment.get(env.EMULATED, "").split(";") if label]


def job_id(environment: Mapping[str, str]) -> str | None:
    """The job that this run belongs to: the user's own name for it, else the launcher's id."""
    return next((environment[name] for name in _JOB_IDS if environment.get(name)), None)


def rank(environment: Mapping[str, str]) -> int | None:
    """Our rank, as the launcher says it."""
    return next((int(environment[name]) for name in _RANKS if environment.get(name, "").isdigit()), None)


def process_start(pid: int) -> int | None:
    """Start time of a process in kernel ticks since boot; None when there is no such process."""
    try:
        return int(
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
        )
    except (OSError, IndexError, ValueError):
        return None


def is_running(pid: int) -> bool:
    """The process exists and has not ended (a zombie has)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in {"Z", "X", "x"}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
