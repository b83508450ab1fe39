"""`efaprof attribute` as a user meets it: text, files, exit codes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from operation_runs import every_outcome
from recording import efaprof

from efaprof import native
from efaprof.errors import EfaprofError
from efaprof.trace import layout
from efaprof.trace.synth import SynthRun


@pytest.fixture
def run(tmp_path):
    return every_outcome(tmp_path / "efaprof-client")


def attribute(*args, cwd):
    return efaprof("attribute", *args, cwd=cwd)


def test_the_newest_run_is_named_on_stderr_and_shown_on_stdout(run, tmp_path):
    done = attribute(cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == "run: efaprof-client\n"
    assert done.stdout.startswith("efaprof attribute · efaprof-client · libfabric path")


def test_json_goes_to_stdout_alone_and_is_kept_in_the_run(run, tmp_path):
    done = attribute(run.path, "--json", cwd=tmp_path)
    made = json.loads(done.stdout)
    assert made["schema"] == "efaprof.attribution/1"
    assert json.loads((run.path / "attribution.json").read_text()) == made
    assert done.stderr == ""


def test_a_directory_after_json_is_the_run_and_not_a_file(run, tmp_path):
    assert json.loads(attribute("--json", run.path, cwd=tmp_path).stdout)["run"]["runs"] == ["efaprof-client"]


def test_files_are_written_and_the_report_is_shown_too(run, tmp_path):
    done = attribute(run.path, "--json", "a.json", "--markdown=a.md", cwd=tmp_path)
    assert done.stdout.startswith("efaprof attribute")
    assert json.loads((tmp_path / "a.json").read_text())["operations"]["count"] == 14
    assert (tmp_path / "a.md").read_text().startswith("### efaprof attribute")


def test_two_documents_on_one_stdout_are_refused(run, tmp_path):
    done = attribute(run.path, "--json", "--markdown", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot both go to stdout" in done.stderr


def test_a_file_that_cannot_be_written_is_named(run, tmp_path):
    done = attribute(run.path, "--json", "no/such/a.json", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no/such/a.json cannot be written")


def test_operations_are_grouped_by_what_is_asked(run, tmp_path):
    done = attribute(run.path, "--by", "peer", cwd=tmp_path)
    assert "client[100] → 1 tx" in done.stdout
    assert attribute(run.path, "--by", "colour", cwd=tmp_path).returncode == 2


def test_several_runs_are_taken_together(run, tmp_path):
    other = every_outcome(tmp_path / "efaprof-other")
    done = attribute(run.path, other.path, "--json", cwd=tmp_path)
    made = json.loads(done.stdout)
    assert made["operations"]["count"] == 28
    assert made["run"]["runs"] == ["efaprof-client", "efaprof-other"]


def test_strict_fails_on_unexplained_operations(run, tmp_path):
    done = attribute(run.path, "--strict", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("error: operations are unexplained: 1 arrival")


def break_file(run, **fields):
    path = run.raw_files[0]
    data = bytearray(path.read_bytes())
    header = np.frombuffer(data, layout.HEADER, 1)
    for name, value in fields.items():
        header[name] = value
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("spoil", "code", "line"),
    [
        (lambda run: shutil.rmtree(run.path), 3, "does not exist"),
        (lambda run: (run.path / "manifest.json").unlink(), 3, "is not an efaprof run directory"),
        (lambda run: (run.path / "manifest.json").write_text("{"), 3, "cannot be read"),
        (lambda run: break_file(run, version=9), 3, "is trace format 9, this efaprof reads 0-1"),
        (lambda run: break_file(run, magic=9), 3, "is not a raw trace file"),
        (lambda run: run.raw_files[0].unlink(), 5, "nothing was recorded"),
        (lambda run: run.raw_files[0].write_bytes(run.raw_files[0].read_bytes()[:4096]), 5, "records seen: none"),
    ],
    ids=["gone", "no manifest", "damaged manifest", "format", "magic", "no files", "no records"],
)  # fmt: skip
def test_bad_input_is_a_line_a_hint_and_an_exit_code(run, tmp_path, spoil, code, line):
    spoil(run)
    done = attribute(run.path, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    error, _, hint = done.stderr.partition("\n\n")
    assert error.startswith("error: ")
    assert line in error
    assert hint.startswith("hint: ")
    assert "Traceback" not in done.stderr


def test_a_cut_file_is_read_with_a_warning_and_refused_when_strict(run, tmp_path):
    path = run.raw_files[0]
    path.write_bytes(path.read_bytes()[:-100])
    done = attribute(run.path, cwd=tmp_path)
    assert done.returncode == 0
    assert "bytes at the ends of raw files are missing" in done.stdout
    assert attribute(run.path, "--strict", cwd=tmp_path).returncode == 3


def test_no_run_here_says_how_to_make_one(tmp_path):
    done = attribute(cwd=tmp_path)
    assert done.returncode == 5
    assert "hint: efaprof record" in done.stderr


def test_a_closed_pipe_ends_quietly(run, tmp_path):
    command = f"{sys.executable} -m efaprof dump {run.path} | head -1"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("# ")
    assert done.stderr == ""


def test_a_run_that_holds_only_counters_has_nothing_to_attribute(tmp_path):
    synth = SynthRun(tmp_path / "efaprof-idle")
    synth.ring().counter("nic.a.tx_bytes", 1, 1)
    synth.finish()
    done = attribute(cwd=tmp_path)
    assert done.returncode == 5
    assert "records seen: 1 name, 1 counter" in done.stderr


def has_interposer():
    try:
        return native.lib_path("libefaprof-fi.so").is_file()
    except EfaprofError:
        return False


@pytest.mark.skipif(not shutil.which("fi_pingpong"), reason="no fi_pingpong: apt install libfabric-bin")
@pytest.mark.skipif(not has_interposer(), reason="libefaprof-fi.so is not built (libfabric-dev was missing)")
def test_a_recorded_ping_pong_is_explained_to_the_last_operation(tmp_path):
    """Both ends in one run: the server first, the client once it listens."""
    program = tmp_path / "both.py"
    program.write_text(PING_PONG)
    recorded = efaprof("record", "-o", "run", "--", "python3", program, cwd=tmp_path)
    assert recorded.returncode == 0, recorded.stderr
    done = attribute("run", "--json", "--strict", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert (made["coverage"], made["drops"], made["unmatched"]) == (1.0, 0, {})
    assert made["run"]["processes"] == 2
    kinds = made["operations"]["by_kind"]
    sent = sum(group["count"] for kind, group in kinds.items() if ".send" in kind)
    assert sent >= 2 * 50
    assert kinds["msg.send"]["bytes"] >= 2 * 50 * 4096
    for group in kinds.values():
        outcomes = group["outcomes"]
        assert sum(outcomes.values()) == group["count"]
        assert outcomes["unexplained"] == 0
    assert {row["layer"] for row in made["operations"]["layers"]} == {"libfabric", "nic"}
    assert made["delivery"]["level"] >= 1
    assert made["verdict"]["path"] == "inconclusive"


PING_PONG = """
import socket, subprocess, time
with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    port = str(taken.getsockname()[1])
common = ["fi_pingpong", "-p", "tcp", "-e", "rdm", "-I", "50", "-S", "4096"]
server = subprocess.Popen([*common, "-B", port])
wanted, until = f":{int(port):04X} ", time.monotonic() + 60
def listens():
    lines = [l for n in ("tcp", "tcp6") for l in open(f"/proc/net/{n}")]
    return any(wanted in l and l.split()[3] == "0A" for l in lines)
while not listens():
    assert time.monotonic() < until
    time.sleep(0.02)
client = subprocess.run([*common, "-P", port, "127.0.0.1"], timeout=60)
raise SystemExit(client.returncode or server.wait(timeout=60))
"""
