"""A recorder that is killed: the program goes on, and the next efaprof command saves what the rings hold."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from recording import EFAPROF, efaprof, manifest, wait_until, writer, written

from efaprof.session import host, salvage


class Orphaned:
    """A program whose recorder was killed while both were busy."""

    def __init__(self, folder: Path, count: int, then: str) -> None:
        self.run = folder / "r"
        self.recorder = subprocess.Popen(
            [*EFAPROF, "record", "-o", "r", "--buffer", "1MiB", "--", *writer(count, then)], cwd=folder,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self.recorder.stdout.readline() == "ready\n"
        self.recorder.kill()
        self.recorder.wait()
        self.ring_dir = Path(manifest(self.run)["options"]["ring_dir"])

    def release(self) -> str:
        """Let the program go on; its further output."""
        program = manifest(self.run)["pid"]
        stdout, _ = self.recorder.communicate("go\n", timeout=60)
        wait_until(lambda: not host.is_running(program))
        return stdout


@pytest.fixture
def orphaned(tmp_path):
    started: list[Orphaned] = []

    def start(count: int = 3000, then: str = "print('ready', flush=True); input()") -> Orphaned:
        started.append(Orphaned(tmp_path, count, then))
        return started[-1]

    yield start
    for orphan in started:
        if not orphan.recorder.stdin.closed:
            orphan.release()


def test_a_killed_recorder_loses_no_published_record(tmp_path, orphaned):
    orphan = orphaned(3000)
    orphan.release()
    assert not manifest(orphan.run)["ended_realtime_ns"]
    assert salvage.salvage_run(orphan.run)
    assert written(orphan.run).counters["test.value"] == list(range(3000))
    assert "the recorder was killed" in manifest(orphan.run)["warnings"][0]
    assert not orphan.ring_dir.parent.exists()
    assert not salvage.salvage_run(orphan.run)


def test_the_program_goes_on_when_its_recorder_is_killed(orphaned):
    orphan = orphaned(100, "print('ready', flush=True); input(); write(100_000, 100); print('fine')")
    assert orphan.release() == "fine\n"
    assert salvage.salvage_run(orphan.run)
    found = written(orphan.run)
    values = found.counters["test.value"]
    assert values[:10_000] == list(range(10_000))
    assert found.dropped > 0, "the ring was full, and said so"
    assert manifest(orphan.run)["drain"]["dropped"] == found.dropped


def test_saving_while_the_program_runs_leaves_it_its_rings(orphaned):
    orphan = orphaned(50, "print('ready', flush=True); input(); write(50, 50)")
    assert salvage.salvage_run(orphan.run)
    assert written(orphan.run).counters["test.value"] == list(range(50))
    assert orphan.ring_dir.exists()
    orphan.release()
    assert salvage.salvage_run(orphan.run)
    assert written(orphan.run).counters["test.value"] == list(range(100))
    assert not orphan.ring_dir.exists()
    assert len(manifest(orphan.run)["warnings"]) == 1


def test_the_next_recording_saves_what_is_left_of_others(tmp_path, orphaned):
    orphan = orphaned(2000)
    orphan.release()
    done = efaprof("record", "-o", "next", "--", *writer(1), cwd=tmp_path)
    assert f"saved what a killed recorder had left: {orphan.run}" in done.stderr
    assert written(orphan.run).counters["test.value"] == list(range(2000))


def test_a_run_in_progress_is_not_salvaged(tmp_path):
    recorder = subprocess.Popen(
        [*EFAPROF, "record", "-q", "-o", "r", "--", *writer(50, "print('ready', flush=True); input()")], cwd=tmp_path,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with recorder:
        recorder.stdout.readline()
        assert not salvage.salvage_run(tmp_path / "r")
        assert tmp_path / "r" not in salvage.salvage_abandoned()
        recorder.communicate("\n")
    assert manifest(tmp_path / "r")["warnings"] == []


def test_a_closed_run_and_what_is_no_run_are_left_alone(tmp_path):
    efaprof("record", "-o", "r", "--", *writer(5), cwd=tmp_path)
    before = (tmp_path / "r" / "manifest.json").read_bytes()
    assert not salvage.salvage_run(tmp_path / "r")
    assert not salvage.salvage_run(tmp_path)
    assert not salvage.salvage_run(tmp_path / "absent")
    assert (tmp_path / "r" / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("ring_dir", ["/etc/rings", "/dev/shm/rings", "", 7, "../../../x"])
def test_a_manifest_that_names_another_folder_is_not_followed(tmp_path, ring_dir):
    efaprof("record", "-o", "r", "--", *writer(5), cwd=tmp_path)
    said = manifest(tmp_path / "r")
    said["options"]["ring_dir"] = ring_dir
    said["ended_realtime_ns"] = None
    (tmp_path / "r" / "manifest.json").write_text(json.dumps(said))
    assert not salvage.salvage_run(tmp_path / "r")


def test_rings_in_the_run_directory_outlive_a_restart_of_the_machine(tmp_path, orphaned):
    orphan = orphaned(400)
    orphan.release()
    # As after a restart: shared memory is gone, what had spilled to the disk is not, and the boot is another.
    spill = orphan.run / "rings"
    for ring in orphan.ring_dir.glob("*.ring"):
        (spill / ring.name).write_bytes(ring.read_bytes())
        ring.unlink()
    orphan.ring_dir.rmdir()
    (orphan.ring_dir.parent / "run").unlink()
    orphan.ring_dir.parent.rmdir()
    said = manifest(orphan.run)
    said["boot_id"] = "00000000-0000-0000-0000-000000000000"
    (orphan.run / "manifest.json").write_text(json.dumps(said))
    assert salvage.salvage_run(orphan.run)
    assert written(orphan.run).counters["test.value"] == list(range(400))
    assert not spill.exists()


def test_rings_whose_run_was_removed_are_named_by_doctor(tmp_path, orphaned):
    import shutil

    orphan = orphaned(10)
    orphan.release()
    shutil.rmtree(orphan.run)
    done = efaprof("doctor", cwd=tmp_path)
    folder = orphan.ring_dir.parent
    assert f"rm -r {folder}" in done.stdout
    assert efaprof("record", "-q", "--probes", "cpu", "-o", "next", "--", "true", cwd=tmp_path).returncode == 0
    shutil.rmtree(folder)


@pytest.mark.parametrize("round_", range(5))
def test_a_recorder_killed_at_any_moment_leaves_a_run_or_nothing(tmp_path, round_):
    """From before the program starts to after it ends: what was published is in the run after salvage."""
    recorder = subprocess.Popen(
        [*EFAPROF, "record", "-q", "-o", "r", "--", *writer(20_000)], cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    try:
        recorder.wait(timeout=0.25 + 0.1 * round_)
    except subprocess.TimeoutExpired:
        recorder.kill()
    recorder.wait()
    run = tmp_path / "r"
    if not (run / "manifest.json").exists():
        salvage.salvage_abandoned()
    else:
        said = manifest(run)
        wait_until(lambda: not host.is_running(said["pid"]))
        salvage.salvage_run(run)
        values = written(run).counters.get("test.value", [])
        assert values == list(range(len(values)))
    left = [link for link in Path("/dev/shm").glob("efaprof-*/run") if link.readlink() == run]
    assert left == []
