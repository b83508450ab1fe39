"""Recording Python stacks by py-spy: whose, when, and what is said when it cannot be done."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from recording import EFAPROF, efaprof, manifest, the_run, wait_until
from trace_processor import load

from efaprof.session import pyspy
from efaprof.trace.python_stacks import read_stacks
from efaprof.trace.rundir import open_run

# Sleeps and spins in turn, noting when by the monotonic clock: what the sampled stacks are held against.
PHASES = """
import sys, threading, time
def resting():
    time.sleep(0.15)
def spinning():
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        pass
def phases(count):
    for _ in range(count):
        resting()
        before = time.monotonic_ns()
        spinning()
        print(before, time.monotonic_ns(), flush=True)
phases(int(sys.argv[1]))
"""


def stacks(folder: Path):
    found = read_stacks(open_run(the_run(folder)))
    assert found is not None
    return found


def index(run: Path) -> dict:
    return json.loads((run / "raw" / "python.json").read_text())


def test_the_stacks_of_a_python_process_below_a_shell_lie_where_they_were(tmp_path):
    program = tmp_path / "phases.py"
    program.write_text(PHASES)
    done = efaprof("record", "--python", "--", "sh", "-c", f"{sys.executable} phases.py 8; exit 3", cwd=tmp_path)
    assert done.returncode == 3
    assert "py-spy took" in done.stderr
    found = stacks(tmp_path)
    assert found.warnings == ()
    assert found.samples > 50
    frames = found.frames
    assert frames["thread"].unique().to_list() == ["MainThread"]
    assert (frames["pid"] == frames["tid"]).all()
    spun = frames.filter(pl.col("function") == "spinning")
    assert set(spun["file"]) == {str(program)}
    assert set(frames[spun["parent"].to_list()]["function"]) == {"phases"}
    # Most of the time that the program says it spun is found there, and little of the rest: within a period and a tick.
    truth = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    truth = [(low, high) for low, high in truth if low > frames["begin_ns"].min() and high < frames["end_ns"].max()]
    both = sum(
        max(min(high, end) - max(low, begin), 0)
        for low, high in truth
        for begin, end in spun.select("begin_ns", "end_ns").iter_rows()
    )
    assert len(truth) >= 4
    assert both > 0.6 * sum(high - low for low, high in truth)
    assert both > 0.6 * int((spun["end_ns"] - spun["begin_ns"]).sum())


def test_every_python_process_of_the_tree_is_sampled_for_itself(tmp_path):
    child = "import time; end = time.time() + 1\nwhile time.time() < end: time.sleep(0.01)"
    start = f"subprocess.Popen([sys.executable, '-c', {child!r}])"
    parent = f"import subprocess, sys; [p.wait() for p in [{start}, {start}]]"
    assert efaprof("record", "--python=50", "--", sys.executable, "-c", parent, cwd=tmp_path).returncode == 0
    found = stacks(tmp_path)
    assert found.rate_hz == 50
    assert found.frames["pid"].n_unique() == 3


def test_threads_carry_their_names_and_system_ids(tmp_path):
    code = (
        "import threading, time\n"
        "def worker():\n    print(threading.get_native_id(), flush=True); time.sleep(1)\n"
        "t = threading.Thread(target=worker, name='engine'); t.start(); t.join()\n"
    )
    done = efaprof("record", "--python", "--", sys.executable, "-c", code, cwd=tmp_path)
    frames = stacks(tmp_path).frames.filter(pl.col("function") == "worker")
    assert set(frames["thread"]) == {"engine"}
    assert set(frames["tid"]) == {int(done.stdout)}


def test_a_killed_program_leaves_the_stacks_up_to_then(tmp_path):
    code = "import os, signal, time\ndef last(): time.sleep(1.2); os.kill(os.getpid(), signal.SIGKILL)\nlast()"
    done = efaprof("record", "--python", "--", sys.executable, "-c", code, cwd=tmp_path)
    assert done.returncode == 128 + signal.SIGKILL
    assert "last" in set(stacks(tmp_path).frames["function"])


def test_an_interrupted_program_keeps_its_exit_code_and_its_stacks(tmp_path):
    code = (
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\nprint('up', flush=True)\n"
        "def wait(): time.sleep(60)\nwait()"
    )
    with subprocess.Popen(
        [*EFAPROF, "record", "--python", "--", sys.executable, "-c", code],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "up\n"
        run = the_run(tmp_path)
        wait_until(lambda: (run / "raw" / "python.json").is_file() and index(run)["samplings"])
        time.sleep(0.3)  # for some samples: what is waited for cannot be seen from outside
        running.send_signal(signal.SIGTERM)
        running.wait(timeout=60)
    assert running.returncode == 9
    assert "wait" in set(stacks(tmp_path).frames["function"])


def test_sampling_ends_with_the_recording(tmp_path):
    code = "import time\ndef waits(): time.sleep(1.8)\nwaits()"
    efaprof("record", "--python", "--duration", "0.8", "--", sys.executable, "-c", code, cwd=tmp_path)
    frames = stacks(tmp_path).frames
    assert 0 < (frames["end_ns"].max() - frames["begin_ns"].min()) < 1.4e9


def test_without_py_spy_one_line_says_what_to_type_and_recording_goes_on(tmp_path):
    # As an efaprof whose interpreter has no py-spy beside it.
    code = "import sys; sys.executable = '/nowhere/python'; from efaprof.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "record", "--python", "--", sys.executable, "-c", "raise SystemExit(5)"],
        cwd=tmp_path, env={**os.environ, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 5
    (line,) = [line for line in done.stderr.splitlines() if "py-spy" in line]
    assert line == "efaprof: warning: Python was not sampled: py-spy is not on PATH; type: pip install py-spy"
    (probe,) = [probe for probe in manifest(the_run(tmp_path))["probes"] if probe["name"] == "python"]
    assert (probe["state"], probe["hint"]) == ("off", "pip install py-spy")


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv to lose ptrace")
def test_without_permission_one_line_says_what_to_type_and_recording_goes_on(tmp_path):
    # A process that may not be dumped can be looked at only with the capability that is given up here.
    code = "import ctypes, time; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); time.sleep(1.5); raise SystemExit(6)"
    done = subprocess.run(
        ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace", *EFAPROF, "record", "--python", "--",
         sys.executable, "-c", code],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 6
    lines = [line for line in done.stderr.splitlines() if "py-spy" in line]
    assert lines == [
        f"efaprof: warning: Python was not sampled: py-spy may not look at the program; type: {pyspy.ALLOW}"
    ]


def test_a_program_that_is_not_python_is_not_sampled_and_nothing_is_said_of_it(tmp_path):
    done = efaprof("record", "--python", "--", "sleep", "0.5", cwd=tmp_path)
    assert done.returncode == 0
    assert "py-spy" not in done.stderr
    assert not list(the_run(tmp_path).glob("raw/python-*"))


def test_native_frames_are_sampled_when_asked_for(tmp_path):
    code = "import time\ndef naps():\n    for _ in range(100): time.sleep(0.01)\nnaps()"
    done = efaprof("record", "--python-native", "--", sys.executable, "-c", code, cwd=tmp_path)
    assert "stopping the program for each look" in done.stderr
    frames = stacks(tmp_path).frames
    below = frames.filter(pl.col("parent") >= 0)
    callers = frames[below["parent"].to_list()]["function"]
    # What naps() calls is no Python function: a frame of a library stands below it.
    assert below.filter(callers == "naps").height > 0


def test_the_rate_belongs_to_the_option_and_the_command_is_left_alone(tmp_path):
    done = efaprof("record", "--python", sys.executable, "-c", "print('ran')", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    done = efaprof("record", "--python=0", "--", "true", cwd=tmp_path)
    assert done.returncode == 125


def test_stacks_are_drawn_on_a_timeline_even_of_processes_without_operations(tmp_path):
    program = tmp_path / "phases.py"
    program.write_text(PHASES)
    efaprof("record", "--python", "--", sys.executable, "phases.py", "4", cwd=tmp_path)
    run = the_run(tmp_path)
    done = efaprof("export", run, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    engine = load((run / "trace.pftrace").read_bytes())
    rows = engine.rows(
        "select p.pid, s.name, sum(s.dur) as ns from slice s join process_track t on t.id = s.track_id"
        " join process p using (upid) where t.name like 'Python (sampled, 100 Hz)%' group by 1, 2"
    )
    length = {row["name"]: row["ns"] for row in rows}
    assert length["spinning (phases.py)"] > 0
    assert length["<module> (phases.py)"] >= length["phases (phases.py)"] >= length["spinning (phases.py)"]
    assert {row["pid"] for row in rows} == {manifest(run)["pid"]}


@pytest.mark.slow
def test_a_killed_recorder_leaves_stacks_that_can_be_read(tmp_path):
    code = "import time\ndef waits(): time.sleep(3)\nwaits()"
    with subprocess.Popen([*EFAPROF, "record", "--python", "--", sys.executable, "-c", code], cwd=tmp_path) as running:
        run = wait_until(lambda: next(iter(tmp_path.glob("efaprof-*/raw/python.json")), None)).parents[1]
        wait_until(lambda: index(run)["samplings"])
        time.sleep(0.5)  # for some samples
        running.kill()
    # py-spy goes on until the program ends, and writes then.
    written = run / "raw" / index(run)["samplings"][0]["file"]
    wait_until(lambda: written.is_file() and written.stat().st_size)
    found = wait_until(lambda: (read := read_stacks(open_run(run))) is not None and not read.warnings and read)
    assert "waits" in set(found.frames["function"])
