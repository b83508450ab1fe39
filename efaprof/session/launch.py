"""Starting the program and standing between it and whoever sends us signals, as if we were not there.

The program runs in our process group and on our terminal. A signal that the terminal sends to the group reaches it
without us; one that is sent to our process id is passed on. All are blocked here and fetched with sigtimedwait, so
none can end the recorder before the trace is safe.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from efaprof.session.command import Command, exec_error
from efaprof.session.signals import Ending

if TYPE_CHECKING:
    from efaprof.session.signals import SignalGate

_SI_KERNEL = 0x80  # si_code of a signal that no process sent
_STOPS = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
# The kernel sends these to a whole process group (terminal keys, hang-up, resize).
_GROUP_SENT = _STOPS | {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGWINCH, signal.SIGCONT}
# The Python interpreter ignores these for itself; the program gets their default back.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


class Child:
    """The running program; must be waited for with `wait` until that returns its ending."""

    def __init__(self, command: Command, environment: dict[str, str], gate: SignalGate) -> None:
        """Start it; NotExecutable or CommandNotFound when the kernel refuses."""
        self._gate = gate
        self._is_interrupted = False
        self._stop_asked: int | None = None
        self._is_stopped = False
        gate.check()
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
        info = self._gate.next(timeout_s)
        if info is not None and info.si_signo != signal.SIGCHLD:
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


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"T", "t"}
    except OSError:
        return False
