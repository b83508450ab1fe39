from __future__ import annotations

import errno
import shutil
import subprocess
from pathlib import Path

import pytest

from efaprof.errors import CommandNotFound, NotExecutable
from efaprof.session.command import exec_error, resolve


def script(path: Path, text: str, *, mode: int = 0o755) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_bare_name_is_looked_up_in_path_and_keeps_its_argv(tmp_path):
    script(tmp_path / "tool", "#!/bin/sh\n")
    command = resolve(("tool", "-o", "--", "x"), search=f"/nonexistent:{tmp_path}")
    assert command.exec_path == f"{tmp_path}/tool"
    assert command.exec_argv == ("tool", "-o", "--", "x")


def test_an_empty_path_entry_means_here(tmp_path, monkeypatch):
    script(tmp_path / "tool", "#!/bin/sh\n")
    monkeypatch.chdir(tmp_path)
    assert resolve(("tool",), search="/nonexistent:").exec_path == "./tool"


def test_a_path_stays_spelled_as_typed_because_scripts_see_it(tmp_path, monkeypatch):
    script(tmp_path / "tool", "#!/bin/sh\n")
    monkeypatch.chdir(tmp_path)
    assert resolve(("./tool",)).exec_path == "./tool"


def test_an_executable_further_down_the_path_wins_over_a_file_that_is_not(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    script(tmp_path / "a" / "tool", "", mode=0o644)
    script(tmp_path / "b" / "tool", "#!/bin/sh\n")
    assert resolve(("tool",), search=f"{tmp_path}/a:{tmp_path}/b").exec_path == f"{tmp_path}/b/tool"


@pytest.mark.parametrize("name", ["no-such-command-here", "./no/such/file", "/no/such/file", ""])
def test_what_does_not_exist_is_127_with_a_hint(name):
    with pytest.raises(CommandNotFound) as caught:
        resolve((name,))
    assert caught.value.exit_code == 127
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "hint"), [("-o", "before the command"), ("A=1", "env A=1"), ("echo hi", "separate words")]
)
def test_common_slips_get_their_own_hint(name, hint):
    with pytest.raises(CommandNotFound) as caught:
        resolve((name,), search="/nonexistent")
    assert hint in caught.value.hint


def test_a_file_here_that_is_not_in_path_is_offered(tmp_path, monkeypatch):
    script(tmp_path / "prog", "#!/bin/sh\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandNotFound) as caught:
        resolve(("prog",), search="/nonexistent")
    assert "./prog" in caught.value.hint


def test_files_without_the_x_bit_and_directories_are_126(tmp_path):
    plain = script(tmp_path / "plain", "#!/bin/sh\n", mode=0o644)
    for path, hint in ((plain, "chmod +x"), (tmp_path, "give a program")):
        with pytest.raises(NotExecutable) as caught:
            resolve((str(path),))
        assert caught.value.exit_code == 126
        assert hint in caught.value.hint


def test_in_path_the_x_bit_is_missed_too(tmp_path):
    script(tmp_path / "plain", "#!/bin/sh\n", mode=0o644)
    with pytest.raises(NotExecutable):
        resolve(("plain",), search=str(tmp_path))


def test_a_text_without_interpreter_line_goes_to_the_shell(tmp_path):
    path = script(tmp_path / "old style", 'echo "$0" "$@"\n')
    command = resolve((str(path), "a b"))
    shown = subprocess.run([command.exec_path, *command.exec_argv[1:]], capture_output=True, text=True, check=True)
    assert shown.stdout == f"{path} a b\n"


def test_a_binary_that_is_no_program_is_not_given_to_the_shell(tmp_path):
    path = tmp_path / "blob"
    path.write_bytes(b"\x7fELG\0\0\0\0" * 16)
    path.chmod(0o755)
    assert resolve((str(path),)).exec_path == str(path)


def test_the_kernels_refusals_become_126_and_127(tmp_path):
    path = script(tmp_path / "tool", "#!/no/such/interpreter -x\n")
    command = resolve((str(path),))
    missing = exec_error(command, OSError(errno.ENOENT, "x"))
    assert (missing.exit_code, "/no/such/interpreter" in missing.message) == (127, True)
    assert exec_error(command, OSError(errno.ENOEXEC, "x")).exit_code == 126
    assert exec_error(command, OSError(errno.EACCES, "Permission denied")).exit_code == 126
    assert "shorten" in exec_error(command, OSError(errno.E2BIG, "Argument list too long")).hint


def test_the_interpreter_of_a_program_is_named_when_it_is_missing(tmp_path):
    source = Path(shutil.which("true")).read_bytes()
    path = tmp_path / "foreign"
    path.write_bytes(source.replace(b"/lib64/ld-linux-x86-64.so.2", b"/lib64/ld-nowhr-x86-64.so.2"))
    path.chmod(0o755)
    command = resolve((str(path),))
    with pytest.raises(OSError, match="No such file") as caught:
        subprocess.run([str(path)], check=False)
    assert "/lib64/ld-nowhr-x86-64.so.2" in exec_error(command, caught.value).message
