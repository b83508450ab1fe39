"""Holding signals while a program is recorded.

Imports nothing that starts threads: a thread that was there before the signals are held would be given them.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from efaprof.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterable

_SIGSET_WORDS = 16  # of the C library's sigset_t; the kernel has signals in the first

# Not ours to hold: they cannot be caught, or mean that this process itself went wrong.
_LEFT_ALONE = frozenset(
    {
        signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP,
        signal.SIGSYS, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGXCPU,
    }
)  # fmt: skip
# Coming before the command runs, these mean: do not start it.
_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})


@dataclass(frozen=True, slots=True)
class Ending:
    """How the program ended."""

    exit_code: int | None  # None: killed by `signal`
    signal: int | None = None
    was_interrupted: bool = False  # the terminal's Ctrl-C came to us too

    @property
    def status(self) -> int:
        """Exit status as a shell shows it: the program's own, or 128 + signal."""
        return self.exit_code if self.exit_code is not None else 128 + (self.signal or 0)

    def leave(self) -> NoReturn:
        """End this process with the program's status."""
        if self.was_interrupted and self.signal == signal.SIGINT:
            # Die as the program died: a shell script then ends too, as it does without us. Shells show 130.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            os.kill(os.getpid(), signal.SIGINT)
        sys.exit(self.status)


class SignalGate:
    """Holds every signal that can be passed on, from its making to the end of this process.

    They stay held while the process ends: one that comes then must not change the exit code, which is the program's.
    """

    def __init__(self) -> None:
        # What was ignored when we were started (nohup, a shell's `&`) stays ignored, for us and for the program.
        self.held: set[int] = {
            number
            for number in signal.valid_signals()
            if number not in _LEFT_ALONE and signal.getsignal(number) is not signal.SIG_IGN
        } | {signal.SIGCHLD}
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            # Else the kernel throws the program's exit status away.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.mask_before: set[int] = set(signal.pthread_sigmask(signal.SIG_BLOCK, self.held))
        self._fd = _signal_descriptor(self.held)

    def next(self, timeout_s: float) -> signal.struct_siginfo | None:
        """The next held signal, or None when none comes in time.

        CPython's sigtimedwait returns what it never filled in when a stop and a continue interrupt it and the time is
        over by then. So the time is waited for elsewhere, and it is asked only for what is there already.
        """
        select.select([self._fd], [], [], max(timeout_s, 0.0))
        return signal.sigtimedwait(self.held, 0)

    def check(self) -> None:
        """Raise NotStarted when a signal that came meanwhile says not to start the command at all."""
        if ending := signal.sigpending() & _ENDING & self.held:
            raise NotStarted(min(ending))


def _signal_descriptor(numbers: Iterable[int]) -> int:
    """A signalfd: readable while one of these signals is pending. Closed on exec."""
    mask = sum(1 << (number - 1) for number in numbers)
    words = (ctypes.c_uint64 * _SIGSET_WORDS)(mask)
    descriptor = ctypes.CDLL(None, use_errno=True).signalfd(-1, words, os.O_CLOEXEC | os.O_NONBLOCK)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "signalfd")
    return int(descriptor)


class NotStarted(RecordError):
    """A signal came before the command was started."""

    def __init__(self, number: int) -> None:
        super().__init__(f"{signal_name(number)} came before the command was started")
        self.exit_code = 128 + number


def signal_name(number: int) -> str:
    """`SIGSEGV`, or `signal 40` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
