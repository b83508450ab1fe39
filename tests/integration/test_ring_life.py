"""Whose rings they are: ended, running, zombie, in another namespace, on another host; and what was drained before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from efaprof.errors import EfaprofError
from efaprof.native import RingDrain
from tests.native.rings import Bench, change, check_records, make_bench, valid_ring, wait_until


@pytest.fixture
def bench(tmp_path: Path, build_dir: Path) -> Iterator[Bench]:
    bench = make_bench(tmp_path, build_dir / "bin")
    yield bench
    bench.end()


def test_a_zombie_is_an_ended_process(bench: Bench) -> None:
    child = bench.start("ring_writer", str(bench.accounts_path), "1", "10", "0")
    wait_until(lambda: os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG), "it ended, not waited for")
    assert bench.drain().close().live_rings == 0
    assert not bench.ring_dir.exists()


def test_a_reused_pid_is_another_process(bench: Bench) -> None:
    ring = valid_ring(bench)
    change(ring, pid=os.getpid())  # alive, but it started at another time
    bench.drain().close()
    assert not ring.exists()


def test_the_ring_of_a_running_process_stays(bench: Bench) -> None:
    child = bench.start("ring_writer", str(bench.accounts_path), "1", "0", "0")
    wait_until(lambda: bench.published()[0] > 0, "the first record")
    assert bench.drain().close().live_rings == 1
    assert len(list(bench.ring_dir.glob("*.ring"))) == 1
    child.kill()
    child.wait()
    stats = bench.drain().close()
    bench.account_for_everything(stats.dropped, killed=True)
    assert not bench.ring_dir.exists()


def test_rings_of_another_host_are_read_and_left(bench: Bench) -> None:
    ring = valid_ring(bench)
    change(ring, boot_id=1)
    stats = bench.drain().close()
    assert stats.live_rings == 1
    assert ring.exists()
    bench.account_for_everything(stats.dropped)


def test_a_process_in_another_pid_namespace_is_found(bench: Bench) -> None:
    child = bench.start_command(
        "unshare", "--pid", "--fork", "--kill-child", str(bench.programs / "ring_writer"), str(bench.accounts_path),
        "1", "0", "0",
    )  # fmt: skip
    wait_until(lambda: child.poll() is not None or bench.published()[0] > 0, "the first record")
    if child.poll() is not None:
        pytest.skip("unshare --pid is not allowed here (needs root)")
    with bench.drain() as drain:
        assert drain.poll(everything=True).live_rings == 1
        child.kill()
        child.wait()
        wait_until(lambda: drain.poll(everything=True).live_rings == 0, "its end is seen")
        bench.account_for_everything(drain.close().dropped, killed=True)
    (raw,) = bench.raw()
    assert raw.header["pid"] == 1
    assert not bench.ring_dir.exists()


def test_lost_raw_files_leave_a_file_that_begins_later(bench: Bench) -> None:
    child = bench.start("ring_writer", str(bench.accounts_path), "1", "0", "0")
    with bench.drain() as drain:
        wait_until(lambda: drain.poll(everything=True).slots > 1000, "some slots")
    for path in bench.raw_dir.iterdir():
        path.unlink()
    before = bench.published()[0]
    wait_until(lambda: bench.published()[0] > before, "more records")
    child.kill()
    child.wait()
    bench.drain().close()
    (raw,) = bench.raw()
    assert raw.header["first"] > 1000
    ((_, have),) = check_records(raw).items()
    assert (np.diff(have) == 1).all()


def test_the_drain_says_what_it_cannot_open(tmp_path: Path) -> None:
    with pytest.raises(EfaprofError, match="No such file or directory"):
        RingDrain(tmp_path / "none", tmp_path)
    (tmp_path / "rings").mkdir()
    with pytest.raises(EfaprofError, match="No such file or directory"):
        RingDrain(tmp_path / "rings", tmp_path / "none")
