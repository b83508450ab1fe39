"""Too little space, for rings in shared memory or for raw files on disk: counted, and the program is unharmed."""

from __future__ import annotations

import errno
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from efaprof.trace.layout import HEADER_BYTES
from tests.native.rings import Bench, Mounter, make_bench, mounting, wait_until

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def bench(tmp_path: Path, build_dir: Path) -> Iterator[Bench]:
    bench = make_bench(tmp_path, build_dir / "bin")
    yield bench
    bench.end()


@pytest.fixture
def mount() -> Iterator[Mounter]:
    with mounting() as mounter:
        yield mounter


# ---- short of space for rings


def test_small_shared_memory_gives_smaller_rings(bench: Bench, mount) -> None:
    mount(bench.ring_dir, "tmpfs size=4m")  # a quarter of it is too little for 4 MiB
    bench.run("ring_writer", str(bench.accounts_path), "1", "1000", "0")
    (ring,) = bench.ring_dir.glob("*.ring")
    assert ring.stat().st_size == 512 * KIB + HEADER_BYTES
    bench.account_for_everything(bench.drain().close().dropped)


def test_full_shared_memory_spills_to_the_run_directory(bench: Bench, mount) -> None:
    mount(bench.ring_dir, "tmpfs size=1m")
    (bench.ring_dir / "somebody else's").write_bytes(bytes(900 * KIB))
    bench.run("ring_writer", str(bench.accounts_path), "1", "1000", "0")
    assert list(bench.ring_dir.glob("*.ring")) == []
    assert len(list(bench.spill_dir.glob("*.ring"))) == 1
    stats = bench.drain().close()
    assert stats.rings == 1
    bench.account_for_everything(stats.dropped)


def test_absent_shared_memory_spills_to_the_run_directory(bench: Bench) -> None:
    bench.ring_dir.rmdir()
    bench.run("ring_writer", str(bench.accounts_path), "2", "1000", "0")
    stats = bench.drain().close()
    bench.account_for_everything(stats.dropped)
    assert stats.dropped == 0
    assert not bench.spill_dir.exists()


def test_no_space_anywhere_is_counted_and_the_program_runs_on(bench: Bench, mount) -> None:
    mount(bench.ring_dir, "tmpfs size=64k")
    bench.run("ring_writer", str(bench.accounts_path), "2", "5000", "0", EFAPROF_SPILL_DIR="")
    assert bench.published().sum() == 0
    stats = bench.drain().close()
    assert stats.dropped == bench.refused().sum() == 10000
    assert sum(int(ring.header["failed"]) for ring in bench.raw()) == 10000


def test_space_that_is_less_than_promised_does_not_kill_the_program(bench: Bench, mount) -> None:
    """Every page of a ring is there before it is written, else SIGBUS would end the program."""
    mount(bench.ring_dir, "tmpfs size=1200k")
    child = bench.start(
        "ring_writer",
        str(bench.accounts_path),
        "1",
        "0",
        "0",
        LD_PRELOAD=str(bench.programs.parent / "lib/lying_statfs.so"),
    )
    with bench.drain() as drain:
        wait_until(lambda: child.poll() is not None or drain.poll(everything=True).slots > 100_000, "three laps")
        assert child.poll() is None
        assert [ring.stat().st_size for ring in bench.ring_dir.glob("*.ring")] == [1 * MIB + HEADER_BYTES]
        child.kill()
        child.wait()
        bench.account_for_everything(drain.close().dropped, killed=True)


def test_all_rings_together_stay_under_the_total(bench: Bench) -> None:
    total = 700 * KIB
    bench.run(
        "ring_writer", str(bench.accounts_path), "6", "3000", "0",
        EFAPROF_BUFFER=str(256 * KIB), EFAPROF_BUFFER_TOTAL=str(total),
    )  # fmt: skip
    rings = [ring for folder in (bench.ring_dir, bench.spill_dir) for ring in folder.glob("*.ring")]
    assert 1 <= sum(ring.stat().st_size > HEADER_BYTES for ring in rings) <= 2
    assert sum(ring.stat().st_size for ring in rings) <= total + 6 * HEADER_BYTES
    bench.account_for_everything(bench.drain().close().dropped)


@pytest.mark.parametrize("limit", [300 * KIB, 100 * KIB, 0])
def test_a_file_size_limit_does_not_kill_the_program(bench: Bench, limit: int) -> None:
    child = subprocess.run(
        [bench.programs / "ring_writer", bench.accounts_path, "2", "3000", "0"],
        env=bench.env(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        timeout=60,
    )
    assert child.returncode == 0
    stats = bench.drain().close()
    if limit:
        bench.account_for_everything(stats.dropped)
    else:
        assert stats.rings == 0
        assert bench.refused().sum() == 6000


# ---- short of space for raw files


def test_disk_full_while_draining_counts_drops_and_goes_on_later(bench: Bench, mount) -> None:
    mount(bench.raw_dir, "tmpfs size=2m")
    filler = bench.raw_dir / "filler"
    filler.write_bytes(bytes(1 * MIB))
    child = bench.start("ring_writer", str(bench.accounts_path), "2", "0", "0", EFAPROF_BUFFER=str(256 * KIB))
    with bench.drain() as drain:
        wait_until(lambda: drain.poll(everything=True).write_errors > 2, "the disk is full")
        wait_until(lambda: (bench.refused()[[0, 2]] > 0).all(), "rings are full, records are dropped")
        stats = drain.poll(everything=True)
        assert stats.last_errno == errno.ENOSPC
        assert child.poll() is None, "the program is unharmed"
        child.kill()
        child.wait()
        assert list(bench.ring_dir.glob("*.ring")), "what could not be written stays"
        filler.unlink()
        stats = drain.close()
    bench.account_for_everything(stats.dropped, killed=True)
    assert not bench.ring_dir.exists()


def test_the_drain_obeys_a_file_size_limit(bench: Bench) -> None:
    bench.run("ring_writer", str(bench.accounts_path), "1", "2000", "0")
    drain = bench.drain()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * KIB, before[1]))
    try:
        stats = drain.poll(everything=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert stats.last_errno == errno.EFBIG
    bench.account_for_everything(drain.close().dropped)
