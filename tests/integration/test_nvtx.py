"""NVTX under record: every way to name a stretch, several clients in a process, and a tool that was there before us."""

from __future__ import annotations

import importlib.util
import os
import signal
import struct
import subprocess
import sys

import polars as pl
import pytest
from recording import EFAPROF, efaprof, manifest

from efaprof import env, native
from efaprof.trace.layout import Payload
from efaprof.trace.reader import open_tables
from efaprof.trace.rundir import open_run

LONGEST = "x" * 128
IS_LIBRARY_THERE = native.lib_path().with_name("libefaprof-nvtx.so").is_file()
pytestmark = pytest.mark.skipif(not IS_LIBRARY_THERE, reason="libefaprof-nvtx.so is not built")


def client(build_dir, folder, *what, **options):
    """Exit code and output of the client recorded, and its spans."""
    done = efaprof("record", "-q", "-o", "run", "--", build_dir / "bin" / "nvtx_client", *what, cwd=folder, **options)
    return done, open_tables(open_run(folder / "run"))


def bare(build_dir, *what, **environment):
    program = [str(build_dir / "bin" / "nvtx_client"), *what]
    return subprocess.run(program, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


def rows(tables, *columns):
    return tables.spans.sort("end_ns", "begin_ns").select(*columns).collect().rows()


def test_names_of_every_kind_arrive_as_they_were_said(build_dir, tmp_path):
    done, tables = client(build_dir, tmp_path, "texts")
    assert done.returncode == 0
    assert done.stdout.splitlines()[1:] == ["push 0", "push 1", "pop 1", "pop 0", "pop without push -1"]
    assert rows(tables, "name", "what", "depth") == [
        ("wide é 中 😀", "range", 1), ("ascii", "range", 0), ("mark", "instant", 0), ("wide mark", "instant", 0),
        ("", "range", 0), (LONGEST, "range", 0),
    ]  # fmt: skip
    assert tables.facts.losses.names_cut == 1


def test_payloads_keep_their_bits_and_type(build_dir, tmp_path):
    _, tables = client(build_dir, tmp_path, "payloads")
    said = {name: (payload, Payload(kind), cat) for name, payload, kind, cat in rows(
        tables, "name", "payload", "payload_type", "category")}  # fmt: skip
    assert said["u64"] == (1 << 63, Payload.U64, 7)
    assert struct.unpack("q", struct.pack("Q", said["i64"][0])) == (-5,)
    assert struct.unpack("d", struct.pack("Q", said["f64"][0])) == (2.5,)
    assert said["u32"] == (9, Payload.U32, 7)
    assert struct.unpack("i", struct.pack("I", said["i32"][0])) == (-9,)
    assert struct.unpack("f", struct.pack("I", said["f32"][0])) == (-0.5,)
    assert said["other"] == (0, Payload.NONE, 7)
    assert said[""] == (0, Payload.NONE, 0)  # of a client older than messages


def test_ranges_nest_in_each_domain_for_itself(build_dir, tmp_path):
    done, tables = client(build_dir, tmp_path, "domains")
    levels = ["one 0", "two 0", "one 1", "pop two 0", "pop one 1", "pop one 0"]
    assert done.stdout.splitlines()[1:] == levels
    assert rows(tables, "name", "domain", "what", "is_unordered") == [
        ("registered wide", "two", "range", True), ("registered", "one", "range", False),
        ("registered", "one", "range", False), ("registered wide", "two", "instant", False),
        ("default domain", None, "range", False),
    ]  # fmt: skip


def test_ranges_of_the_process_end_anywhere_and_once(build_dir, tmp_path):
    done, tables = client(build_dir, tmp_path, "processes")
    assert done.returncode == 0
    assert sorted(rows(tables, "name", "domain", "is_unordered"), key=str) == [
        ("started in a domain", "one", True), ("started in a domain", None, True), ("started wide", None, True),
        ("started", None, True),
    ]  # fmt: skip
    threads = dict(tables.spans.select(pl.col("name").cast(pl.String), "thread").collect().iter_rows())
    assert threads["started wide"] != threads["started"]


def test_a_library_with_nvtx_of_its_own_is_recorded_beside_the_program(build_dir, tmp_path):
    done, tables = client(build_dir, tmp_path, "texts", "part")
    assert done.stdout.splitlines()[-1] == "part 1"
    names = [name for (name,) in rows(tables, "name")]
    assert {"ascii", "in the part", "of the part's domain"} <= set(names)


def test_what_cannot_be_kept_is_said(build_dir, tmp_path):
    done, tables = client(build_dir, tmp_path, "deep")
    assert done.returncode == 0
    counted = dict(tables.spans.group_by(pl.col("name").cast(pl.String)).len().collect().iter_rows())
    assert (counted["deep"], counted["shallow"]) == (500, 1)
    assert 8000 <= counted["many"] < 9000
    degraded = {note.text for note in tables.facts.notes if note.is_degraded}
    assert degraded == {"NVTX ranges nest deeper than is recorded", "more NVTX ranges were open than are recorded"}


def test_a_crash_keeps_what_had_ended(build_dir, tmp_path):
    done, tables = client(build_dir, tmp_path, "texts", "killed")
    assert done.returncode == 128 + signal.SIGABRT
    names = [name for (name,) in rows(tables, "name")]
    assert "ended" in names
    assert "never ended" not in names


def test_a_child_does_not_end_what_its_parent_began(build_dir, tmp_path):
    _, tables = client(build_dir, tmp_path, "forked")
    by_process = tables.spans.group_by("process").agg(pl.col("name").cast(pl.String).sort()).collect()
    assert sorted(by_process["name"].to_list()) == [["begun before the fork", "parent"], ["child"]]


@pytest.mark.parametrize("what", ["texts", "domains", "processes"])
def test_a_tool_of_the_users_sees_and_answers_as_without_us(build_dir, tmp_path, what):
    tool, logs = build_dir / "bin" / "libnvtx_tool.so", (tmp_path / "bare.txt", tmp_path / "recorded.txt")
    chosen = {"NVTX_INJECTION64_PATH": str(tool)}
    alone = bare(build_dir, what, "part", NVTX_TOOL_LOG=str(logs[0]), **chosen)
    done, tables = client(build_dir, tmp_path, what, "part", env={"NVTX_TOOL_LOG": str(logs[1]), **chosen})
    # A range that the tool did not begin has an id of ours, which it is not shown.
    seen = [[line for line in log.read_text().splitlines() if line != "end 0"] for log in logs]
    assert seen[1] == seen[0] != []
    answered = dict(enumerate(alone.stdout.splitlines()))
    # Where the tool takes no part, its client had no answer before; all of the tool's answers are as they were.
    changed = [at for at, line in enumerate(done.stdout.splitlines()) if line != answered[at]]
    assert all(answered[at].endswith(" -2") for at in changed)
    names = [name for (name,) in rows(tables, "name")]
    expected = {"texts": "ascii", "domains": "registered", "processes": "started"}[what]
    assert {expected, "in the part"} <= set(names)


def test_a_tool_that_is_not_there_changes_nothing(build_dir, tmp_path):
    done, tables = client(build_dir, tmp_path, "texts", env={"NVTX_INJECTION64_PATH": "/no/tool.so"})
    assert done.returncode == 0
    assert "ascii" in [name for (name,) in rows(tables, "name")]


def test_without_a_recording_the_library_stays_out(build_dir):
    library = native.lib_path().with_name("libefaprof-nvtx.so")
    plain = {name: value for name, value in os.environ.items() if name != env.RING_DIR}
    done = subprocess.run(
        [str(build_dir / "bin" / "nvtx_client"), "texts"], env={**plain, "NVTX_INJECTION64_PATH": str(library)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == bare(build_dir, "texts").stdout


def test_info_and_doctor_name_the_probe(build_dir, tmp_path):
    client(build_dir, tmp_path, "texts")
    assert {"name": "nvtx", "state": "on"}.items() <= next(
        probe for probe in manifest(tmp_path / "run")["probes"] if probe["name"] == "nvtx"
    ).items()
    assert "nvtx" in efaprof("info", "run", cwd=tmp_path).stdout
    assert "NVTX injection" in efaprof("doctor", cwd=tmp_path, env={"NVTX_INJECTION64_PATH": "/t/tool.so"}).stdout


PYTHON = """
import nvtx
domain = nvtx.get_domain("fast")
attributes = domain.get_event_attributes("reused", payload=-3, category="seven")
@nvtx.annotate("decorated", domain="fast", payload=2.5)
def work():
    nvtx.mark("here", domain="other")
for _ in range(3):
    work()
    domain.push_range(attributes)
    domain.pop_range()
with nvtx.annotate("outer"), nvtx.annotate(message="inner"):
    pass
nvtx.end_range(nvtx.start_range("process"))
print("ok")
"""


@pytest.mark.skipif(importlib.util.find_spec("nvtx") is None, reason="no Python nvtx: pip install nvtx")
def test_the_python_package_is_recorded_domains_and_all(tmp_path):
    done = efaprof("record", "-q", "-o", "run", "--", sys.executable, "-c", PYTHON, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "ok\n")
    tables = open_tables(open_run(tmp_path / "run"))
    found = tables.spans.group_by("name", "domain", "what").len().collect().sort("name").rows()
    assert sorted(map(str, found)) == sorted(
        map(str, [
            ("decorated", "fast", "range", 3), ("here", "other", "instant", 3), ("reused", "fast", "range", 3),
            ("outer", None, "range", 1), ("inner", None, "range", 1), ("process", None, "range", 1),
        ])
    )  # fmt: skip
    payloads = dict(tables.spans.select(pl.col("name").cast(pl.String), "payload_type").collect().iter_rows())
    assert (payloads["decorated"], payloads["reused"]) == (Payload.F64, Payload.I64)


def test_steps_are_counted_by_their_names(build_dir, tmp_path):
    """Recording some of them: tests/integration/test_annotations.py."""
    program = "import nvtx\nfor k in range(9):\n with nvtx.annotate(f'step {k}'):\n  nvtx.mark('m')"
    if importlib.util.find_spec("nvtx") is None:
        pytest.skip("no Python nvtx: pip install nvtx")
    command = [*EFAPROF, "record", "-q", "-o", str(tmp_path / "r"), "--step", r"step \d+", "--warmup-steps", "2"]
    done = subprocess.run(
        [*command, "--steps", "3", "--", sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    spans = open_tables(open_run(tmp_path / "r")).spans.filter(pl.col("what") == "range").collect()
    assert spans["name"].cast(pl.String).to_list() == ["step 2", "step 3", "step 4"]
