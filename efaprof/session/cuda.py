"""The CUDA probe: whether this machine has a GPU, and what its driver and CUPTI are told."""

from __future__ import annotations

import re
from pathlib import Path

from efaprof.errors import UsageError
from efaprof.session.probes import ProbeName
from efaprof.trace.manifest import Probe, ProbeState

OFF, AUTO, GRAPH = "off", "auto", "graph"
WORDS = "off, auto, graph, node or node:N"
_DETAIL = re.compile(r"off|auto|graph|node(:[1-9][0-9]{0,8})?")
_DRIVER = Path("/proc/driver/nvidia/version")
_DEVICE = Path("/dev/nvidiactl")


def parse_detail(text: str) -> str:
    """What `--cuda` asks for, checked."""
    if not _DETAIL.fullmatch(text):
        raise UsageError(f"--cuda {text} is none of {WORDS}", hint="graph is what auto does where there is a GPU")
    return text


def judge(library: Path, detail: str) -> Probe:
    """The probe's state for `detail`; a GPU that is asked for by name need not be seen."""
    name = ProbeName.CUDA
    if detail == OFF:
        return Probe(name, ProbeState.OFF, "not asked for", "--cuda auto")
    if detail == AUTO and not (_DRIVER.exists() or _DEVICE.exists()):
        return Probe(name, ProbeState.OFF, "no NVIDIA GPU on this machine", "--cuda graph")
    if not library.is_file():
        hint = "install the CUDA toolkit (cupti.h) and build again: pip install ."
        return Probe(name, ProbeState.OFF, f"{library} was not built", hint)
    return Probe(name, ProbeState.ON, "CUPTI is looked for when the program starts CUDA")


def told(detail: str) -> str:
    """What the library is told: graph, node or node:N."""
    return GRAPH if detail == AUTO else detail
