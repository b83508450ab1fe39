"""Rings under threads, forks, exec, signals and kill: every published record arrives whole, every other is counted."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from efaprof.errors import EfaprofError
from efaprof.native import DrainStats
from efaprof.trace.layout import THREAD, Shape
from tests.native.rings import Bench, check_records, make_bench, wait_until


@pytest.fixture
def bench(tmp_path: Path, build_dir: Path) -> Iterator[Bench]:
    """Rings in shared memory where there is some, like those of `efaprof record`."""
    shm = Path("/dev/shm")
    ring_dir = (
        Path(tempfile.mkdtemp(prefix="efaprof-test-", dir=shm)) if os.access(shm, os.W_OK) else tmp_path / "rings"
    )
    bench = make_bench(tmp_path, build_dir / "bin", ring_dir=ring_dir)
    yield bench
    bench.end()
    shutil.rmtree(ring_dir, ignore_errors=True)


def drain_all(bench: Bench) -> DrainStats:
    return bench.drain().close()


def test_every_record_of_every_thread_arrives(bench: Bench) -> None:
    bench.run("ring_writer", str(bench.accounts_path), "3", "5000", "0")
    stats = drain_all(bench)
    found = bench.found()
    assert {tag: len(f.sequences) for tag, f in found.items()} == {0: 5000, 2: 5000, 4: 5000}
    assert 1 <= stats.rings <= 3
    assert stats.dropped == stats.bad_rings == stats.write_errors == 0
    assert not bench.ring_dir.exists(), "the rings of ended processes and their empty directory are removed"


def test_full_ring_counts_exact_drops_and_keeps_going(bench: Bench) -> None:
    child = bench.start("ring_writer", str(bench.accounts_path), "2", "0", "0", EFAPROF_BUFFER="262144")
    wait_until(lambda: (bench.refused()[[0, 2]] > 1000).all(), "both rings are full")
    with bench.drain() as drain:
        before = bench.published().copy()
        wait_until(
            lambda: drain.poll(everything=True) and (bench.published() > before + 1000)[[0, 2]].all(),
            "writing goes on once there is room",
        )
        child.kill()
        child.wait()
        stats = drain.close()
    for tag, found in bench.found().items():
        assert len(found.sequences) - bench.published()[tag] in (0, 1)
    assert 0 <= stats.dropped - bench.refused().sum() <= 2, (
        "a kill may fall between the drop and the program's own count"
    )


def test_wrap_and_pads_keep_random_records_whole(bench: Bench) -> None:
    """The smallest ring, 128 slots against records of 1 to 65: nearly every lap ends in a pad."""
    child = bench.start("ring_writer", str(bench.accounts_path), "1", "0", "0", EFAPROF_BUFFER="4096")
    with bench.drain() as drain:
        wait_until(lambda: drain.poll(everything=True) and bench.published()[0] > 3000, "3000 records")
        child.kill()
        child.wait()
    (ring,) = bench.raw()
    assert len(bench.found()[0].sequences) - bench.published()[0] in (0, 1)
    assert ring.header["head"] > 100 * ring.header["capacity"]


def kill_at_random(bench: Bench, *, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    for turn in range(kills):
        at = bench.accounts_path.parent / f"turn{turn}"
        place = make_bench(at, bench.programs, ring_dir=bench.ring_dir / f"{turn}")
        child = place.start("ring_writer", str(place.accounts_path), "2", "0", "0", EFAPROF_BUFFER="262144")
        if turn % 4:  # else also in the middle of the program's start and of making the rings
            wait_until(lambda place=place: place.published()[0] > 0, "the first record")
        drain = place.drain()
        deadline = time.monotonic() + rng.random() * 0.015
        while time.monotonic() < deadline:
            drain.poll(everything=rng.random() < 0.5)
        child.kill()
        child.wait()
        stats = drain.close()
        found = place.found()
        for tag in (0, 2):
            have = len(found[tag].sequences) if tag in found else 0
            published = place.published()[tag]
            assert have - published in (0, 1), f"kill {turn}: {published} published, {have} arrived"
        assert stats.bad_rings == 0
        assert not place.ring_dir.exists()
        shutil.rmtree(at)


def test_sigkill_at_random_moments_loses_no_published_record(bench: Bench) -> None:
    kill_at_random(bench, kills=100, seed=1)


@pytest.mark.slow
def test_sigkill_at_a_thousand_random_moments(bench: Bench) -> None:
    kill_at_random(bench, kills=1000, seed=2)


_PARENT = """
import sys
from pathlib import Path
from efaprof.native import RingDrain
drain = RingDrain(Path(sys.argv[1]), Path(sys.argv[2]), spill_dir=Path(sys.argv[3]))
while True:
    drain.poll(everything=True)
    print(flush=True)
