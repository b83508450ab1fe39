from __future__ import annotations

from pathlib import Path

import pytest

from efaprof.cli.quantities import parse_count
from efaprof.errors import UsageError
from efaprof.session import settings
from efaprof.session.checks import State
from efaprof.session.drain import SLOWEST_S
from efaprof.session.settings import Reader, numa, ring_time
from efaprof.session.settings import settings as check


def reader(tmp_path: Path, data: bytes, name: str = "libfabric", prefix: str = "FI_") -> Reader:
    library = tmp_path / f"{name}.so"
    library.write_bytes(data)
    return Reader(name, prefix, (library,))


LIBFABRIC = b"..\0provider\0tx_size\0log_level\0FI_EFA_USE_HW_CNTR\0size\0"


@pytest.mark.parametrize(
    ("name", "is_read"),
    [
        ("FI_PROVIDER", True),
        ("FI_LOG_LEVEL", True),
        ("FI_EFA_TX_SIZE", True),  # kept as the provider's and its own name
        ("FI_OFI_RXM_TX_SIZE", True),
        ("FI_EFA_USE_HW_CNTR", True),  # read without being listed
        ("FI_EFA_NONSENSE_SIZE", False),  # "size" alone is not its name
        ("FI_LOGLEVEL", False),
        ("FI_FOO_TX_SIZE", False),  # there is no provider foo
    ],
)
def test_a_variable_has_an_effect_when_the_library_knows_its_name(tmp_path, name, is_read):
    row = check({name: "1"}, [reader(tmp_path, LIBFABRIC)])
    assert (row.state is State.OK) is is_read
    assert is_read or (name in row.detail and row.hint == f"unset {name}")


def test_variables_that_no_version_reads_are_named_even_without_the_library():
    row = check({"OFI_NCCL_GIN_GDAKI": "1", "PATH": "/bin"}, [Reader("aws-ofi-nccl", "OFI_NCCL_", ())])
    assert (row.state, "OFI_NCCL_GIN_GDAKI (no version reads it)" in row.detail) == (State.DEGRADED, True)


def test_without_the_library_nothing_is_said_of_its_variables():
    row = check({"NCCL_GIN_TYPE": "5"}, [Reader("NCCL", "NCCL_", ())])
    assert (row.state, row.detail) == (State.OK, "1 variables of libfabric and NCCL are set")


def test_a_library_that_cannot_be_read_is_not_blamed(tmp_path):
    row = check({"FI_X": "1"}, [Reader("libfabric", "FI_", (tmp_path / "gone.so",))])
    assert row.state is State.OK


def node_tree(root: Path, nodes: dict[int, list[int]]) -> None:
    for node, cpus in nodes.items():
        for cpu in cpus:
            (root / f"sys/devices/system/node/node{node}/cpu{cpu}").mkdir(parents=True)
    device = root / "sys/class/infiniband/rdmap0s6/device"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")


@pytest.mark.parametrize(
    ("nodes", "allowed", "state"),
    [
        ({0: [0, 1]}, {0, 1}, State.OK),
        ({0: [0], 1: [1]}, {0, 1}, State.DEGRADED),
        ({0: [0], 1: [1]}, {1}, State.OK),
    ],
)
def test_a_process_that_may_move_between_nodes_is_told_so(tmp_path, monkeypatch, nodes, allowed, state):
    node_tree(tmp_path, nodes)
    monkeypatch.setattr(settings.os, "sched_getaffinity", lambda _: allowed)
    (row,) = numa(tmp_path)
    assert (row.state, "rdmap0s6 on 1" in row.detail) == (state, True)
    assert (row.state is State.OK) == (row.hint == "")


def test_a_ring_that_fills_between_two_looks_wants_a_larger_buffer():
    enough = ring_time(2e5, 4 << 20)
    assert (enough.state, "164 ms at 200,000 operations/s" in enough.detail) == (State.OK, True)
    short = ring_time(2e6, 4 << 20)
    assert short.state is State.DEGRADED
    size = int(short.hint.split("--buffer ")[1].split("MiB")[0])
    assert ring_time(2e6, size << 20).state is State.OK
    assert size << 20 < 4 * SLOWEST_S * 2e6 * 128


@pytest.mark.parametrize(("text", "count"), [("200k", 2e5), ("1.5M", 1.5e6), ("300", 300), ("2K", 2000)])
def test_counts_are_read_with_their_prefixes(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "0", "-1", "1T5", "many", "1 op"])
def test_other_texts_are_no_counts(text):
    with pytest.raises(UsageError):
        parse_count(text)
