"""A launcher's MPS daemon: where its ranks find it, and when it ends; the helper is a script here."""

from __future__ import annotations

import os

import pytest

from efaprof import env
from efaprof.errors import UsageError
from efaprof.instrument.mps import PIPE_DIRECTORY, shared_gpus


@pytest.fixture
def helper(tmp_path, monkeypatch):
    """Installs a script in the place of efaprof-dispatch."""
    monkeypatch.setenv(env.LIB_DIR, str(tmp_path))
    monkeypatch.delenv(PIPE_DIRECTORY, raising=False)

    def install(*lines):
        program = tmp_path / "efaprof-dispatch"
        program.write_text("\n".join(["#!/bin/sh", f"cd {tmp_path}", *lines, ""]))
        program.chmod(0o755)

    return install


def test_ranks_find_the_daemon_that_lives_as_long_as_they_do(helper, tmp_path):
    helper('echo "$@" > asked', "echo /a/pipe", "cat > /dev/null", "touch ended")
    with shared_gpus(3):
        assert os.environ[PIPE_DIRECTORY] == "/a/pipe"
        assert (tmp_path / "asked").read_text() == "mps 3\n"
        assert not (tmp_path / "ended").exists()
    assert PIPE_DIRECTORY not in os.environ
    assert (tmp_path / "ended").exists()


def test_the_daemon_ends_when_the_launcher_fails(helper, tmp_path):
    helper("echo /a/pipe", "cat > /dev/null", "touch ended")
    with pytest.raises(ZeroDivisionError), shared_gpus(2):
        raise ZeroDivisionError
    assert (tmp_path / "ended").exists()


def test_nothing_is_said_to_ranks_that_have_a_gpu_each(helper):
    helper("echo", "cat > /dev/null")
    with shared_gpus(2):
        assert PIPE_DIRECTORY not in os.environ


def test_a_daemon_of_the_users_own_stays(helper, monkeypatch):
    monkeypatch.setenv(PIPE_DIRECTORY, "/own")
    helper('echo "$CUDA_MPS_PIPE_DIRECTORY"', "cat > /dev/null")
    with shared_gpus(2):
        assert os.environ[PIPE_DIRECTORY] == "/own"
    assert os.environ[PIPE_DIRECTORY] == "/own"


def test_why_the_ranks_cannot_share_is_passed_on(helper):
    helper("echo 'MPS is not there' >&2", "exit 2")
    with pytest.raises(UsageError, match="MPS is not there"), shared_gpus(2):
        raise AssertionError("it began")


def test_the_helper_is_not_recorded(helper, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/a/recorder.so")
    helper("env > environment", "echo", "cat > /dev/null")
    with shared_gpus(1):
        assert "CUDA_INJECTION64_PATH" not in (tmp_path / "environment").read_text()
