from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from efaprof.errors import RecordError
from efaprof.session import workspace


def test_the_rings_are_nobody_elses(tmp_path):
    made = workspace.make(tmp_path, shm=tmp_path)
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(made.ring_dir.stat().st_mode) == 0o700
    assert workspace.run_of(made) == tmp_path
    made.remove()
    assert list(tmp_path.iterdir()) == []


def test_one_whose_recorder_lives_cannot_be_claimed_and_a_dead_ones_can(tmp_path):
    code = (
        "import sys; from pathlib import Path; from efaprof.session import workspace\n"
        "made = workspace.make(Path(sys.argv[1]), shm=Path(sys.argv[1])); print(made.path, flush=True); input()"
    )
    recorder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with recorder:
        (path,) = [tmp_path / recorder.stdout.readline().strip()]
        assert workspace.abandoned(shm=tmp_path) == [path]
        assert workspace.claim(path) is None
        recorder.kill()
        recorder.wait()
        claimed = workspace.claim(path)
    assert workspace.claim(path) is None, "two salvagers at once"
    claimed.remove()
    assert not path.exists()


def test_folders_that_are_not_workspaces_of_ours_are_not_touched(tmp_path):
    mine = f"efaprof-{os.geteuid()}-"
    (tmp_path / "run").mkdir()
    for name in ("other", mine + "open", mine + "fresh", mine + "file"):
        (tmp_path / name).mkdir(mode=0o700) if not name.endswith("file") else (tmp_path / name).touch()
    (tmp_path / "other" / "run").symlink_to(tmp_path)
    (tmp_path / (mine + "open") / "run").symlink_to(tmp_path)
    (tmp_path / (mine + "open")).chmod(0o755)
    (tmp_path / (mine + "link")).symlink_to(tmp_path / "other")
    for name in ("other", mine + "open", mine + "fresh", mine + "file", mine + "link", "absent"):
        assert workspace.claim(tmp_path / name) is None, name


def test_without_shared_memory_the_rings_go_to_the_run(tmp_path):
    made = workspace.make(tmp_path, shm=tmp_path / "absent")
    assert made.path.parent == tmp_path
    assert not made.is_in_memory
    made.remove()


def test_with_no_place_at_all_there_is_no_recording(tmp_path):
    with pytest.raises(RecordError):
        workspace.make(tmp_path / "gone", shm=tmp_path / "absent")
