"""libfabric's own efa and efa-direct providers on the emulated device, every byte checked."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from softefa_runs import (
    Libfabric,
    need_program,
    need_softefa,
    on_softefa,
    system_libfabric,
    wheel_folder,
    wheel_libfabric,
)

UNORDERED = "latency=5us,reorder=0.5,spread=20us"
WRONG, ERROR_COMPLETION = 3, 6
# fabric, mode, sizes; 12288 and 65536 take the protocols of several packets, 8928 is efa-direct's largest message
EFA = ("msg", "tagged", "write", "read")
DIRECT = ("msg", "write", "writedata", "read")


@pytest.fixture(params=["system", "wheel"])
def libfabric(request) -> Libfabric:
    return system_libfabric() if request.param == "system" else wheel_libfabric()


@pytest.fixture
def client(build_dir) -> Path:
    need_softefa()
    return need_program(build_dir, "softefa_client")


def sizes_of(fabric: str, mode: str) -> tuple[int, ...]:
    if fabric == "efa-direct":
        return (8, 8928) if mode == "msg" else (8, 8928, 1 << 20)
    return (8, 12288, 65536, 1 << 20)


def run_all(client: Path, libfabric: Libfabric, fabric: str, mode: str, *more: str, emulate: str) -> None:
    sizes = sizes_of(fabric, mode)
    done = on_softefa(
        client, "-f", fabric, "-m", mode, "-s", ",".join(map(str, sizes)), "-n", "4", "-w", "4", *more, emulate=emulate,
        env=libfabric.environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("ok: libfabric")]
    assert len(said) == len(sizes)
    assert all(f", {fabric}, {mode}, {size} bytes, " in line for line, size in zip(said, sizes, strict=True))


def slow(*values: str) -> list[object]:
    """Parameters that only the long form of the suite takes."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.mark.parametrize("mode", EFA)
def test_efa_moves_every_byte_over_paths_that_overtake_each_other(client, libfabric, mode):
    run_all(client, libfabric, "efa", mode, emulate=UNORDERED)


@pytest.mark.parametrize("mode", ["tagged", *slow("msg", "write", "read")])
def test_efa_moves_every_byte(client, libfabric, mode):
    run_all(client, libfabric, "efa", mode, emulate="")


@pytest.mark.parametrize("mode", DIRECT)
def test_efa_direct_moves_every_byte_over_paths_that_overtake_each_other(client, mode):
    run_all(client, wheel_libfabric(), "efa-direct", mode, emulate=UNORDERED)


@pytest.mark.parametrize("mode", DIRECT)
def test_efa_direct_moves_every_byte(client, mode):
    run_all(client, wheel_libfabric(), "efa-direct", mode, emulate="")


def test_shared_payload_takes_the_short_way_and_is_as_whole(client):
    run_all(client, wheel_libfabric(), "efa-direct", "write", "-M", emulate=UNORDERED)


@pytest.mark.parametrize(("fabric", "mode"), [("efa", "tagged"), ("efa-direct", "write")])
def test_completion_events_wake_a_blocked_reader(client, fabric, mode):
    run_all(client, wheel_libfabric(), fabric, mode, "-b", emulate="latency=50us")


@pytest.mark.parametrize("size", [8, 12288])
@pytest.mark.parametrize("mode", ["tagged", *slow("msg")])
def test_a_flipped_bit_is_noticed_on_efa(client, libfabric, mode, size):
    # The provider's greetings arrive whole; where a bit hits a control packet the client waits in vain, and says so.
    done = on_softefa(
        client, "-f", "efa", "-m", mode, "-s", str(size), "-n", "200", emulate="corrupt=0.1,corrupt_after=30",
        env=libfabric.environment,
    )  # fmt: skip
    assert done.returncode != 0
    assert "ok:" not in done.stdout
    assert "corrupted on purpose" in done.stderr


@pytest.mark.parametrize(
    ("mode", "size"), [("msg", 8), ("write", 8), ("write", 1 << 20), ("writedata", 8), ("read", 8)]
)
def test_a_flipped_bit_is_noticed_on_efa_direct(client, mode, size):
    done = on_softefa(
        client, "-f", "efa-direct", "-m", mode, "-s", str(size), "-n", "100", emulate="corrupt=0.1",
        env=wheel_libfabric().environment,
    )  # fmt: skip
    assert done.returncode == WRONG
    assert "round" in done.stderr


@pytest.mark.parametrize("mode", ["msg", *slow("tagged", "read")])
def test_peers_of_a_killed_rank_get_an_error_completion(client, libfabric, mode):
    done = on_softefa(client, "-f", "efa", "-m", mode, "-s", "4096", "-k", "3", env=libfabric.environment)
    assert done.returncode == ERROR_COMPLETION, done.stderr
    assert "error completion" in done.stdout


