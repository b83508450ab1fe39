"""An unmodified libfabric program under record, on this machine's own libfabric."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from recording import EFAPROF, efaprof, manifest, wait_until, written

from efaprof import native
from efaprof.errors import EfaprofError
from efaprof.trace.layout import Shape


def has_interposer() -> bool:
    try:
        return native.lib_path("libefaprof-fi.so").is_file()
    except EfaprofError:
        return False


pytestmark = [
    pytest.mark.skipif(not shutil.which("fi_pingpong"), reason="no fi_pingpong: apt install libfabric-bin"),
    pytest.mark.skipif(not has_interposer(), reason="libefaprof-fi.so is not built (libfabric-dev was missing)"),
]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def is_listening(port: int) -> bool:
    wanted = f":{port:04X} "
    lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return any(wanted in line and line.split()[3] == "0A" for line in lines)


@pytest.mark.parametrize("type_", ["rdm", "msg"])
def test_both_ends_of_a_ping_pong_are_recorded(tmp_path, type_):
    port = str(free_port())
    common = ["fi_pingpong", "-p", "tcp", "-e", type_, "-I", "20", "-S", "1024"]
    server = subprocess.Popen(
        [*EFAPROF, "record", "-o", "server", "--", *common, "-B", port], cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    with server:
        wait_until(lambda: is_listening(int(port)))
        client = efaprof("record", "-o", "client", "--", *common, "-P", port, "127.0.0.1", cwd=tmp_path)
        _, said = server.communicate(timeout=60)
    assert (client.returncode, server.returncode) == (0, 0), client.stderr
    assert client.stdout.startswith("bytes"), "the program's own table"
    assert b"of 1 process, 0 dropped" in said
    for name in ("server", "client"):
        found = written(tmp_path / name)
        assert {Shape.OP, Shape.CQ, Shape.OBJECT, Shape.NAME, Shape.THREAD} <= found.kinds["fi"]
        assert manifest(tmp_path / name)["warnings"] == []
    assert max(written(tmp_path / "client").counters["nic.lo.tx_bytes"]) > 20 * 1024


@pytest.mark.parametrize("way", ["option", "variable"])
def test_a_libfabric_of_the_users_choice_is_what_the_program_loads(tmp_path, way):
    system = next(Path(line.split()[-1]) for line in _cached_libraries() if "libfabric.so.1 " in line)
    chosen = tmp_path / "libfabric.so.1"
    shutil.copy(system, chosen)
    code = "import ctypes; ctypes.CDLL('libfabric.so.1').fi_version();"
    code += "print([line.split()[-1] for line in open('/proc/self/maps') if 'libfabric' in line][0])"
    option = ("--libfabric", chosen) if way == "option" else ()
    variable = {"EFAPROF_LIBFABRIC": str(chosen)} if way == "variable" else {}
    done = efaprof("record", "-q", "-o", "r", *option, "--", sys.executable, "-c", code, cwd=tmp_path, env=variable)
    assert done.stdout == f"{chosen}\n"


def _cached_libraries() -> list[str]:
    return subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout.splitlines()
