"""The last lines of a terminal, kept for us while a program goes on writing above them.

The terminal itself is told to scroll only what lies above (a scrolling region), so nothing that the program writes is
ever overwritten. Everything is written in one piece: the program's own output may come at any time.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

_SAVE, _RESTORE = "\x1b7", "\x1b8"
_LEAST_ABOVE = 4  # lines that must be left to the program


@dataclass(slots=True)
class BottomLines:
    """`count` lines at the bottom of the terminal that a file descriptor writes to (stderr unless another is given)."""

    count: int
    fd: int = 2
    _height: int = 0  # of the terminal for which lines are kept; 0: none are
    _own_fd: int = -1  # the same terminal, opened so that a stopped one (Ctrl-S) does not make us wait

    def show(self, lines: Sequence[Text]) -> None:
        """Draw the lines, cut at the width; nothing on a terminal that is too small or can do nothing."""
        width, height = os.get_terminal_size(self.fd)
        if height < self.count + _LEAST_ABOVE or os.environ.get("TERM", "") in {"", "dumb"}:
            self.close()
            return
        out = "" if height == self._height else self._freed() + self._kept(height)
        self._height = height
        out += _SAVE
        for number, text in enumerate(self._rendered(lines, width)):
            out += f"\x1b[{height - self.count + 1 + number};1H\x1b[2K{text}"
        self._write(out + _RESTORE)

    def close(self) -> None:
        """Give the lines back, empty."""
        if self._height:
            self._write(self._freed())
            self._height = 0
        if self._own_fd >= 0:
            os.close(self._own_fd)
            self._own_fd = -1

    def _kept(self, height: int) -> str:
        # Make room below the cursor, wherever it is, before the region is set: setting it moves the cursor.
        return "\x1bD" * self.count + f"\x1b[{self.count}A{_SAVE}\x1b[1;{height - self.count}r{_RESTORE}"

    def _freed(self) -> str:
        if not self._height:
            return ""
        return f"{_SAVE}\x1b[r\x1b[{self._height - self.count + 1};1H\x1b[J{_RESTORE}"

    def _rendered(self, lines: Sequence[Text], width: int) -> list[str]:
        console = Console(file=StringIO(), force_terminal=True, width=width, no_color="NO_COLOR" in os.environ)
        found = []
        for line in lines[: self.count]:
            cut = line.copy()
            cut.truncate(max(width - 1, 1), overflow="ellipsis")
            with console.capture() as captured:
                console.print(cut, end="", no_wrap=True, crop=True)
            found.append(captured.get())
        return found

    def _write(self, text: str) -> None:
        if self._own_fd < 0:
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            self._own_fd = os.open(os.ttyname(self.fd), flags)
        data = text.encode(getattr(sys.stderr, "encoding", None) or "utf-8", errors="replace")
        try:
            while data:
                data = data[os.write(self._own_fd, data) :]
        except BlockingIOError:
            return  # the terminal takes nothing more now: the next picture is whole again
