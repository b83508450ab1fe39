"""manifest.json: what was recorded, how, and what went wrong; written at start, rewritten at the end."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from efaprof.errors import TraceError
from efaprof.trace.header import FORMAT_VERSION, OLDEST_READABLE

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "efaprof.run/1"
FILE_NAME = "manifest.json"


class ProbeState(StrEnum):
    """Whether a probe recorded."""

    ON = "on"
    OFF = "off"
    DEGRADED = "degraded"


@dataclass(frozen=True, slots=True)
class Probe:
    """One source of records, and why it was off or degraded."""

    name: str
    state: ProbeState
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class DrainCounts:
    """What the drain wrote and could not write; see native/include/efaprof/drain.h."""

    rings: int = 0
    slots: int = 0
    dropped: int = 0
    discarded: int = 0
    write_errors: int = 0
    bad_rings: int = 0
    last_errno: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """The run's own description. Fields that an older efaprof did not write take their defaults."""

    program: str
    command: list[str]
    efaprof_version: str
    started_realtime_ns: int
    format_version: int = FORMAT_VERSION
    schema: str = SCHEMA
    job_id: str | None = None
    rank: int | None = None
    host: str = ""
    boot_id: str = ""
    pid: int = 0
    cpus: int = 0
    cpu_model: str = ""
    clock: str = ""  # "tsc" or "monotonic"
    ended_realtime_ns: int | None = None  # None: the recorder did not live to say
    exit_code: int | None = None
    signal: int | None = None
    probes: list[Probe] = field(default_factory=list)
    emulated: list[str] = field(default_factory=list)  # layers and devices that are emulated, never real
    environment: dict[str, str] = field(default_factory=dict)  # the variables that change the path (FI_*, NCCL_*, …)
    fingerprint: dict[str, Any] = field(default_factory=dict)  # what must be equal for two runs to be comparable
    options: dict[str, Any] = field(default_factory=dict)  # record's own options
    drain: DrainCounts = field(default_factory=DrainCounts)
    event_cost_ns: float | None = None  # of recording one call, measured when recording began
    warnings: list[str] = field(default_factory=list)

    @property
    def is_closed(self) -> bool:
        """The recorder ended in order; else the run was salvaged."""
        return self.ended_realtime_ns is not None

    def write(self, run: Path) -> None:
        """Replace the run's manifest; a reader never sees half of one."""
        draft = run / f".{FILE_NAME}.{os.getpid()}"
        draft.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        draft.replace(run / FILE_NAME)


def read_manifest(run: Path) -> Manifest:
    """Manifest of a run directory; TraceError names the file when it is absent, damaged or of another version."""
    path = run / FILE_NAME
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TraceError(
            f"{run} is not an efaprof run directory: it has no {FILE_NAME}",
            hint="efaprof record -- CMD makes one; give its path",
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TraceError(f"{path} cannot be read: {error}", hint="record again, or restore the file") from error
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        found = raw.get("schema") if isinstance(raw, dict) else type(raw).__name__
        raise TraceError(
            f"{path} has schema {found!r}, this efaprof reads {SCHEMA!r}",
            hint="use the efaprof version named in the file, or record again",
        )
    version = raw.get("format_version")
    if not isinstance(version, int) or not OLDEST_READABLE <= version <= FORMAT_VERSION:
        raise TraceError(
            f"{path} is trace format {version}, this efaprof reads {OLDEST_READABLE}-{FORMAT_VERSION}",
            hint=f"use efaprof {raw.get('efaprof_version', '(unknown)')}, which wrote it, or record again",
        )
    known = {name: raw[name] for name in Manifest.__dataclass_fields__ if name in raw}
    try:
        known["probes"] = [Probe(**{**probe, "state": ProbeState(probe["state"])}) for probe in raw.get("probes", [])]
        known["drain"] = DrainCounts(**raw.get("drain", {}))
        return Manifest(**known)
    except (TypeError, ValueError, KeyError) as error:
        raise TraceError(f"{path} is damaged: {error}", hint="record again, or restore the file") from error