@pytest.mark.parametrize("mode", ["msg", "write", "writedata", "read"])
def test_peers_of_a_killed_rank_get_an_error_completion_on_efa_direct(client, mode):
    environment = wheel_libfabric().environment
    done = on_softefa(client, "-f", "efa-direct", "-m", mode, "-s", "4096", "-k", "3", env=environment)
    assert done.returncode == ERROR_COMPLETION, done.stderr
    assert "prov_errno 13" in done.stdout  # unresponsive, and it was responsive before


PINGPONG = """
import socket, subprocess, sys, time
from pathlib import Path
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = subprocess.Popen(["fi_pingpong", "-B", str(port), *sys.argv[1:]], stdout=subprocess.DEVNULL)
until = time.monotonic() + 20
listening = f":{port:04X} 00000000:0000 0A"
while listening not in Path("/proc/net/tcp").read_text() and time.monotonic() < until:
    pass
client = subprocess.run(["fi_pingpong", "-P", str(port), *sys.argv[1:], "127.0.0.1"], timeout=30)
sys.exit(client.returncode or server.wait(10))
"""


@pytest.mark.parametrize(("kind", "mode"), [("rdm", "tagged"), ("rdm", "msg"), ("dgram", "msg")])
@pytest.mark.parametrize("emulate", [pytest.param("", marks=pytest.mark.slow, id="in order"), UNORDERED])
def test_fi_pingpong_checks_its_payload_on_efa(kind, mode, emulate):
    need_softefa()
    if shutil.which("fi_pingpong") is None:
        pytest.skip("no fi_pingpong (libfabric-bin)")
    done = on_softefa(
        sys.executable, "-c", PINGPONG, "-p", "efa", "-e", kind, "-m", mode, "-c", "-I", "5", emulate=emulate,
        env={"FI_EFA_RX_SIZE": "256"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # It skips sizes that do not fit, and says nothing of it: what it printed counts.
    sizes = [line.split()[0] for line in done.stdout.splitlines()[1:]]
    assert sizes == (["64", "256", "1k", "4k"] if kind == "dgram" else ["64", "256", "1k", "4k", "64k", "1m"])
    assert done.stdout.count("=5 ") == len(sizes)


MPI = """
import sys
import numpy as np
from mpi4py import MPI
world, rank, wrong = MPI.COMM_WORLD, MPI.COMM_WORLD.Get_rank(), 0
for size in (8, 4096, 12288, 65536, 1048576):
    for turn in range(4):
        sent = ((np.arange(size) * 31 + turn * 7 + size) % 251).astype(np.uint8)
        got = np.zeros(size, np.uint8)
        if rank == 0:
            world.Send(sent, 1, tag=turn)
            world.Recv(got, 1, tag=turn)
        else:
            world.Recv(got, 0, tag=turn)
            world.Send(got, 0, tag=turn)
        wrong += int((got != sent).sum())
print("rank", rank, "wrong", wrong, flush=True)
sys.exit(3 if wrong else 0)
"""


@pytest.mark.parametrize(
    "emulate", [pytest.param("", marks=pytest.mark.slow, id="in order"), UNORDERED, "corrupt=0.2,corrupt_after=40"]
)
def test_mpi_ping_pong_on_efa(emulate):
    need_softefa()
    pytest.importorskip("mpi4py")
    environment = {"FI_PROVIDER_PATH": str(wheel_folder() / "libfabric"), "FI_EFA_RX_SIZE": "256"}
    passed_on = ["LD_PRELOAD", "SYSFS_PATH", "EFAPROF_SOFTEFA_DIR", *environment]
    exports = [word for name in passed_on for word in ("-x", name)]
    mca = ["pml", "cm", "mtl", "ofi", "mtl_ofi_provider_include", "efa"]
    options = [word for key, value in zip(mca[::2], mca[1::2], strict=True) for word in ("--mca", key, value)]
    done = on_softefa(
        Path(sys.prefix) / "bin" / "mpirun", "--allow-run-as-root", "--oversubscribe", "--timeout", "20", "-n", "2",
        *exports, *options, sys.executable, "-c", MPI, emulate=emulate, env=environment,
    )  # fmt: skip
    if "corrupt" in emulate:
        assert done.returncode != 0
        assert "corrupted on purpose" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank")) == [
        "rank 0 wrong 0",
        "rank 1 wrong 0",
    ]
    assert " 2 NICs " in done.stderr
