"""What all commands have in common: --quiet, completion in a shell, no bar where stderr is no terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module

import pytest
import typer
from ci_runs import BASE
from recording import efaprof

from efaprof.cli.app import COMMANDS
from efaprof.trace.steady import write_steady


def leaves(command, path=()):
    """Every command that does something, with its name."""
    inner = getattr(command, "commands", {})
    if not inner:
        yield " ".join(path), command
    for name, one in inner.items():
        yield from leaves(one, (*path, name))


def all_commands():
    app = typer.Typer()
    for name in COMMANDS:
        import_module(f"efaprof.cli.{name}").register(app)
    return dict(leaves(typer.main.get_command(app)))


def test_every_command_can_be_quiet_and_says_what_it_does():
    found = all_commands()
    assert len(found) > len(COMMANDS)
    for name, command in found.items():
        options = {word for parameter in command.params for word in parameter.opts}
        assert {"--quiet", "-q"} <= options, name
        assert command.help, name


@pytest.mark.parametrize(
    ("words", "offered"), [("efaprof att", "attribute"), ("efaprof attribute --base", "--baseline")]
)
def test_a_shell_completes_commands_and_options(words, offered):
    environment = {
        "_EFAPROF_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['efaprof']; from efaprof.cli.app import main; main()"],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert offered in done.stdout.split()


def test_a_default_run_is_named_unless_quiet(tmp_path):
    write_steady(tmp_path / "efaprof-a", BASE)
    assert efaprof("info", cwd=tmp_path).stderr == "run: efaprof-a\n"
    done = efaprof("info", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "efaprof info" in done.stdout


def test_a_quiet_error_is_still_said(tmp_path):
    done = efaprof("info", "-q", "nowhere", cwd=tmp_path)
    assert done.returncode != 0
    assert done.stderr.startswith("error: ")
