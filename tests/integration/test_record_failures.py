"""What record refuses, what it leaves behind then, and what a full disk does."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from recording import EFAPROF, efaprof, manifest, writer, written

from efaprof.session.salvage import salvage_run


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """One line that says what, one hint, nothing on stdout, no traceback."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    error, empty, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert (empty, hint.startswith("hint: ")) == ("", True)
    for word in words:
        assert word in done.stderr


def script(path: Path, content: str | bytes, *, mode: int = 0o755) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return path


def test_a_command_that_does_not_exist_leaves_no_run(tmp_path):
    refused(efaprof("record", "--", "no-such-command", cwd=tmp_path), 127, "no-such-command")
    refused(efaprof("record", "-o", "deep/er/r", "--", "./none", cwd=tmp_path), 127, "./none")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_executed_leaves_no_run(tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    plain = script(tmp_path / "plain", "#!/bin/sh\n", mode=0o644)
    refused(efaprof("record", plain, cwd=folder), 126, "chmod +x")
    refused(efaprof("record", "/tmp", cwd=folder), 126, "is a directory")
    foreign = script(tmp_path / "foreign", b"\x7fELF" + bytes(200))
    refused(efaprof("record", "-o", "deep/er/r", "--", foreign, cwd=folder), 126, "exec format error")
    orphan = script(tmp_path / "orphan", "#!/no/such/interpreter\n")
    refused(efaprof("record", orphan, cwd=folder), 127, "/no/such/interpreter")
    assert list(folder.iterdir()) == []


def test_a_text_without_interpreter_line_runs_as_in_a_shell(tmp_path):
    old = script(tmp_path / "old", 'echo "$0 $1"; exit 5\n')
    done = efaprof("record", "-q", old, "x", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (5, f"{old} x\n")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--buffer", "much"], "'much' is not a size"),
        (["--max-size", "0"], "'0' is less than one byte"),
        (["--probes", "libfabric,gpu"], "there is no probe 'gpu'"),
        (["--require", "gpu"], "there is no probe 'gpu'"),
        (["--libfabric", "/no/such/libfabric.so"], "does not exist"),
        (["--libfabric", "/etc/passwd"], "not a 64-bit shared library"),
    ],
)
def test_a_wrong_option_value_is_125_with_a_hint(tmp_path, options, word):
    refused(efaprof("record", *options, "--", "true", cwd=tmp_path), 125, word)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options", [["--no-such-option"], ["--duration", "soon", "true"], ["--duration", "-1", "true"], []]
)
def test_a_usage_error_is_125_too(tmp_path, options):
    done = efaprof("record", *options, cwd=tmp_path)
    assert done.returncode == 125
    assert "Traceback" not in done.stderr


def test_an_existing_directory_is_not_touched(tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "precious").write_text("x")
    for force in ([], ["--force"]):
        refused(efaprof("record", *force, "-o", "r", "--", "true", cwd=tmp_path), 125, "exists")
    refused(efaprof("record", "--force", "-o", "r/precious", "--", "true", cwd=tmp_path), 125, "exists")
    (tmp_path / "link").symlink_to("r")
    refused(efaprof("record", "--force", "-o", "link", "--", "true", cwd=tmp_path), 125, "exists")
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["precious"]


def test_force_replaces_a_run_only_by_one_that_starts(tmp_path):
    efaprof("record", "-o", "r", "--", *writer(7), cwd=tmp_path)
    refused(efaprof("record", "-o", "r", "--", "true", cwd=tmp_path), 125, "--force")
    for command, code in (("no-such-command", 127), (str(script(tmp_path / "f", b"\x7fELF" + bytes(99))), 126)):
        refused(efaprof("record", "--force", "-o", "r", "--", command, cwd=tmp_path), code)
        assert written(tmp_path / "r").counters["test.value"] == list(range(7))
    assert efaprof("record", "--force", "-o", "r", "--", *writer(3), cwd=tmp_path).returncode == 0
    assert written(tmp_path / "r").counters["test.value"] == list(range(3))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "r"]


