"""What is set around a program: variables that have no effect, NUMA nodes, the size of rings for a rate."""

from __future__ import annotations

import math
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from efaprof.session.checks import Check, State
from efaprof.session.drain import FASTEST_S, SLOWEST_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# No version ever read these: they come from talks, branches that were not merged, and each other's notes.
NEVER_READ = ("OFI_NCCL_GIN_GDAKI", "OFI_NCCL_GIN_MAX_REQUESTS")
_BYTES_AN_OPERATION = 128  # two slots of its call, two of a read that finds one completion
# libfabric keeps FI_EFA_TX_SIZE as "efa" and "tx_size".
_OWNERS = ("efa", "tcp", "udp", "shm", "sm2", "verbs", "sockets", "ofi_rxm", "ofi_rxd", "ofi_mrail", "lnx", "opx",
           "psm2", "psm3", "net", "usnic", "hook", "mr", "util", "cxi", "ucx")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads variables that begin so, and the libraries in which their names must stand."""

    name: str
    prefix: str
    libraries: tuple[Path, ...]


def settings(environment: Mapping[str, str], readers: Iterable[Reader]) -> Check:
    """One row: the variables that have no effect, by name and why."""
    idle: dict[str, str] = {}
    known = 0
    for reader in readers:
        names = sorted(name for name in environment if name.startswith(reader.prefix))
        for name in names:
            if name in NEVER_READ:
                idle[name] = "no version reads it"
            elif name not in idle and reader.libraries and not any(_reads(one, name) for one in reader.libraries):
                idle[name] = f"{reader.name} here does not read it"
            else:
                known += 1
    if not idle:
        detail = f"{known} variables of libfabric and NCCL are set" if known else "none of libfabric and NCCL is set"
        return Check("variables", State.OK, detail)
    said = ", ".join(f"{name} ({why})" for name, why in sorted(idle.items()))
    return Check("variables", State.DEGRADED, f"without effect: {said}", f"unset {' '.join(sorted(idle))}")


def _reads(library: Path, name: str) -> bool:
    """Whether the variable's name stands in the library, whole or as libfabric keeps it."""
    spellings = [name.encode()]
    if name.startswith("FI_"):
        rest = name.removeprefix("FI_").lower()
        spellings += [f"\0{rest}\0".encode()]
        spellings += [f"\0{rest[len(owner) + 1 :]}\0".encode() for owner in _OWNERS if rest.startswith(f"{owner}_")]
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return any(data.find(spelling) >= 0 for spelling in spellings)
    except (OSError, ValueError):
        return True  # what cannot be read is not blamed


def numa(root: Path = Path("/")) -> Iterator[Check]:
    """One row: which node each NIC and GPU is on, and whether this process may run on several."""
    system = root / "sys"
    nodes = sorted(path.name.removeprefix("node") for path in (system / "devices/system/node").glob("node[0-9]*"))
    where = [f"{device.name} on {node}" for device, node in _placed(system)]
    detail = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}" + (f"; {', '.join(where)}" if where else "")
    if len(nodes) < 2:
        yield Check("NUMA", State.OK, detail)
        return
    allowed = _nodes_of(os.sched_getaffinity(0), system)
    if len(allowed) == 1:
        yield Check("NUMA", State.OK, f"{detail}; this process runs on node {next(iter(allowed))}")
        return
    hint = f"numactl --cpunodebind={nodes[0]} efaprof record -- CMD (the node of its NIC)"
    yield Check("NUMA", State.DEGRADED, f"{detail}; this process may move between them", hint)


def _placed(system: Path) -> list[tuple[Path, str]]:
    found = []
    for pattern in ("class/infiniband/*", "class/net/*", "class/drm/card[0-9]*"):
        for device in sorted(system.glob(pattern)):
            try:
                node = (device / "device" / "numa_node").read_text().strip()
            except OSError:
                continue
            if node != "-1" and "-" not in device.name:
                found.append((device, node))
    return found


def _nodes_of(cpus: set[int], system: Path) -> set[str]:
    return {
        node.name.removeprefix("node")
        for node in (system / "devices/system/node").glob("node[0-9]*")
        if any((node / f"cpu{cpu}").exists() for cpu in cpus)
    }


def ring_time(rate_ops_s: float, buffer_bytes: int) -> Check:
    """One row: how long a thread's ring lasts at this rate if nobody empties it."""
    seconds = buffer_bytes / (rate_ops_s * _BYTES_AN_OPERATION)
    detail = (
        f"{buffer_bytes / (1 << 20):g} MiB last {seconds * 1e3:,.0f} ms at {rate_ops_s:,.0f} operations/s of one"
        f" thread; record looks every {SLOWEST_S * 1e3:.0f} ms, and every {FASTEST_S * 1e3:.0f} ms while they fill"
    )
    if seconds >= SLOWEST_S:
        return Check("time to a full ring", State.OK, detail)
    needed = math.ceil(SLOWEST_S * rate_ops_s * _BYTES_AN_OPERATION / (1 << 20))
    return Check("time to a full ring", State.DEGRADED, f"{detail}: a sudden burst loses records",
                 f"efaprof record --buffer {1 << (needed - 1).bit_length()}MiB -- CMD")  # fmt: skip
