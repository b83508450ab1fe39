"""efaprof.native: finding the library, what it depends on, and each call's effect on a real ring."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from efaprof import native
from efaprof.errors import EfaprofError
from efaprof.native import DrainStats, RingDrain
from efaprof.trace import layout
from efaprof.trace.layout import Clock, Shape
from tests.native.rings import RawRing, read_raw


class Recording:
    """This process recording into a folder, as `efaprof record` does for its own samples."""

    def __init__(self, folder: Path) -> None:
        self.rings, self.raw = folder / "rings", folder / "raw"
        self.rings.mkdir(mode=0o700)
        self.raw.mkdir()
        self.drain = RingDrain(self.rings, self.raw)

    def finish(self) -> tuple[DrainStats, RawRing]:
        del os.environ["EFAPROF_RING_DIR"]
        native.restart()
        stats = self.drain.close()
        (path,) = self.raw.iterdir()
        return stats, read_raw(path)


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    monkeypatch.setenv("EFAPROF_RING_DIR", str(tmp_path / "rings"))
    native.restart()
    yield Recording(tmp_path)
    monkeypatch.delenv("EFAPROF_RING_DIR", raising=False)
    native.restart()


def records(ring: RawRing, shape: Shape) -> np.ndarray:
    """The fixed part of all records of a shape."""
    at = ring.starts[ring.heads["kind"] >> 8 == shape]
    dtype = layout.RECORDS[shape]
    size = dtype.itemsize // layout.SLOT_BYTES
    return np.concatenate([ring.slots[at + i] for i in range(size)], axis=1).copy().view(dtype).reshape(-1)


# ---- the library


def test_a_folder_without_the_library_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EFAPROF_LIB_DIR", str(tmp_path))
    with pytest.raises(EfaprofError, match=f"{tmp_path}/libefaprof.so does not exist") as caught:
        native.lib_path()
    assert "EFAPROF_LIB_DIR" in (caught.value.hint or "")


def test_an_installation_without_the_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EFAPROF_LIB_DIR", raising=False)
    with pytest.raises(EfaprofError, match=r"libnone\.so is not part of this installation") as caught:
        native.lib_path("libnone.so")
    assert "pip install" in (caught.value.hint or "")


def test_the_developers_folder_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libefaprof.so").write_bytes(b"")
    monkeypatch.setenv("EFAPROF_LIB_DIR", str(tmp_path))
    assert native.lib_path() == tmp_path / "libefaprof.so"


def test_a_file_that_is_no_library_is_said(tmp_path: Path) -> None:
    broken = tmp_path / "libefaprof.so"
    broken.write_bytes(b"\x7fELF, or so it says")
    with pytest.raises(EfaprofError, match="cannot be loaded") as caught:
        native.load(broken)
    assert caught.value.hint


@pytest.mark.parametrize("source", ["unsigned efaprof_abi(void) { return 99u << 16 | 7; }", "int something;"])
def test_a_library_of_another_version_is_said(tmp_path: Path, source: str) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: apt-get install gcc")
    (tmp_path / "other.c").write_text(source)
    library = tmp_path / "libother.so"
    subprocess.run([compiler, "-shared", "-fPIC", tmp_path / "other.c", "-o", library], check=True)
    with pytest.raises(EfaprofError, match=r"has interface \d+ and trace format \d+; this efaprof needs 2 and 1"):
        native.load(library)


def readelf(*args: str) -> str:
    if shutil.which("readelf") is None:
        pytest.skip("no readelf: apt-get install binutils")
    return subprocess.run(
        ["readelf", "-W", *args, native.lib_path()], check=True, capture_output=True, text=True
    ).stdout


def test_the_library_needs_nothing_but_libc() -> None:
    needed = [line.split("[")[1].rstrip("]") for line in readelf("-d").splitlines() if "(NEEDED)" in line]
    assert set(needed) <= {"libc.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def test_the_library_exports_the_documented_functions_only() -> None:
    exported = {
        fields[7].partition("@")[0]
        for line in readelf("--dyn-syms").splitlines()
        if len(fields := line.split()) > 7 and fields[4] == "GLOBAL" and fields[6] != "UND"
    }
    headers = Path(__file__).resolve().parents[2] / "native/include/efaprof"
    declared = {
        line.partition("(")[0].split()[-1].lstrip("*")
        for name in ("trace.h", "drain.h", "replay.h", "wide.h", "spread.h", "intervals.h")
        for line in (headers / name).read_text().splitlines()
        if line.startswith("EFAPROF_API ")
    }
    assert exported == declared


def test_the_librarys_thread_state_is_small() -> None:
    """Loaded late, it has to fit into what the C library sets aside for that."""
    (size,) = (int(line.split()[5], 16) for line in readelf("-l").splitlines() if line.split()[:1] == ["TLS"])
    assert size <= 256


def test_importing_it_loads_neither_numpy_nor_polars() -> None:
    code = "import sys, efaprof.native; sys.exit(bool({'numpy', 'polars'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# ---- records


def test_the_clock_is_the_kernels(recording: Recording) -> None:
    source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    is_tsc = os.uname().machine == "x86_64" and source.exists() and source.read_text().strip() == "tsc"
    assert native.clock_id() == (Clock.TSC if is_tsc else Clock.MONOTONIC)
    assert native.now_ticks() <= native.now_ticks()
    native.sample_clock()
    _, ring = recording.finish()
    assert ring.header["clock"] == native.clock_id()


def test_a_clock_sample_says_one_moment_in_three_clocks(recording: Recording) -> None:
    bounds = []
    for _ in range(2):
        before = native.now_ticks(), time.monotonic_ns(), time.time_ns()
        native.sample_clock()
        bounds.append((before, (native.now_ticks(), time.monotonic_ns(), time.time_ns())))
        time.sleep(0.02)
    _, ring = recording.finish()
    samples = records(ring, Shape.CLOCK)
    assert len(samples) == 2
    for sample, (before, after) in zip(samples, bounds, strict=True):
        assert before[0] <= sample["t_end"] <= after[0]
        assert before[1] <= sample["monotonic_ns"] <= after[1]
        assert before[2] - 1_000_000 <= sample["realtime_ns"] <= after[2] + 1_000_000
        assert 0 < sample["dur"] < after[0] - before[0]


def test_counters_are_named_and_typed(recording: Recording) -> None:
    native.counter("nic.rx_bytes", 2**40)
    native.counter("queue depth", -3, monotone=False)
    native.counter("nic.rx_bytes", 2**41)
    stats, ring = recording.finish()
    counters = records(ring, Shape.COUNTER)
    assert counters["value"].tolist() == [2**40, -3, 2**41]
    assert (counters["kind"] & 0xFF).tolist() == [1, 2, 1]
    names = records(ring, Shape.NAME)
    assert names["id"].tolist() == [layout.name_id(b"nic.rx_bytes"), layout.name_id(b"queue depth")]
    assert counters["name"].tolist() == [names["id"][0], names["id"][1], names["id"][0]]
    at = ring.starts[ring.heads["kind"] >> 8 == Shape.NAME][0]
    assert ring.slots[at + 1].tobytes()[: names["x"][0]] == b"nic.rx_bytes"
    assert stats.dropped == 0


def test_long_names_are_cut_and_counted(recording: Recording) -> None:
    native.counter("n" * 200, 1)
    native.counter("n" * 128 + "other end", 2)
    _, ring = recording.finish()
    assert len(records(ring, Shape.NAME)) == 1, "the same first 128 bytes are the same name"
    assert records(ring, Shape.NAME)["x"][0] == layout.NAME_MAX
    assert ring.header["names_cut"] == 1


def test_names_are_written_again_from_time_to_time(recording: Recording) -> None:
    """A bounded run gives up its oldest records."""
    for i in range(70_000):
        native.counter("again", i)
        if i % 10_000 == 0:
            recording.drain.poll(everything=True)
    _, ring = recording.finish()
    assert len(records(ring, Shape.NAME)) == 2


def test_the_header_says_who_wrote(recording: Recording) -> None:
    native.set_producer("a test that has a long name")
    native.sample_clock()
    _, ring = recording.finish()
    native.set_producer("")
    header = ring.header
    assert header["producer"] == b"a test that has"
    assert header["pid"] == os.getpid()
    assert header["host"].decode() == os.uname().nodename[:63]
    assert header["pid_ns"] == Path("/proc/self/ns/pid").stat().st_ino
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    assert [f"{half:016x}" for half in header["boot_id"].tolist()] == [boot[:16], boot[16:]]
    assert int(header["process_start"]) == int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    (thread,) = records(ring, Shape.THREAD)
    assert (thread["pid"], thread["tid"]) == (os.getpid(), header["tid"])


# ---- starting and stopping


def test_without_a_ring_directory_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EFAPROF_RING_DIR", raising=False)
    native.restart()
    assert not native.is_recording()
    native.counter("nobody", 1)
    native.pause()
    native.pause(paused=False)


def test_a_pause_reaches_every_process_of_the_run(recording: Recording) -> None:
    code = "import sys, efaprof.native as n\nfor line in sys.stdin: print(n.is_recording(), flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def other_records() -> bool:
            child.stdin.write("?\n")
            child.stdin.flush()
            return child.stdout.readline() == "True\n"

        assert other_records() and native.is_recording()
        native.pause()
        assert not other_records() and not native.is_recording()
        native.pause(paused=False)
        assert other_records() and native.is_recording()
        child.stdin.close()


def test_restart_closes_the_rings_so_far(recording: Recording, tmp_path: Path) -> None:
    native.counter("first run", 1)
    os.environ["EFAPROF_RING_DIR"] = str(tmp_path / "second")
    (tmp_path / "second").mkdir()
    native.restart()
    native.counter("second run", 2)
    assert len(list((tmp_path / "second").glob("*.ring"))) == 1
    stats, ring = recording.finish()
    assert records(ring, Shape.COUNTER)["value"].tolist() == [1]
    assert stats.live_rings == 0
    assert not recording.rings.exists(), "closed rings are removed although their process lives on"


def test_a_closed_drain_refuses_to_poll(recording: Recording) -> None:
    native.sample_clock()
    drain = recording.drain
    recording.finish()
    with pytest.raises(ValueError, match="closed"):
        drain.poll()


# ---- index


def slots_of(*kinds: tuple[int, int]) -> np.ndarray:
    """Slots of records with these (kind, x)."""
    sizes = {Shape.STAGE: 1, Shape.OP: 2, Shape.OBJECT: 3}
    rows = []
    for kind, x in kinds:
        first = np.zeros(1, layout.HEAD)
        first["kind"], first["x"] = kind, x
        shape = kind >> 8
        count = x if shape == Shape.PAD else 1 + x if shape == Shape.CQ else sizes[Shape(shape)]
        rows.append(first.tobytes().ljust(count * layout.SLOT_BYTES, b"\xee"))
    return np.frombuffer(b"".join(rows), np.uint8)


STAGE, OP, CQ, PAD = 0x0101, 0x0203, 0x0301, 0x0001


def test_index_finds_every_record_and_steps_over_pads() -> None:
    result = native.index_records(slots_of((STAGE, 0), (PAD, 5), (OP, 65535), (CQ, 3), (STAGE, 9)))
    assert result.starts.tolist() == [0, 6, 8, 12]
    assert (result.next, result.bad_slots, result.pads) == (13, 0, 5)


@pytest.mark.parametrize("cut", range(1, 4))
def test_index_stops_before_a_record_that_is_not_whole(cut: int) -> None:
    slots = slots_of((STAGE, 0), (CQ, 3))
    result = native.index_records(slots[: len(slots) - cut * layout.SLOT_BYTES])
    assert result.starts.tolist() == [0]
    assert (result.next, result.bad_slots) == (1, 0)


@pytest.mark.parametrize("kind", [(0, 0), (PAD, 0), (0x7F01, 1), (CQ, 65), (0x0002, 4)])
def test_index_counts_from_the_first_slot_that_starts_no_record(kind: tuple[int, int]) -> None:
    head = np.zeros(1, layout.HEAD)
    head["kind"], head["x"] = kind
    bad = np.frombuffer(head.tobytes().ljust(4 * layout.SLOT_BYTES, b"\0"), np.uint8)
    result = native.index_records(np.concatenate([slots_of((OP, 0)), bad]))
    assert result.starts.tolist() == [0]
    assert (result.next, result.bad_slots) == (2, 4)


def test_index_takes_only_whole_contiguous_slots() -> None:
    slots = slots_of((OP, 0), (OP, 0))
    for wrong in (slots[:-1], slots.reshape(-1, layout.SLOT_BYTES)[::2]):
        with pytest.raises(ValueError, match="whole contiguous slots"):
            native.index_records(wrong)
    assert native.index_records(slots[:0]).starts.tolist() == []


def test_what_a_record_costs_is_measured_beside_the_threads_own_ring():
    before = native.is_recording()
    cost = native.event_cost_ns()
    assert 1 < cost < 100_000
    assert native.is_recording() is before
