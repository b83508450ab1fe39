"""A program that hands a device's queues to a kernel, recorded: the fake's table, and libfabric's own efa-direct."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from recording import efaprof

from efaprof.libfabric.find import ask

NOTES = [
    ("kernel-posted path opened", 1),
    ("work queues of an endpoint given to a kernel", 1),
    ("completion queue given to a kernel", 1),
]


def notes_of(run: Path) -> list[tuple[str, int]]:
    """What the interposer noted, beside which libfabric it saw; the run must say that kernels post."""
    document = json.loads(efaprof("info", "--json", run, cwd=run.parent).stdout)
    assert document["kernel_posted"] is True
    assert any(warning.startswith("kernel-posted path opened") for warning in document["warnings"])
    assert document["operations"]["count"] == 0
    return [(note["text"], note["value"]) for note in document["notes"] if not note["text"].startswith("libfabric ")]


def test_info_says_that_a_kernel_posted_path_was_opened(build_dir: Path, tmp_path: Path):
    env = {"FI_PROVIDER_PATH": str(build_dir / "fakes"), "FI_PROVIDER": "fake", "EFAPROF_LIBFABRIC": ""}
    command = [build_dir / "bin" / "fake_driver", "gda"]
    done = efaprof("record", "-o", "r", "--", *command, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert notes_of(tmp_path / "r") == NOTES
    told = efaprof("info", "r", cwd=tmp_path).stdout
    assert "kernel-posted path opened (1)" in told


def newest_libfabric() -> Path:
    """One whose efa provider has the functions: 2.6 or later, built against rdma-core 59 or later."""
    named = [os.environ.get("EFAPROF_LIBFABRIC", ""), "/opt/amazon/efa/lib64/libfabric.so.1"]
    path = next((Path(name) for name in named if name and Path(name).is_file()), None)
    if path is None:
        pytest.skip("no libfabric >= 2.6 built against rdma-core >= 59: set EFAPROF_LIBFABRIC to one")
    return path


@pytest.mark.slow
def test_efa_direct_of_a_new_libfabric_is_recognised_on_an_emulated_device(build_dir: Path, tmp_path: Path):
    library = newest_libfabric()
    folder = f"{library.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    env = {"LD_LIBRARY_PATH": folder, "FI_PROVIDER": "efa"}
    driver = [build_dir / "bin" / "fake_driver", "gda_real", "1", "efa", "efa-direct"]
    record = [sys.executable, "-m", "efaprof", "record", "-o", tmp_path / "r", "--"]
    done = efaprof("softefa", "--", *record, *driver, cwd=tmp_path, env=env)
    if "fi_getinfo" in done.stderr or "fi_open_ops" in done.stderr:
        pytest.skip(f"{library} ({ask(str(library)).version or 'of unknown version'}) has no GDA functions here")
    assert done.returncode == 0, done.stderr
    # The sizes of EFA's queue entries: the queues that it told of are the device's own.
    assert done.stdout.split() == ["send", "64", "receive", "16", "done", "32", "query_qp_wqs", "libefaprof-fi.so"]
    assert notes_of(tmp_path / "r") == NOTES