def test_force_follows_no_link_out_of_the_run(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    efaprof("record", "-o", "r", "--", "true", cwd=tmp_path)
    (tmp_path / "r" / "raw" / "out").symlink_to(outside)
    assert efaprof("record", "-q", "-f", "-o", "r", "--", "true", cwd=tmp_path).returncode == 0
    assert (outside / "precious").exists()


def test_force_does_not_replace_a_run_that_is_being_recorded(tmp_path):
    first = subprocess.Popen(
        [*EFAPROF, "record", "-q", "-o", "r", "--", *writer(5, "print('ready', flush=True); input()")], cwd=tmp_path,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with first:
        assert first.stdout.readline() == "ready\n"
        refused(efaprof("record", "-f", "-o", "r", "--", "true", cwd=tmp_path), 125, "is being recorded")
        first.communicate("\n")
    assert first.returncode == 0
    assert written(tmp_path / "r").counters["test.value"] == list(range(5))
    assert efaprof("record", "-q", "-f", "-o", "r", "--", "true", cwd=tmp_path).returncode == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_is_125(tmp_path):
    tmp_path.chmod(0o500)
    refused(efaprof("record", "true", cwd=tmp_path), 125)


def test_a_file_in_the_way_is_125(tmp_path):
    (tmp_path / "file").touch()
    refused(efaprof("record", "-o", "file/r", "--", "true", cwd=tmp_path), 125, "file/r")


@pytest.fixture
def static_program(tmp_path):
    source = tmp_path / "static.c"
    source.write_text("int main(void) { return 6; }\n")
    program = tmp_path / "static"
    done = subprocess.run(["gcc", "-static", "-o", str(program), str(source)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("gcc cannot link statically here")
    return program


def test_a_static_program_runs_and_is_said_to_be_static(tmp_path, static_program):
    done = efaprof("record", "-o", "r", "--", static_program, cwd=tmp_path)
    assert done.returncode == 6
    said = manifest(tmp_path / "r")
    (probe,) = [probe for probe in said["probes"] if probe["name"] == "libfabric"]
    assert probe["state"] in {"degraded", "off"}
    if probe["state"] == "degraded":
        assert "statically linked" in done.stderr
        assert "statically linked" in probe["reason"]


def test_a_required_probe_that_cannot_work_refuses_to_start(tmp_path, static_program):
    before = set(tmp_path.iterdir())
    refused(
        efaprof("record", "--require", "libfabric", "--", static_program, cwd=tmp_path), 125, "required probe libfabric"
    )
    refused(efaprof("record", "--probes", "cpu", "--require", "nic", "--", "true", cwd=tmp_path), 125, "not asked for")
    assert set(tmp_path.iterdir()) == before


def test_a_missing_interposer_is_named_and_recording_goes_on(tmp_path):
    from efaprof import native

    library = native.lib_path()
    folder = tmp_path / "libraries"
    folder.mkdir()
    shutil.copy(library, folder)
    environment = {"EFAPROF_LIB_DIR": str(folder)}
    done = efaprof("record", "-q", "-o", "r", "--", *writer(5), cwd=tmp_path, env=environment)
    assert done.returncode == 0
    assert "no libfabric operation could be recorded: " in done.stderr
    assert "libefaprof-fi.so was not built; install libfabric-dev" in done.stderr
    (probe,) = [probe for probe in manifest(tmp_path / "r")["probes"] if probe["name"] == "libfabric"]
    assert (probe["state"], "was not built" in probe["reason"]) == ("off", True)
    assert written(tmp_path / "r").counters["test.value"] == list(range(5))


def test_a_missing_trace_core_is_125(tmp_path):
    done = efaprof("record", "true", cwd=tmp_path, env={"EFAPROF_LIB_DIR": str(tmp_path)})
    refused(done, 125, "EFAPROF_LIB_DIR")


def test_probes_that_were_not_asked_for_are_off(tmp_path):
    efaprof("record", "-q", "--probes", "cpu", "-o", "r", "--", *writer(5), cwd=tmp_path)
    states = {probe["name"]: probe["state"] for probe in manifest(tmp_path / "r")["probes"]}
    assert (states["libfabric"], states["nic"]) == ("off", "off")
    assert not any(name.startswith("nic.") for name in written(tmp_path / "r").counters)


def test_closed_standard_streams_are_no_obstacle(tmp_path):
    line = " ".join([*EFAPROF, "record", "-o", "r", "--", "sh", "-c", "'exit 5'", "<&-", ">&-", "2>&-"])
    assert subprocess.run(["bash", "-c", line], cwd=tmp_path, check=False).returncode == 5
    assert manifest(tmp_path / "r")["exit_code"] == 5


def test_a_reader_of_stderr_that_went_away_does_not_change_the_exit_code(tmp_path):
    line = " ".join([*EFAPROF, "record", "-o", "r", "--", "sh", "-c", "'exit 5'"]) + " 2> >(true); echo $?"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "5\n"


def test_an_error_of_ours_ends_the_recording_and_not_the_program(tmp_path):
    code = (
        "import sys; from efaprof.session.drain import Loop; before = Loop.turn; turns = []\n"
        "def turn(loop):\n"
        "    turns.append(1)\n"
        "    if len(turns) > 3: raise ZeroDivisionError('of ours')\n"
        "    return before(loop)\n"
        "Loop.turn = turn; sys.argv = ['efaprof', 'record', '-o', 'r', '--', *sys.argv[1:]]\n"
        "from efaprof.cli.app import main; main()"
    )
    then = "time.sleep(0.5); write(10, 10); print('fine'); sys.exit(3)"
    done = subprocess.run(
        [sys.executable, "-c", code, *writer(10, then)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "fine\n")
    assert "recording stopped early, by an error of efaprof: ZeroDivisionError: of ours" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in (tmp_path / "r" / "log.txt").read_text()
    said = manifest(tmp_path / "r")
    assert (said["exit_code"], bool(said["ended_realtime_ns"])) == (3, True)
    assert written(tmp_path / "r").counters["test.value"] == list(range(20)), (
        "what is in the rings is saved all the same"
    )


# ---- no room ----------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("this container may not mount")
    yield folder
    for link in Path("/dev/shm").glob("efaprof-*/run"):  # rings that found no room are kept
        if link.readlink().is_relative_to(folder):
            shutil.rmtree(link.parent)
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_fills_up_harms_only_the_trace(tmp_path, small_disk):
    done = efaprof(
        "record", "-o", small_disk / "r", "--buffer", "256KiB", "--", *writer(100_000, "print('fine')"), cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, "fine\n")
    warnings = [line for line in done.stderr.splitlines() if "No space left on device" in line]
    assert len(warnings) == 1
    said = manifest(small_disk / "r")
    assert said["exit_code"] == 0
    assert said["ended_realtime_ns"]
    assert any("No space left on device" in warning for warning in said["warnings"])
    found = written(small_disk / "r")
    values = found.counters["test.value"]
    assert values[:1000] == list(range(1000))
    assert said["drain"]["write_errors"] > 0
    assert said["drain"]["dropped"] > 0


def test_what_found_no_room_at_the_end_is_saved_when_there_is_some(tmp_path, small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(600 << 10))
    # 640 KB of records: the rings take them, the disk does not.
    done = efaprof("record", "-o", small_disk / "r", "--probes", "libfabric", "--", *writer(20_000), cwd=tmp_path)
    assert "stay in /dev/shm/efaprof-" in done.stderr
    assert written(small_disk / "r").counters["test.value"] != list(range(20_000))
    ballast.unlink()
    code = (
        "import sys; from pathlib import Path; from efaprof.session.salvage import salvage_run\n"
        "print([salvage_run(Path(sys.argv[1])) for _ in range(2)])"
    )
    saved = subprocess.run(
        [sys.executable, "-c", code, str(small_disk / "r")], capture_output=True, text=True, check=True
    )
    assert saved.stdout == "[True, False]\n"
    assert written(small_disk / "r").counters["test.value"] == list(range(20_000))
    assert not Path(manifest(small_disk / "r")["options"]["ring_dir"]).exists()


def test_a_disk_that_is_full_from_the_start_is_125(tmp_path, small_disk):
    (small_disk / "ballast").write_bytes(bytes(1 << 20))
    refused(efaprof("record", "-o", small_disk / "r", "--", "true", cwd=tmp_path), 125, "No space left on device")
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]


def test_a_limit_on_file_sizes_harms_only_the_trace(tmp_path):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (400 << 10, 400 << 10))

    done = efaprof("record", "-o", "r", "--", *writer(30_000, "print('fine')"), cwd=tmp_path, preexec_fn=limit)
    assert (done.returncode, done.stdout) == (0, "fine\n")
    assert "File too large" in done.stderr or "dropped" in done.stderr
    values = written(tmp_path / "r").counters["test.value"]
    assert values[:5000] == list(range(5000))
    # Rings fit under the limit too: what came when they were full is dropped, what the file had no room for is kept.
    has_kept = "File too large" in done.stderr
    salvage_run(tmp_path / "r")  # not under the limit
    assert (len(written(tmp_path / "r").counters["test.value"]) > len(values)) is has_kept
    assert not Path(manifest(tmp_path / "r")["options"]["ring_dir"]).exists()
