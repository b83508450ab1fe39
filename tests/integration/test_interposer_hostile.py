"""Programs that ask for much at once: nothing is lost but what is counted, and nothing grows."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from integration import raw_records
from integration.fake_driver import Driver, facts

from efaprof import native
from efaprof.trace.layout import ObjectKind, OpClass, Shape

WRITE = OpClass.RMA << 5 | 3
GROWN_KIB = 1024  # what a C library may keep for itself
EMPTIES_AT_A_TIME = 1 << 20  # empty polls of a thread and queue that are written together at the latest
LONG = pytest.mark.slow


@pytest.fixture
def driver(build_dir: Path, tmp_path: Path) -> Driver:
    return Driver(str(build_dir / "bin" / "fake_driver"), build_dir / "fakes", tmp_path / "run")


@pytest.mark.parametrize("forks", [24, pytest.param(400, marks=LONG)])
def test_a_storm_of_forks_among_posting_threads_loses_no_operation(driver: Driver, forks: int):
    said, recording = driver.record("storm", forks)
    assert said["failed"] == "0"
    assert len(recording.of(Shape.OP, WRITE)) == int(said["posts"])
    assert len({file.pid for file in recording.files}) == 1 + forks + len(range(1, forks, 3))
    assert recording.dropped == 0


@pytest.mark.parametrize("rounds", [10, pytest.param(2000, marks=LONG)])
def test_closing_in_the_wrong_order_or_not_at_all_is_recorded_as_it_is(driver: Driver, rounds: int):
    said, recording = driver.record("disorder", rounds)
    assert len(recording.of(Shape.OP, WRITE)) == int(said["posts"]) == 5 * rounds
    assert int(recording.of(Shape.CQ)["empties"].sum()) == 2 * rounds
    opened, closed = (len(recording.of(Shape.OBJECT, ObjectKind.CQ | bit)) for bit in (0, 0x80))
    assert (opened, closed) == (2 * rounds, rounds + rounds // 2)
    assert recording.notes(2) == []


@dataclass(frozen=True, slots=True)
class Bounded:
    """A run whose records are kept up to a size."""

    said: dict[str, str]
    dropped: int


def run_bounded(driver: Driver, scenario: str, n: int, *, is_drained: bool) -> Bounded:
    """Run a scenario with its rings emptied meanwhile, or only afterwards."""
    rings, raw = driver.folder / "rings", driver.folder / "raw"
    rings.mkdir(parents=True, mode=0o700)
    raw.mkdir()
    env = {**os.environ, **driver.env(""), **raw_records.preload_env(driver.folder)}
    with native.RingDrain(rings, raw, max_bytes=64 << 20) as drain:
        with subprocess.Popen(
            [driver.program, scenario, str(n)], env=env, stdout=subprocess.PIPE, text=True
        ) as process:
            while is_drained and process.poll() is None:
                drain.poll()
            text = process.communicate(timeout=raw_records.DEADLINE_S)[0]
        assert process.returncode == 0
        return Bounded(facts(text), drain.close().dropped)


@pytest.mark.parametrize("millions", [1, pytest.param(10, marks=LONG)])
def test_memory_stays_flat_over_millions_of_operations(driver: Driver, millions: int):
    found = run_bounded(driver, "flat", millions, is_drained=True)
    assert int(found.said["posts"]) == (millions + 1) * 10**6
    assert int(found.said["grown_kib"]) <= GROWN_KIB, found


def test_a_full_ring_counts_what_it_cannot_take_and_stops_nobody(driver: Driver):
    found = run_bounded(driver, "full", 200, is_drained=False)
    posts = int(found.said["posts"])
    (path,) = (driver.folder / "raw").glob("*.efr")
    raw = raw_records.read_raw(path)
    kept = len(raw.of(Shape.OP, WRITE))
    assert 0 < kept < posts == 200_000
    # What is missing was counted when it was lost, the closing of endpoint, queue, domain and fabric among it.
    assert 0 <= found.dropped - (posts - kept) <= 4


def test_a_process_that_ends_at_once_loses_a_bounded_number_of_empty_polls(driver: Driver):
    said, recording = driver.record("killed", 2500)
    counted = recording.of(Shape.CQ)["empties"]
    assert set(counted.tolist()) == {EMPTIES_AT_A_TIME}
    assert 0 < int(said["empties"]) - int(counted.sum()) < EMPTIES_AT_A_TIME