"""


def test_rings_of_a_killed_parent_are_salvaged(bench: Bench) -> None:
    rng = random.Random(3)
    child = bench.start("ring_writer", str(bench.accounts_path), "2", "0", "0")
    wait_until(lambda: bench.published()[0] > 0, "the first record")
    for _ in range(3):
        parent = subprocess.Popen(
            [sys.executable, "-c", _PARENT, bench.ring_dir, bench.raw_dir, bench.spill_dir], stdout=subprocess.PIPE
        )
        assert parent.stdout is not None
        for _ in range(3):
            parent.stdout.readline()
        deadline = time.monotonic() + rng.random() * 0.02
        while time.monotonic() < deadline:
            pass
        parent.kill()
        parent.communicate()
    assert child.poll() is None, "the program runs on"
    child.kill()
    child.wait()
    stats = drain_all(bench)
    found = bench.found()
    for tag in (0, 2):
        assert len(found[tag].sequences) - bench.published()[tag] in (0, 1)
    assert stats.bad_rings == stats.live_rings == 0
    assert not bench.ring_dir.exists()


def test_two_drains_of_one_run_are_refused(bench: Bench) -> None:
    with bench.drain(), pytest.raises(EfaprofError, match="another efaprof is draining"):
        bench.drain()


@pytest.mark.parametrize("how", ["fork", "clone", "spawn", "vfork"])
def test_children_get_rings_of_their_own(bench: Bench, how: str) -> None:
    bench.run("ring_family", str(bench.accounts_path), how)
    stats = drain_all(bench)
    found = bench.found()
    assert {tag: len(f.sequences) for tag, f in found.items()} == {
        0: 6000,
        1: 2000,
        2: 2000,
        10: 4000,
        11: 2000,
        12: 2000,
    }
    assert found[0].pids == found[1].pids == found[2].pids
    assert found[10].pids == found[12].pids
    assert not found[0].pids & found[10].pids
    assert not found[11].pids & (found[0].pids | found[10].pids)
    assert stats.dropped == 0
    for ring in bench.raw():
        assert ring.header["head"] == ring.header["tail"]


def test_exec_in_place_gets_a_new_ring(bench: Bench) -> None:
    bench.run("ring_family", str(bench.accounts_path), "exec")
    drain_all(bench)
    found = bench.found()
    assert {tag: len(f.sequences) for tag, f in found.items()} == {0: 4000, 1: 2000, 2: 2000, 10: 2000}
    assert found[0].pids == found[10].pids, "exec keeps the pid"
    assert {10} in [set(check_records(ring)) for ring in bench.raw()], "nothing else is in the new program's ring"


def churn(bench: Bench) -> DrainStats:
    child = bench.start("ring_threads", str(bench.accounts_path), "churn")
    with bench.drain() as drain:
        wait_until(lambda: drain.poll() and child.poll() is not None, "10 000 threads end", 90)
        assert child.returncode == 0
        return drain.close()


def test_thread_churn_reuses_rings(bench: Bench) -> None:
    stats = churn(bench)
    assert sum(len(f.sequences) for f in bench.found().values()) == 30000
    assert stats.rings <= 8, "10 000 threads, at most four at a time"
    assert stats.dropped == 0


def test_threads_that_end_without_a_word_leave_their_ring_to_others(bench: Bench) -> None:
    bench.run("ring_threads", str(bench.accounts_path), "silent")
    stats = drain_all(bench)
    assert sum(len(f.sequences) for f in bench.found().values()) == 1200
    assert stats.rings <= 16


def test_a_ring_says_which_thread_writes_from_where(bench: Bench) -> None:
    churn(bench)
    threads = 0
    for ring in bench.raw():
        at = ring.starts[ring.heads["kind"] >> 8 == Shape.THREAD]
        assert at[0] == 0, "the first record says who writes"
        records = np.concatenate([ring.slots[at], ring.slots[at + 1]], axis=1).view(THREAD).reshape(-1)
        assert (records["pid"] == ring.header["pid"]).all()
        assert (records["process_start"] == ring.header["process_start"]).all()
        assert (records["comm"] == b"ring_threads").all()
        threads += len(records)
    assert threads == 10000


def test_records_from_key_destructors_and_exit_handlers_arrive(bench: Bench) -> None:
    bench.run("ring_threads", str(bench.accounts_path), "destructors")
    stats = drain_all(bench)
    found = bench.found()
    assert len(found[5].sequences) == 8 * (3 + 4 * 3)
    assert len(found[6].sequences) == 6
    assert stats.dropped == 0
    assert stats.rings <= 3


def test_timer_signals_write_or_are_counted(bench: Bench) -> None:
    child = bench.start("ring_writer", str(bench.accounts_path), "2", "0", "40")
    with bench.drain() as drain:
        wait_until(
            lambda: drain.poll(everything=True) and (bench.published()[[1, 3]] > 200).all(), "handlers wrote", 60
        )
        child.kill()
        child.wait()
    found, published, refused = bench.found(), bench.published(), bench.refused()
    for tag in (0, 1, 2, 3):
        assert len(found[tag].sequences) - published[tag] in (0, 1)
    nested = sum(int(ring.header["nested"]) for ring in bench.raw())
    dropped = sum(int(ring.header["dropped"]) for ring in bench.raw())
    assert 0 <= nested + dropped - refused.sum() <= 4, "a kill may fall between a drop and the program's own count"
    assert nested - refused[[1, 3]].sum() <= 2, "only handlers can be nested"


def test_a_signal_after_any_instruction_corrupts_nothing(bench: Bench) -> None:
    child = bench.start("ring_step", str(bench.accounts_path), str(bench.raw_dir), EFAPROF_BUFFER="65536")
    status = child.wait(timeout=120)
    if status == 77:
        pytest.skip("no trap flag on this processor")
    assert status == 0
    drain_all(bench)
    (ring,) = bench.raw()
    found, published, refused = bench.found(), bench.published(), bench.refused()
    assert len(found[1].sequences) == published[1] >= 40
    assert len(found[2].sequences) == published[2] > 0
    assert ring.header["nested"] > 1000
    others = int(ring.header["nested"]) + int(ring.header["dropped"]) - int(refused.sum())
    assert 0 <= others <= 1, "besides test records, one name found the ring full"


def test_a_program_runs_on_where_nothing_can_be_made(bench: Bench) -> None:
    """ring_writer itself checks that its signal mask and errno stay what they were."""
    shutil.rmtree(bench.ring_dir)
    shutil.rmtree(bench.spill_dir)
    bench.run("ring_writer", str(bench.accounts_path), "2", "100", "0")
    assert bench.published().sum() == 0
    assert bench.refused().sum() == 200


def test_nothing_is_created_unless_recording(bench: Bench) -> None:
    bench.run("ring_writer", str(bench.accounts_path), "1", "10", "0", EFAPROF_RING_DIR="")
    assert list(bench.ring_dir.iterdir()) == []
    bench.run("index_guard", "1", "0")  # loads the core, records nothing
    assert list(bench.ring_dir.iterdir()) == []


def test_rings_are_private(bench: Bench) -> None:
    before = os.umask(0)
    try:
        child = bench.start("ring_writer", str(bench.accounts_path), "1", "0", "0")
        wait_until(lambda: bench.published()[0] > 0, "the first record")
    finally:
        os.umask(before)
    (ring,) = bench.ring_dir.glob("*.ring")
    assert ring.stat().st_mode & 0o777 == 0o600
    child.kill()
    child.wait()


def test_index_never_reads_outside(build_dir: Path) -> None:
    subprocess.run([build_dir / "bin" / "index_guard", "7", "400"], check=True, timeout=60)
