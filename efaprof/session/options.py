"""What `efaprof record` was asked for."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from efaprof.session.hooking import Entry
from efaprof.session.probes import DEFAULT_PROBES, ProbeName

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEFAULT_MAX_SIZE = 4 << 30
DEFAULT_NIC_INTERVAL_S = 0.01
DEFAULT_HZ = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """A command and how to record it."""

    argv: tuple[str, ...]
    output: Path | None = None
    force: bool = False
    buffer_bytes: int | None = None  # of one ring; None: EFAPROF_BUFFER, or the library's default
    max_size_bytes: int = DEFAULT_MAX_SIZE  # of the raw files together; the newest records are kept
    duration_s: float | None = None  # stop recording then; the program goes on
    step: str | None = None  # NVTX ranges with such a name are steps too
    steps: int | None = None  # stop recording after so many; the program goes on
    warmup_steps: int = 0  # start recording after so many
    nic_interval_s: float = DEFAULT_NIC_INTERVAL_S
    libfabric: Path | None = None  # the libfabric that the program is to use
    entry: Entry = Entry.AUTO
    probes: frozenset[ProbeName] = DEFAULT_PROBES
    require: frozenset[ProbeName] = frozenset()
    cuda: str = "auto"  # off, auto, graph, node or node:N
    python_hz: float = DEFAULT_HZ  # samples of Python stacks a second, with the probe python
    python_native: bool = False  # native frames too, which stops the program for each sample
    live: bool = False  # draw what is seen so far on the terminal
    refusal_code: int | None = None  # the command ends with it when it does nothing: then nothing is left either
    emulated: tuple[str, ...] = ()  # what of the command is emulated, when the caller knows
    fingerprint: Mapping[str, Any] = field(default_factory=dict)  # of the command; the machine's is added

    def for_manifest(self) -> dict[str, Any]:
        """The options as JSON values; the command and what is known of it stand in the manifest by themselves."""
        values = asdict(self)
        for known in ("argv", "output", "force", "refusal_code", "emulated", "fingerprint"):
            del values[known]
        values["libfabric"] = str(self.libfabric) if self.libfabric else None
        values["probes"], values["require"] = sorted(self.probes), sorted(self.require)
        return values
