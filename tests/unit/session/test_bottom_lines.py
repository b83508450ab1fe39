"""Lines kept at the bottom of a terminal, seen through a terminal emulator."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios

import pyte
import pytest
from rich.text import Text

from efaprof.session.bottom_lines import BottomLines

WIDTH, HEIGHT = 40, 12
LINES = [Text("first", style="reverse"), Text("second"), Text("third " * 20)]


class Terminal:
    """A pseudo terminal and what it would show."""

    def __init__(self):
        self.master, self.fd = pty.openpty()
        self.screen = pyte.HistoryScreen(WIDTH, HEIGHT, history=500, ratio=1)
        self.stream = pyte.ByteStream(self.screen)
        self.resize(HEIGHT)

    def resize(self, height):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, WIDTH, 0, 0))
        self.screen.resize(height, WIDTH)

    def program(self, text):
        os.write(self.fd, text.encode())
        self.read()

    def read(self):
        os.set_blocking(self.master, False)
        try:
            while data := os.read(self.master, 65536):
                self.stream.feed(data)
        except BlockingIOError:
            pass

    @property
    def shown(self):
        return [line.rstrip() for line in self.screen.display]

    @property
    def everything(self):
        """What scrolled away and what is shown."""
        gone = ["".join(row[x].data for x in range(WIDTH)).rstrip() for row in self.screen.history.top]
        return gone + self.shown


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    made = Terminal()
    yield made
    os.close(made.fd)
    os.close(made.master)


def test_the_lines_stand_at_the_bottom_and_the_programs_output_scrolls_above(terminal):
    area = BottomLines(3, terminal.fd)
    written = []
    for number in range(40):
        terminal.program(f"line {number}\n")
        written.append(f"line {number}")
        area.show(LINES)
        terminal.read()
        assert terminal.shown[-3:-1] == ["first", "second"]
        assert terminal.shown[-1].startswith("third third")
        assert terminal.shown[-1].endswith("…")
        # Nothing that the program wrote is ever overwritten.
        assert [line for line in terminal.everything[:-3] if line] == written


def test_a_line_without_an_end_goes_on_where_it_was(terminal):
    area = BottomLines(3, terminal.fd)
    terminal.program("50 %")
    area.show(LINES)
    terminal.program(", 100 %\n")
    assert "50 %, 100 %" in terminal.shown


def test_the_terminal_is_given_back_whole(terminal):
    area = BottomLines(3, terminal.fd)
    for number in range(20):
        terminal.program(f"line {number}\n")
        area.show(LINES)
    area.close()
    terminal.program("after\n" * 3)
    assert "first" not in terminal.everything
    assert [line for line in terminal.everything if line] == [
        *(f"line {n}" for n in range(20)),
        "after",
        "after",
        "after",
    ]
    assert terminal.screen.margins in (None, (0, HEIGHT - 1))


def test_another_size_moves_the_lines(terminal):
    area = BottomLines(3, terminal.fd)
    area.show(LINES)
    terminal.read()
    terminal.resize(20)
    area.show(LINES)
    terminal.read()
    assert terminal.shown[-3:-1] == ["first", "second"]
    assert sum(line == "first" for line in terminal.shown) == 1


def test_a_terminal_that_is_too_small_or_dumb_is_left_alone(terminal, monkeypatch):
    terminal.resize(6)
    BottomLines(3, terminal.fd).show(LINES)
    terminal.resize(HEIGHT)
    monkeypatch.setenv("TERM", "dumb")
    BottomLines(3, terminal.fd).show(LINES)
    terminal.read()
    assert not any(terminal.shown)


def test_a_stopped_terminal_does_not_make_us_wait(terminal):
    area = BottomLines(3, terminal.fd)
    for _ in range(2000):  # more than a terminal that nobody reads takes
        area.show(LINES)
    area.close()
