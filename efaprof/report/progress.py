"""How far reading is, as a bar on stderr, and only where stderr is a terminal."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress, TaskID

SHOWN_FROM_BYTES = 32 << 20  # smaller files are read before a bar could be seen


_HUSHED: list[bool] = []  # non-empty once --quiet was given


def hush() -> None:
    """Show no bar in this process from here on."""
    _HUSHED.append(True)


def is_hushed() -> bool:
    """Only what was asked for is to be said, and what went wrong."""
    return bool(_HUSHED)


def _is_shown() -> bool:
    return sys.stderr.isatty() and not is_hushed()


class ReadingBar:
    """Progress of one file after another; quiet until a file is large enough."""

    def __init__(self, bars: Progress | None) -> None:
        self._bars = bars
        self._task: TaskID | None = None

    def start(self, name: str, total_bytes: int) -> None:
        """A file of `total_bytes` is about to be read."""
        self._task = None
        if self._bars is not None and total_bytes >= SHOWN_FROM_BYTES:
            self._task = self._bars.add_task(f"reading {name}", total=total_bytes)

    def advance(self, done_bytes: int) -> None:
        """So many further bytes were read."""
        if self._bars is not None and self._task is not None:
            self._bars.advance(self._task, done_bytes)


@contextmanager
def reading_bar() -> Iterator[ReadingBar]:
    """A bar while the block runs; its traces are removed at the end."""
    if not _is_shown():
        yield ReadingBar(None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield ReadingBar(bars)


@contextmanager
def counting_bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar of `total` parts while the block runs; what is yielded says that one more is done."""
    if not _is_shown():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda: bars.advance(task)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Words, and for how long already, while the block runs; for what cannot tell how far it is."""
    if not _is_shown():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bars.add_task(what, total=None)
        yield
