"""--max-size: the raw files together stay under the bound, and the newest records survive."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from efaprof import native
from efaprof.trace.layout import COUNTER, SLOT_BYTES, Shape
from tests.native.rings import Bench, Mounter, check_records, make_bench, mounting

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


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


def run_bounded(bench: Bench, bound: int, *, threads: int, until_slots: int) -> native.DrainStats:
    child = bench.start("ring_writer", str(bench.accounts_path), str(threads), "0", "0", EFAPROF_BUFFER=str(256 * KIB))
    most = 0
    with bench.drain(max_bytes=bound) as drain:
        while drain.poll(everything=True).slots < until_slots:
            most = max(most, disk_bytes(bench.raw_dir))
        child.kill()
        child.wait()
        stats = drain.close()
    assert max(most, disk_bytes(bench.raw_dir)) <= bound
    return stats


def check_newest_survive(bench: Bench, stats: native.DrainStats) -> None:
    assert stats.write_errors == 0
    kept, raw = sorted(bench.raw(), key=lambda ring: ".kept." not in ring.path.name)
    ((_, have),) = check_records(raw).items()  # also: it begins at a record
    assert have[-1] + 1 - bench.published()[0] in (0, 1), "the newest record is there"
    assert (np.diff(have) == 1).all(), "and every one back to the oldest that is left"
    assert len(raw.slots) * SLOT_BYTES > 256 * KIB, "much of the bound is used"
    check_records(kept)
    assert set(np.unique(kept.heads["kind"] >> 8)) == {Shape.OBJECT}, "objects outlive what was given up"
    assert raw.header["first"] == stats.discarded + len(kept.slots)


def test_a_bound_keeps_the_newest_records(bench: Bench) -> None:
    check_newest_survive(bench, run_bounded(bench, 1 * MIB, threads=1, until_slots=200_000))
    assert disk_bytes(bench.raw_dir) > 600 * KIB


def test_a_bound_holds_where_holes_cannot_be_punched(bench: Bench, mount) -> None:
    mount(bench.raw_dir, "ramfs")
    check_newest_survive(bench, run_bounded(bench, 2 * MIB, threads=1, until_slots=300_000))
    assert not list(bench.raw_dir.glob("*.tmp"))


def test_a_bound_holds_over_all_files_together(bench: Bench) -> None:
    stats = run_bounded(bench, 1 * MIB, threads=3, until_slots=300_000)
    left = sum(int(ring.header["tail"] - ring.header["first"]) for ring in bench.raw())
    assert left + stats.discarded == stats.slots


def test_a_bound_leaves_a_quiet_ring_its_newer_records(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the recorder's own ring, with a clock sample now and then, beside a busy one."""
    monkeypatch.setenv("EFAPROF_RING_DIR", str(bench.ring_dir))
    native.restart()
    child = bench.start("ring_writer", str(bench.accounts_path), "1", "0", "0", EFAPROF_BUFFER=str(256 * KIB))
    with bench.drain(max_bytes=1 * MIB) as drain:
        value = 0
        while drain.poll(everything=True).slots < 300_000:
            for _ in range(20):
                native.counter("turn", value)
                value += 1
        child.kill()
        child.wait()
        monkeypatch.delenv("EFAPROF_RING_DIR")
        native.restart()
        drain.close()
    quiet = next(r for r in bench.raw() if r.header["pid"] == os.getpid() and ".kept." not in r.path.name)
    busy = next(r for r in bench.raw() if r.header["pid"] != os.getpid() and ".kept." not in r.path.name)
    counters = quiet.starts[quiet.heads["kind"] >> 8 == Shape.COUNTER]
    values = quiet.slots[counters].view(COUNTER)["value"].reshape(-1)
    assert values[-1] == value - 1
    assert (np.diff(values) == 1).all()
    assert values[0] > 0, "the oldest went"
    assert busy.header["first"] > 0
    age = int(quiet.heads["t_end"][-1]) - int(quiet.header["start_ticks"])
    begins = int(quiet.slots[counters[0], 0])
    assert begins <= int(busy.slots[busy.starts[0], 0]) + age // 16, "it covers what the busy one covers"
