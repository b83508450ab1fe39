from __future__ import annotations

import io
import sys

from efaprof.report.progress import SHOWN_FROM_BYTES, reading_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def read_something_large():
    with reading_bar() as bar:
        bar.start("profile_export.jsonl", SHOWN_FROM_BYTES)
        bar.advance(SHOWN_FROM_BYTES // 2)
        bar.advance(SHOWN_FROM_BYTES // 2)


def test_a_terminal_sees_a_bar(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    read_something_large()
    assert "reading profile_export.jsonl" in terminal.getvalue()


def test_a_pipe_sees_nothing(monkeypatch):
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    read_something_large()
    assert pipe.getvalue() == ""


def test_a_small_file_has_no_bar(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with reading_bar() as bar:
        bar.start("small.jsonl", 1000)
        bar.advance(1000)
    assert "small.jsonl" not in terminal.getvalue()
