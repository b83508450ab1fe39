from __future__ import annotations

import io
import sys

import pytest

from efaprof.report import progress
from efaprof.report.progress import SHOWN_FROM_BYTES, counting_bar, reading_bar, working


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


def count_to_three():
    with counting_bar("counting", 3) as advance:
        for _ in range(3):
            advance()


def work():
    with working("working hard"):
        pass


@pytest.mark.parametrize(("act", "words"), [(count_to_three, "counting"), (work, "working hard")])
def test_bars_and_spinners_are_for_terminals_and_not_for_the_quiet(monkeypatch, act, words):
    monkeypatch.setattr(progress, "_HUSHED", [])
    monkeypatch.setenv("TERM", "xterm")
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        monkeypatch.setattr(sys, "stderr", stream)
        act()
    assert words in terminal.getvalue()
    assert pipe.getvalue() == ""
    progress.hush()
    monkeypatch.setattr(sys, "stderr", Terminal())
    act()
    assert sys.stderr.getvalue() == ""
