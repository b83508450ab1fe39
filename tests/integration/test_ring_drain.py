"""The drain where things are short or wrong: full disks, limits, bounded runs, hostile files, other namespaces."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efaprof import native
from efaprof.native import RingDrain
from efaprof.trace.layout import COUNTER, HEADER, HEADER_BYTES, SLOT_BYTES, Shape
from tests.native.rings import Bench, check_records, make_bench, wait_until

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def bench(tmp_path: Path, build_dir: Path) -> Iterator[Bench]:
    bench = make_bench(tmp_path, build_dir / "bin")
    yield bench
    bench.end()


@pytest.fixture
def mount() -> Iterator[Callable[[Path, str], None]]:
    """Mounts a small file system (`tmpfs size=1m`, `ramfs`), for root."""
    mounted: list[Path] = []

    def do(path: Path, what: str) -> None:
        path.mkdir(parents=True, exist_ok=True)
        kind, *options = what.split()
        command = ["mount", "-t", kind, *(["-o", *options] if options else []), kind, str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{' '.join(command)}: {done.stderr.strip()} (needs root)")
        mounted.append(path)

    yield do
    for path in reversed(mounted):
        subprocess.run(["umount", "-l", path], check=True)


def account_for_everything(bench: Bench, dropped: int, *, killed: bool = False) -> None:
    """Every published record arrived and every refused one is counted; a kill may fall between the two accounts."""
    published, refused, found = bench.published(), bench.refused(), bench.found()
    for tag in np.flatnonzero(published):
        extra = len(found[int(tag)].sequences) - published[tag]
        assert extra == 0 or (killed and extra == 1)
    assert dropped == refused.sum() or (killed and dropped - refused.sum() <= 2)


# ---- short of space for rings


def test_small_shared_memory_gives_smaller_rings(bench: Bench, mount) -> None:
    mount(bench.ring_dir, "tmpfs size=4m")  # a quarter of it is too little for 4 MiB
    bench.run("ring_writer", str(bench.accounts_path), "1", "1000", "0")
    (ring,) = bench.ring_dir.glob("*.ring")
    assert ring.stat().st_size == 512 * KIB + HEADER_BYTES
    account_for_everything(bench, bench.drain().close().dropped)


def test_full_shared_memory_spills_to_the_run_directory(bench: Bench, mount) -> None:
    mount(bench.ring_dir, "tmpfs size=1m")
    (bench.ring_dir / "somebody else's").write_bytes(bytes(900 * KIB))
    bench.run("ring_writer", str(bench.accounts_path), "1", "1000", "0")
    assert list(bench.ring_dir.glob("*.ring")) == []
    assert len(list(bench.spill_dir.glob("*.ring"))) == 1
    stats = bench.drain().close()
    assert stats.rings == 1
    account_for_everything(bench, stats.dropped)


def test_absent_shared_memory_spills_to_the_run_directory(bench: Bench) -> None:
    bench.ring_dir.rmdir()
    bench.run("ring_writer", str(bench.accounts_path), "2", "1000", "0")
    stats = bench.drain().close()
    account_for_everything(bench, stats.dropped)
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
        "ring_writer", str(bench.accounts_path), "1", "0", "0", LD_PRELOAD=str(bench.programs.parent / "lib/lying_statfs.so")
    )
    with bench.drain() as drain:
        wait_until(lambda: child.poll() is not None or drain.poll(everything=True).slots > 100_000, "three laps")
        assert child.poll() is None
        assert [ring.stat().st_size for ring in bench.ring_dir.glob("*.ring")] == [1 * MIB + HEADER_BYTES]
        child.kill()
        child.wait()
        account_for_everything(bench, drain.close().dropped, killed=True)


def test_all_rings_together_stay_under_the_total(bench: Bench) -> None:
    total = 700 * KIB
    bench.run(
        "ring_writer", str(bench.accounts_path), "6", "3000", "0",
        EFAPROF_BUFFER=str(256 * KIB), EFAPROF_BUFFER_TOTAL=str(total),
    )  # fmt: skip
    rings = [ring for folder in (bench.ring_dir, bench.spill_dir) for ring in folder.glob("*.ring")]
    assert 1 <= sum(ring.stat().st_size > HEADER_BYTES for ring in rings) <= 2
    assert sum(ring.stat().st_size for ring in rings) <= total + 6 * HEADER_BYTES
    account_for_everything(bench, bench.drain().close().dropped)


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
        account_for_everything(bench, stats.dropped)
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
    account_for_everything(bench, stats.dropped, killed=True)
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
    account_for_everything(bench, drain.close().dropped)


# ---- bounded runs


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


# ---- files that are not what they should be


def valid_ring(bench: Bench) -> Path:
    bench.run("ring_writer", str(bench.accounts_path), "1", "100", "0", EFAPROF_BUFFER=str(256 * KIB))
    (ring,) = bench.ring_dir.glob("*.ring")
    return ring


def change(path: Path, **fields: int) -> None:
    header = np.fromfile(path, HEADER, count=1)
    for name, value in fields.items():
        header[name] = value
    with path.open("r+b") as file:
        file.write(header.tobytes())


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
        {"capacity": 0}, {"version": 7}, {"slot_bytes": 64}, {"clock": 9}, {"head": (1 << 64) - 1, "tail": (1 << 64) - 2},
    ]  # fmt: skip
    for number, fields in enumerate(absurd[:-1]):
        copy = folder / f"absurd{number}.ring"
        shutil.copy(source, copy)
        change(copy, **fields)
    return 10 + len(absurd) - 1


def test_hostile_files_are_counted_and_left_alone(bench: Bench) -> None:
    source = valid_ring(bench)
    bad = spoil(source, bench.ring_dir)
    with bench.drain() as drain:
        for _ in range(3):
            drain.poll(everything=True)
        stats = drain.close()
    assert stats.bad_rings == bad
    account_for_everything(bench, stats.dropped)
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


def own_start() -> int:
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


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


# ---- whose rings


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
    account_for_everything(bench, stats.dropped, killed=True)
    assert not bench.ring_dir.exists()


def test_rings_of_another_host_are_read_and_left(bench: Bench) -> None:
    ring = valid_ring(bench)
    change(ring, boot_id=1)
    stats = bench.drain().close()
    assert stats.live_rings == 1
    assert ring.exists()
    account_for_everything(bench, stats.dropped)


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
        account_for_everything(bench, drain.close().dropped, killed=True)
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
    from efaprof.errors import EfaprofError

    with pytest.raises(EfaprofError, match="No such file or directory"):
        RingDrain(tmp_path / "none", tmp_path)
    (tmp_path / "rings").mkdir()
    with pytest.raises(EfaprofError, match="No such file or directory"):
        RingDrain(tmp_path / "rings", tmp_path / "none")


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
