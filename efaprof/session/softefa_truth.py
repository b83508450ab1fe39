"""The emulated device's own log: what it did with each operation, and when. Mirrors native/softefa/truth.h."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING

import numpy as np

from efaprof.errors import TraceError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt
    import polars as pl

MAGIC = b"EFAFSET1"
VERSION = 1
HEADER_BYTES = 4096
HEADER = np.dtype(
    [
        ("magic", "S8"), ("version", "<u4"), ("record_bytes", "<u4"), ("started_monotonic_ns", "<i8"),
        ("started_realtime_ns", "<i8"), ("dropped", "<u8"), ("records", "<u8"), ("config", "S1024"),
        ("reserved", "V3024"),
    ]
)  # fmt: skip
RECORD = np.dtype(
    [
        ("seq", "<u8"), ("doorbell_ns", "<i8"), ("start_ns", "<i8"), ("due_ns", "<i8"), ("delivered_ns", "<i8"),
        ("rx_cqe_ns", "<i8"), ("cqe_ns", "<i8"), ("bytes", "<u4"), ("packets", "<u4"), ("src_device", "<u2"),
        ("dst_device", "<u2"), ("src_qpn", "<u2"), ("dst_qpn", "<u2"), ("op", "u1"), ("status", "u1"), ("flags", "u1"),
        ("reserved0", "u1"), ("imm", "<u4"), ("req_id", "<u2"), ("rnr", "<u2"), ("retransmits", "<u4"),
        ("reserved1", "<u8"),
    ]
)  # fmt: skip


class Op(IntEnum):
    """What the operation was."""

    SEND = 0
    READ = 1
    WRITE = 2


class Flag(IntFlag):
    """What else is known of it."""

    IMM = 1
    UNSOLICITED = 2
    INLINE = 4
    CORRUPTED = 8
    DETOUR = 16


@dataclass(frozen=True, slots=True)
class TruthLog:
    """A log that was read: `records` in the order in which operations ended, times in CLOCK_MONOTONIC ns (0: never)."""

    records: npt.NDArray[np.void]
    config: dict[str, float]
    started_monotonic_ns: int
    started_realtime_ns: int
    dropped: int  # records that the device could not keep

    def table(self) -> pl.DataFrame:
        """The records as a table, one row an operation, with a `step`-free schema: the columns of RECORD."""
        import polars as pl

        names = [name for name in RECORD.names or () if not name.startswith("reserved")]
        return pl.DataFrame({name: np.ascontiguousarray(self.records[name]) for name in names})


def read_truth(path: Path) -> TruthLog:
    """The log at `path`, also of a device that still runs or was killed (whole records only); TraceError names it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(
            f"{path} cannot be read: {error.strerror}", hint="efaprof softefa --truth FILE writes one"
        ) from error
    if len(data) < HEADER_BYTES or data[: len(MAGIC)] != MAGIC:
        raise TraceError(
            f"{path} is no truth log of the emulated device", hint="efaprof softefa --truth FILE writes one"
        )
    header = np.frombuffer(data, HEADER, count=1)[0]
    version, record_bytes = int(header["version"]), int(header["record_bytes"])
    if version != VERSION or record_bytes != RECORD.itemsize:
        raise TraceError(
            f"{path} is truth log version {version} with records of {record_bytes} bytes,"
            f" this efaprof reads version {VERSION}",
            hint="read it with the efaprof that wrote it",
        )
    whole = (len(data) - HEADER_BYTES) // RECORD.itemsize
    config = dict(item.split("=") for item in header["config"].decode("ascii").split(","))
    return TruthLog(
        np.frombuffer(data, RECORD, count=whole, offset=HEADER_BYTES),
        {key: float(value) for key, value in config.items()},
        int(header["started_monotonic_ns"]),
        int(header["started_realtime_ns"]),
        int(header["dropped"]),
    )
