"""Keeping a py-spy at every Python process, with programs that stand for a py-spy that fails, hangs or grows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from recording import wait_until

from efaprof.session import pyspy
from efaprof.session.birth import birth_ns
from efaprof.session.pyspy import PythonSpy
from efaprof.session.tree import ProcessTree, is_python

NAPS = "import time\nwhile True: time.sleep(0.01)"


@pytest.fixture
def run(tmp_path) -> Path:
    (tmp_path / "raw").mkdir()
    return tmp_path


@pytest.fixture
def program():
    """A Python process, our child as the recorded program is the recorder's."""
    with subprocess.Popen([sys.executable, "-c", NAPS]) as started:
        wait_until(lambda: is_python(started.pid))
        yield started
        started.kill()


def spy(run: Path, script: str | None = None, **options) -> PythonSpy:
    """The sampler, with a shell script in py-spy's place when one is given."""
    found = pyspy.find_program()
    if script is not None:
        found = run / "py-spy"
        found.write_text(f"#!/bin/sh\n{script}\n")
        found.chmod(0o700)
    assert found is not None
    return PythonSpy(found, run, run / "rings", dict(os.environ), **options)


def emit(*_arguments, **_options):
    pass


def turn_until(made: PythonSpy, condition) -> None:
    def turned():
        made.sample(emit)
        return condition()

    wait_until(turned)


def has_run(made: PythonSpy, number: int = 0) -> bool:
    """A py-spy has sampled for a while: before it is ready an interrupt just ends it, and nothing is written."""
    if len(made.samplings) <= number:
        return False
    sampling = made.samplings[number]
    log = made.run / "raw" / f"{sampling.file}.log"
    is_ready = log.is_file() and "Sampling process" in log.read_text()
    return is_ready and time.monotonic_ns() - sampling.spawned_ns > 6e8


def test_a_process_is_sampled_and_the_index_says_where_its_file_lies_in_time(run, program):
    made = spy(run, rate_hz=200)
    before = time.monotonic_ns()
    turn_until(made, lambda: has_run(made))
    made.stop()
    assert program.pid in made.samplings[0].threads
    (noted,) = json.loads((run / "raw" / "python.json").read_text())["samplings"]
    assert noted["pid"] == program.pid
    assert before <= noted["spawned_ns"] <= noted["running_ns"] <= noted["ended_ns"]
    tick = pyspy._tick_ns()
    assert noted["spawned_ns"] - tick <= noted["born_ns"] <= noted["closed_ns"] + tick <= noted["ended_ns"] + 2 * tick
    assert (run / "raw" / noted["file"]).is_file()
    assert not list((run / "raw").glob("*.log"))
    assert made.complaint == ""
    assert "sampled 200 times a second; py-spy took" in made.summary


def test_a_py_spy_that_always_fails_is_tried_some_times_and_its_words_are_passed_on(run, program):
    made = spy(run, "echo 'Error: Failed to find python version from target process' >&2; exit 1")
    turn_until(made, lambda: made.complaint)
    assert "1 Python process(es): Error: Failed to find python version" in made.complaint
    assert made.summary == ""
    for _ in range(3):
        made.sample(emit)
    assert len(made.samplings) == 1
    made.stop()


def test_one_that_may_not_look_is_not_tried_again(run, program):
    made = spy(run, "echo 'Error: Permission Denied: Try running again with elevated permissions' >&2; exit 1")
    turn_until(made, lambda: made.complaint)
    assert made.complaint.startswith("Python was not sampled: py-spy may not look at the program; type: sudo sysctl")
    assert len(made.samplings) == 1
    made.stop()


def test_one_that_does_not_end_is_killed_and_that_is_said(run, program, monkeypatch):
    monkeypatch.setattr(pyspy, "_STOP_S", 0.2)
    made = spy(run, f"trap '' INT\ntouch {run}/deaf\nwhile :; do sleep 1; done")
    turn_until(made, (run / "deaf").exists)
    made.stop()
    assert "did not end within 0.2 s and was killed" in made.complaint
    made.sample(emit)  # nothing is started any more
    assert len(made.samplings) <= 1


def test_one_that_grows_too_large_gives_way_to_another(run, program, monkeypatch):
    made = spy(run)
    turn_until(made, lambda: has_run(made))
    with monkeypatch.context() as patched:
        patched.setattr(pyspy, "_MOST_BYTES", 1)
        turn_until(made, lambda: made.samplings[0].exit_code == 0)
    turn_until(made, lambda: has_run(made, 1))
    made.stop()
    files = {one.file for one in made.samplings if one.exit_code == 0}
    assert len(files) == 2
    assert all((run / "raw" / name).is_file() for name in files)


def test_beyond_a_number_of_processes_the_rest_is_left_out_and_said(run, program, monkeypatch):
    monkeypatch.setattr(pyspy, "_MOST", 1)
    with subprocess.Popen([sys.executable, "-c", NAPS]) as other:
        wait_until(lambda: is_python(other.pid))
        made = spy(run)
        turn_until(made, lambda: "1 Python processes beyond 1 at a time" in made.complaint)
        made.stop()
        other.kill()


def test_a_process_that_ended_before_anything_was_read_is_no_failure(run):
    with subprocess.Popen([sys.executable, "-c", NAPS]) as program:
        wait_until(lambda: is_python(program.pid))
        made = spy(run, f"kill -9 {program.pid}; sleep 0.2; echo 'Error: No such process' >&2; exit 1")
        turn_until(made, lambda: made.samplings)
        program.wait()
        turn_until(made, lambda: not made.samplings)
    made.stop()
    assert made.complaint == ""


def test_descendants_and_daemons_that_carry_the_ring_directory_belong_to_the_recording(tmp_path):
    rings = tmp_path / "rings"
    pids = tmp_path / "pids"
    # A daemon: its parent ends at once, so that it becomes somebody else's child.
    daemon = f"sleep 30 & echo $! > {pids}"
    subprocess.run(["sh", "-c", daemon], env={**os.environ, "EFAPROF_RING_DIR": str(rings)}, check=True)
    left = int(pids.read_text())
    with subprocess.Popen(["sh", "-c", "sleep 30 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        below = int(child.stdout.readline())
        tree = ProcessTree(os.getpid(), rings)
        try:
            wait_until(lambda: {child.pid, below, left} <= set(tree.scan(ignored=set())))
            found = tree.scan(ignored=set())
            assert os.getpid() not in found
            assert os.getppid() not in found
        finally:
            for pid in (left, below, child.pid):
                os.kill(pid, signal.SIGKILL)
    wait_until(lambda: child.pid not in tree.scan(ignored=set()))


def test_what_runs_python_is_told_from_what_does_not(program):
    assert is_python(program.pid) is True
    with subprocess.Popen(["sleep", "30"]) as other:
        wait_until(lambda: Path(f"/proc/{other.pid}/exe").readlink().name != Path(sys.executable).resolve().name)
        assert is_python(other.pid) is False
        other.kill()
    assert is_python(2**22 + 5) is False


def test_the_birth_of_a_file_is_when_it_was_made(tmp_path):
    before = time.time_ns()
    path = tmp_path / "x"
    path.write_text("1")
    after = time.time_ns()
    born = birth_ns(path)
    path.write_text("2")
    if born is not None:  # a file system that does not say is none of our doing
        assert before - 2 * pyspy._tick_ns() <= born <= after
        assert birth_ns(path) == born
    assert birth_ns(tmp_path / "none") is None
