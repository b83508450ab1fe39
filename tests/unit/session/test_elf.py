from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from efaprof.session.elf import inspect


def test_a_usual_program_can_be_reached():
    program = inspect(Path(sys.executable))
    assert program.elf.bits == 64
    assert "ld-linux" in program.elf.interpreter
    assert program.obstacle == ""


@pytest.fixture
def compile_c(tmp_path):
    def build(name: str, *flags: str) -> Path:
        source = tmp_path / "main.c"
        source.write_text("int main(void) { return 0; }\n")
        path = tmp_path / name
        done = subprocess.run(
            ["gcc", str(source), "-o", str(path), *flags], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"gcc {' '.join(flags)} does not work here: {done.stderr.splitlines()[-1]}")
        return path

    return build


@pytest.mark.parametrize("flag", ["-static", "-static-pie"])
def test_a_static_program_is_called_static(compile_c, flag):
    assert "statically linked" in inspect(compile_c("static", flag)).obstacle


def test_a_32_bit_program_is_told_from_its_header(tmp_path):
    header = b"\x7fELF\x01\x01\x01" + bytes(9) + struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, 0, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    segment = struct.pack("<IIIIIIII", 3, 84, 0, 0, 19, 19, 4, 1)
    path = tmp_path / "thirty-two"
    path.write_bytes(header + segment + b"/lib/ld-linux.so.2\0")
    program = inspect(path)
    assert program.elf.interpreter == "/lib/ld-linux.so.2"
    assert "32-bit" in program.obstacle


def test_a_musl_program_is_told_from_its_loader(compile_c):
    path = compile_c("musl", "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1")
    assert "musl" in inspect(path).obstacle


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away needs root")
def test_a_set_user_id_program_of_another_user_is_told(tmp_path):
    path = tmp_path / "suid"
    shutil.copy(shutil.which("true"), path)
    os.chown(path, 65534, 65534)
    path.chmod(0o4755)
    assert "set-user-ID" in inspect(path).obstacle


@pytest.mark.parametrize("line", ["#!{python}", "#! {python} -E", "#!/usr/bin/env -S A=1 {name}"])
def test_a_script_is_judged_by_its_interpreter(tmp_path, monkeypatch, line):
    python = Path(sys.executable)
    monkeypatch.setenv("PATH", f"{python.parent}:/usr/bin:/bin")
    path = tmp_path / "script"
    path.write_text(line.format(python=python, name=python.name) + "\n")
    assert inspect(path).elf_path == python


def test_scripts_that_name_each_other_end(tmp_path):
    path = tmp_path / "ouroboros"
    path.write_text(f"#!{path}\n")
    assert inspect(path).elf is None


@pytest.mark.parametrize("length", range(0, 200, 7))
def test_a_truncated_program_is_no_crash(tmp_path, length):
    path = tmp_path / "cut"
    path.write_bytes(Path(sys.executable).read_bytes()[:length])
    assert inspect(path).path == path
