"""Raw files as numpy arrays, read without the reader that is under test elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from efaprof import native
from efaprof.trace import layout
from efaprof.trace.layout import Shape

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True)
class RawFile:
    """One ring's records; every slot belongs to one."""

    header: np.void
    slots: NDArray[np.uint8]  # (n, 32)
    starts: NDArray[np.int64]  # first slot of each record

    @property
    def producer(self) -> str:
        """Which library wrote it."""
        return bytes(self.header["producer"]).decode()


def read_raw(path: Path) -> RawFile:
    """A whole raw file; fails when something in it is no record."""
    raw = np.fromfile(path, np.uint8)
    header = raw[: layout.HEADER_BYTES].view(layout.HEADER)[0]
    slots = raw[layout.HEADER_BYTES :].reshape(-1, layout.SLOT_BYTES)[: int(header["head"])]
    assert len(slots) == int(header["head"])
    index = native.index_records(slots)
    assert index.bad_slots == 0
    assert index.next == len(slots)
    return RawFile(header, slots, index.starts.astype(np.int64))


def raw_files(folder: Path, producer: str) -> list[RawFile]:
    """The raw files of a folder that this library wrote."""
    found = [read_raw(path) for path in sorted(folder.glob("*.efr"))]
    return [file for file in found if file.producer == producer]


def of(file: RawFile, shape: Shape) -> NDArray[np.void]:
    """The records of one shape, in the order in which they were written."""
    dtype = layout.RECORDS[shape]
    starts = file.starts[_shapes(file) == shape]
    rows = file.slots[starts[:, None] + np.arange(dtype.itemsize // layout.SLOT_BYTES)]
    return np.ascontiguousarray(rows).reshape(len(starts), dtype.itemsize).view(dtype).reshape(-1)


def names_of(file: RawFile) -> dict[int, str]:
    """Text of each NAME id."""
    names = {}
    for start in file.starts[_shapes(file) == Shape.NAME]:
        length = int(file.slots[start].view(layout.NAME)[0]["x"])
        text = file.slots[start + 1 : start + 1 + -(-length // layout.SLOT_BYTES)].tobytes()[:length]
        names[layout.name_id(text)] = text.decode()
    return names


def _shapes(file: RawFile) -> NDArray[np.uint8]:
    return file.slots[file.starts, 13]
