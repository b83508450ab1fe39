"""Files in the ring directory that are not what they should be: counted, left alone, and never the drain's end."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efaprof import native
from efaprof.native import RingDrain
from efaprof.trace.layout import HEADER_BYTES
from tests.native.rings import Bench, change, make_bench, own_start, valid_ring

KIB = 1 << 10


@pytest.fixture
def bench(tmp_path: Path, build_dir: Path) -> Iterator[Bench]:
    bench = make_bench(tmp_path, build_dir / "bin")
    yield bench
    bench.end()


def spoil(source: Path, folder: Path) -> int:
    """Fill the folder with files that look like rings and are none; how many."""
    rng = np.random.default_rng(1)
    (folder / "random.ring").write_bytes(rng.bytes(8192))
    (folder / "magic.ring").write_bytes(b"EFR1" + rng.bytes(8188))
    (folder / "short.ring").write_bytes(source.read_bytes()[:5000])
    (folder / "shorter.ring").write_bytes(source.read_bytes()[:100])
    (folder / "empty.ring").write_bytes(b"")
    (folder / "zeros.ring").write_bytes(bytes(8192))
    (folder / "link.ring").symlink_to(source)
    (folder / "nowhere.ring").symlink_to("/does/not/exist")
    (folder / "folder.ring").mkdir()
    os.mkfifo(folder / "pipe.ring")
    absurd = [
        {"head": 1 << 63}, {"head": 0, "tail": 5}, {"tail": (1 << 64) - 1}, {"capacity": 3}, {"capacity": 1 << 60},
        {"capacity": 0}, {"version": 7}, {"slot_bytes": 64}, {"clock": 9},
        {"head": (1 << 64) - 1, "tail": (1 << 64) - 2},
    ]  # fmt: skip
    for number, fields in enumerate(absurd):
        copy = folder / f"absurd{number}.ring"
        shutil.copy(source, copy)
        change(copy, **fields)
    return 10 + len(absurd)


def test_hostile_files_are_counted_and_left_alone(bench: Bench) -> None:
    source = valid_ring(bench)
    bad = spoil(source, bench.ring_dir)
    with bench.drain() as drain:
        for _ in range(3):
            drain.poll(everything=True)
        stats = drain.close()
    assert stats.bad_rings == bad
    bench.account_for_everything(stats.dropped)
    assert not source.exists(), "the one good ring was drained and removed"
    assert len(list(bench.ring_dir.glob("*.ring"))) == bad


def test_a_ring_that_turns_bad_is_left_alone(bench: Bench) -> None:
    child = bench.start("ring_writer", str(bench.accounts_path), "1", "10", "0", EFAPROF_BUFFER=str(256 * KIB))
    child.wait()
    (ring,) = bench.ring_dir.glob("*.ring")
    change(ring, pid=os.getpid(), process_start=own_start())  # so that it is not removed
    for spoiled in ("backwards", "beyond", "cut"):
        copy = bench.ring_dir / f"{spoiled}.ring"
        shutil.copy(ring, copy)
    with bench.drain() as drain:
        assert drain.poll(everything=True).bad_rings == 0
        change(bench.ring_dir / "backwards.ring", head=1)
        change(bench.ring_dir / "beyond.ring", head=1 << 40)
        os.truncate(bench.ring_dir / "cut.ring", HEADER_BYTES)
        assert drain.poll(everything=True).bad_rings == 3
        assert drain.close().bad_rings == 3
    assert len(list(bench.ring_dir.glob("*.ring"))) == 4


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 511), st.integers(0, 255)), min_size=1, max_size=6), st.data())
def test_any_bytes_in_the_header_are_survived(ring_template: bytes, changes: list[tuple[int, int]], data) -> None:
    image = bytearray(ring_template)
    for at, value in changes:
        image[at] = value
    size = data.draw(st.one_of(st.just(len(image)), st.integers(0, len(image))))
    folder = Path(os.environ["EFAPROF_TEST_FUZZ_DIR"])
    for name in ("rings", "raw"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
    (folder / "rings" / "x.ring").write_bytes(image[:size])
    with RingDrain(folder / "rings", folder / "raw") as drain:
        drain.poll(everything=True)
        stats = drain.close()
    assert stats.rings == 1
    for raw in (folder / "raw").iterdir():
        assert raw.stat().st_size >= HEADER_BYTES
        native.index_records(np.frombuffer(raw.read_bytes()[HEADER_BYTES:], np.uint8))


@pytest.fixture(scope="module")
def ring_template(tmp_path_factory: pytest.TempPathFactory, build_dir: Path) -> Iterator[bytes]:
    folder = tmp_path_factory.mktemp("fuzz")
    bench = make_bench(folder, build_dir / "bin")
    bench.run("ring_writer", str(bench.accounts_path), "1", "60", "0", EFAPROF_BUFFER="16384")
    (ring,) = bench.ring_dir.glob("*.ring")
    before = dict(os.environ)
    os.environ["EFAPROF_TEST_FUZZ_DIR"] = str(folder / "case")
    (folder / "case").mkdir()
    yield ring.read_bytes()
    os.environ.clear()
    os.environ.update(before)


def test_raw_files_are_not_written_through_links(bench: Bench, tmp_path: Path) -> None:
    ring = valid_ring(bench)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (bench.raw_dir / f"{ring.stem}.efr").symlink_to(victim)
    stats = bench.drain().close()
    assert stats.last_errno == errno.ELOOP
    assert victim.read_text() == "precious"
    assert ring.exists()
    assert stat.S_ISLNK((bench.raw_dir / f"{ring.stem}.efr").lstat().st_mode)
