"""Starting the program and standing between it and whoever sends us signals, as if we were not there.

The program runs in our process group and on our terminal. A signal that the terminal sends to the group reaches it
without us; one that is sent to our process id is passed on. All are blocked here and fetched with sigtimedwait, so
none can end the recorder before the trace is safe.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from efaprof.session.command import Command, exec_error

if TYPE_CHECKING:
    from types import TracebackType

_SI_KERNEL = 0x80  # si_code of a signal that no process sent
_STOPS = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
# The kernel sends these to a whole process group (terminal keys, hang-up, resize).
_GROUP_SENT = _STOPS | {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGWINCH, signal.SIGCONT}
# Not ours to hold: they cannot be caught, or mean that this process itself went wrong.
_LEFT_ALONE = frozenset(
    {
        signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP,
        signal.SIGSYS, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGXCPU,
    }
)  # fmt: skip
# The Python interpreter ignores these for itself; the program gets their default back.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


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
    """Holds every signal that can be passed on, from `with` to its end."""

    def __init__(self) -> None:
        # What was ignored when we were started (nohup, a shell's `&`) stays ignored, for us and for the program.
        self.held: set[int] = {
            number
            for number in signal.valid_signals()
            if number not in _LEFT_ALONE and signal.getsignal(number) is not signal.SIG_IGN
        } | {signal.SIGCHLD}
        self.mask_before: set[int] = set()

    def __enter__(self) -> SignalGate:
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            # Else the kernel throws the program's exit status away.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.mask_before = set(signal.pthread_sigmask(signal.SIG_BLOCK, self.held))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What arrived after the program's end was meant for it and is moot.
        while signal.sigtimedwait(self.held, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask_before)


class Child:
    """The running program; must be waited for with `wait` until that returns its ending."""

    def __init__(self, command: Command, environment: dict[str, str], gate: SignalGate) -> None:
        """Start it; NotExecutable or CommandNotFound when the kernel refuses."""
        self._gate = gate
        self._is_interrupted = False
        self._stop_asked: int | None = None
        self._is_stopped = False
        try:
            self.pid = os.posix_spawn(
                command.exec_path,
                command.exec_argv,
                environment,
                setsigmask=gate.mask_before,
                setsigdef=_IGNORED_BY_PYTHON,
            )
        except OSError as error:
            raise exec_error(command, error) from error

    def wait(self, timeout_s: float) -> Ending | None:
        """The program's ending, or None when it still runs after `timeout_s`; passes signals on meanwhile."""
        # Bound to one signal a call: a storm of them must not keep the caller from draining.
        if (info := signal.sigtimedwait(self._gate.held, max(timeout_s, 0.0))) is None:
            return None
        if info.si_signo != signal.SIGCHLD:
            self._pass_on(info.si_signo, is_from_kernel=info.si_code == _SI_KERNEL)
        ending = self._look()
        if ending is None and self._is_stopped and self._stop_asked is not None:
            self._stop_too(self._stop_asked)
        return ending

    def _pass_on(self, number: int, *, is_from_kernel: bool) -> None:
        if number == signal.SIGINT and is_from_kernel:
            self._is_interrupted = True
        if number in _STOPS:
            self._stop_asked = number
        if is_from_kernel and number in _GROUP_SENT and self._got_it_too(number):
            return
        if number == signal.SIGCONT:
            self._stop_asked = None
            if not _is_stopped(self.pid):
                return  # a shell's `fg` continues the whole group: the program has it already
        self.send(number)

    def _got_it_too(self, number: int) -> bool:
        """The kernel sent this signal to the program's group as well as to us."""
        if number == signal.SIGHUP and os.getsid(0) == os.getpid():
            return False  # a hang-up is for the session leader alone
        try:
            return os.getpgid(self.pid) == os.getpgid(0)
        except ProcessLookupError:
            return True

    def send(self, number: int) -> None:
        """Send a signal to the program. Its process id cannot be reused: we have not waited for it yet."""
        os.kill(self.pid, number)

    def _look(self) -> Ending | None:
        while (
            state := os.waitid(os.P_PID, self.pid, os.WEXITED | os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
        ) is not None:
            if state.si_code == os.CLD_EXITED:
                return Ending(state.si_status)
            if state.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
                return Ending(None, state.si_status, was_interrupted=self._is_interrupted)
            self._is_stopped = state.si_code == os.CLD_STOPPED
        return None

    def _stop_too(self, number: int) -> None:
        """Stop ourselves as the program stopped, so that the shell sees its job stopped; returns when continued."""
        self._stop_asked = None
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        signal.pthread_sigmask(signal.SIG_BLOCK, {number})


def signal_name(number: int) -> str:
    """`SIGSEGV`, or `signal 40` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"T", "t"}
    except OSError:
        return False
