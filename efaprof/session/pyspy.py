"""Sampling the Python stacks of the recorded processes with the program py-spy, one of it for each Python process.

py-spy is started by the recorder, never inside the program, and by default does not stop the program while it looks.
Its output stays in the run's raw/ folder as py-spy wrote it; `raw/python.json` says which file is of which process and
where its times lie on CLOCK_MONOTONIC (efaprof.trace.python_stacks reads both).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from efaprof.session import host
from efaprof.session.birth import birth_ns
from efaprof.session.options import DEFAULT_HZ
from efaprof.session.tree import ProcessTree, is_python, numbered
from efaprof.trace.rundir import PYTHON_INDEX, RAW_DIR

if TYPE_CHECKING:
    from collections.abc import Mapping

    from efaprof.session.sample import Emit

PROGRAM = "py-spy"
INSTALL = "pip install py-spy"
ALLOW = "sudo sysctl kernel.yama.ptrace_scope=0 (docker run --cap-add SYS_PTRACE)"
_SCHEMA = "efaprof.python/1"
_SCAN_S = 0.2
_LONGEST_S = 2.0
_SHARE = 0.02  # of one core that looking for processes may take; with many of them it is done seldomer
_ATTEMPTS = 4  # an interpreter that is still starting cannot be sampled yet
_MOST = 64  # processes sampled at once
_MOST_BYTES = 256 << 20  # of memory of one py-spy, which keeps everything until it ends; then a new one takes over
_STOP_S = 10.0
_DENIED = re.compile(r"permission denied|operation not permitted", re.IGNORECASE)
_COUNTS = re.compile(r"Samples: (\d+) Errors: (\d+)")


def find_program() -> Path | None:
    """py-spy on PATH, or beside the interpreter that runs us (an environment that is not activated)."""
    beside = Path(sys.executable).parent / PROGRAM
    found = shutil.which(PROGRAM) or (str(beside) if os.access(beside, os.X_OK) else None)
    return Path(found) if found else None


@dataclass(slots=True)
class Sampling:
    """One py-spy and the process it looks at. Times are CLOCK_MONOTONIC; what stands in the index."""

    pid: int
    process_start: int | None
    file: str  # in raw/
    spawned_ns: int  # right before it was started
    running_ns: int = 0  # it had been started
    ended_ns: int | None = None  # None: the recorder did not live to see it
    born_ns: int | None = None  # its file was made; None where the file system does not say
    closed_ns: int | None = None  # its file was written
    exit_code: int | None = None
    cpu_s: float = 0.0
    samples: int = 0
    errors: int = 0  # samples that could not be read
    problem: str = ""
    threads: dict[int, int] = field(default_factory=dict)  # tid → last seen alive


@dataclass(slots=True)
class _Target:
    """A Python process and what has been tried with it."""

    spy: int = 0  # process id of the running py-spy; 0: none
    current: Sampling | None = None
    attempts: int = 0
    has_given_up: bool = False


@dataclass(slots=True)
class PythonSpy:
    """Finds the Python processes among the recorded ones and keeps one py-spy at each of them."""

    program: Path
    run: Path
    ring_dir: Path  # names, in a process's environment, that it belongs to this recording
    environment: Mapping[str, str]  # of py-spy: the user's own, without what we give the program
    rate_hz: float = DEFAULT_HZ
    is_native: bool = False
    interval_s: float = _SCAN_S
    samplings: list[Sampling] = field(default_factory=list)
    _targets: dict[int, _Target] = field(default_factory=dict)
    _tree: ProcessTree = field(init=False)
    _has_scanned: bool = False
    _is_ending: bool = False
    _is_denied: bool = False
    _left_out: int = 0
    _trouble: str = ""

    def __post_init__(self) -> None:
        self._tree = ProcessTree(os.getpid(), self.ring_dir)

    @property
    def complaint(self) -> str:
        """Why Python was not sampled, or not all of it; empty when all went as asked."""
        good = [one for one in self.samplings if not one.problem]
        if self._is_denied and not good:
            return f"Python was not sampled: py-spy may not look at the program; type: {ALLOW}"
        failed = {one.problem for one in self.samplings if one.problem}
        pids = {one.pid for one in self.samplings} - {one.pid for one in good}
        said = []
        if pids:
            said.append(f"py-spy could not sample {len(pids)} Python process(es): {'; '.join(sorted(failed))}")
        if self._left_out:
            said.append(f"{self._left_out} Python processes beyond {_MOST} at a time were not sampled")
        if self._trouble:
            said.append(f"py-spy: {self._trouble}")
        return "; ".join(said)

    @property
    def summary(self) -> str:
        """What was sampled and what it took; empty when nothing was."""
        good = [one for one in self.samplings if one.exit_code == 0 and one.ended_ns is not None]
        if not good:
            return ""
        pids = {one.pid for one in good}
        length_s = (max(one.ended_ns or 0 for one in good) - min(one.spawned_ns for one in good)) / 1e9
        cpu = sum(one.cpu_s for one in self.samplings) / length_s if length_s > 0 else 0.0
        paused = ", stopping the program for each look" if self.is_native else ""
        return (
            f"Python of {len(pids)} process{'es' if len(pids) > 1 else ''} sampled {self.rate_hz:g} times a second"
            f"{paused}; py-spy took {100 * cpu:.1f} % of a core"
        )

    def sample(self, emit: Emit) -> None:
        """Reap what ended, attach to what is new."""
        if self._is_ending:
            return
        start = time.thread_time()  # not what others took of the core meanwhile
        try:
            self._reap()
            self._attach()
        except OSError as error:
            self._trouble = f"{error.strerror} ({error.filename})" if error.filename else str(error.strerror)
        # The first scan looks at every process of the machine, later ones at new ones.
        took_s = time.thread_time() - start if self._has_scanned else 0.0
        self.interval_s = min(max(_SCAN_S, took_s / _SHARE), _LONGEST_S)
        self._has_scanned = True

    def _attach(self) -> None:
        here = self._tree.scan(ignored={target.spy for target in self._targets.values() if target.spy})
        for pid in [pid for pid in self._targets if pid not in here and not self._targets[pid].spy]:
            del self._targets[pid]
        for pid in here:
            target = self._targets.get(pid)
            if target is not None and target.spy:
                self._watch(target)
                continue
            if self._is_denied or (target is not None and target.has_given_up):
                continue
            looks_so = is_python(pid)  # each time: a process may become another program
            self._is_denied |= looks_so is None and pid == here[0]
            if not looks_so:
                continue
            target = self._targets.setdefault(pid, _Target())
            if sum(1 for one in self._targets.values() if one.spy) >= _MOST:
                target.has_given_up = True
                self._left_out += 1
            else:
                self._start(pid, target)

    def _watch(self, target: _Target) -> None:
        """Note the threads that live; end a py-spy that has grown too large: the next scan starts another."""
        assert target.current is not None
        now = time.monotonic_ns()
        try:
            target.current.threads.update((tid, now) for tid in numbered(Path(f"/proc/{target.current.pid}/task")))
            pages = int(Path(f"/proc/{target.spy}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return  # either ended just now
        if pages * os.sysconf("SC_PAGE_SIZE") > _MOST_BYTES:
            os.kill(target.spy, signal.SIGINT)

    def _start(self, pid: int, target: _Target) -> None:
        number = sum(1 for one in self.samplings if one.pid == pid)
        sampling = Sampling(pid, host.process_start(pid), f"python-{pid}-{number}.json", time.monotonic_ns())
        raw = self.run / RAW_DIR
        log = os.open(raw / f"{sampling.file}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        pausing = "--native" if self.is_native else "--nonblocking"
        try:
            target.spy = os.posix_spawn(
                self.program,
                [PROGRAM, "record", "--pid", str(pid), "--rate", f"{max(round(self.rate_hz), 1)}", "--format",
                 "chrometrace", "--idle", "--threads", "--full-filenames", pausing, "--output",
                 str((raw / sampling.file).absolute())],
                self.environment,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                ],
                setpgroup=0,  # the terminal's Ctrl-C is for the program
                setsigmask=(),
                setsigdef=(signal.SIGINT, signal.SIGPIPE),
            )  # fmt: skip
        finally:
            os.close(log)
        sampling.running_ns = time.monotonic_ns()
        target.current = sampling
        target.attempts += 1
        self.samplings.append(sampling)
        self._write_index()

    def _reap(self) -> None:
        """Take note of every py-spy that has ended."""
        for target in self._targets.values():
            if not target.spy:
                continue
            pid, status, usage = os.wait4(target.spy, os.WNOHANG)
            if pid:
                self._ended(target, os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime)

    def _ended(self, target: _Target, code: int, cpu_s: float) -> None:
        sampling, target.spy, target.current = target.current, 0, None
        assert sampling is not None
        sampling.exit_code, sampling.cpu_s, sampling.ended_ns = code, cpu_s, time.monotonic_ns()
        path = self.run / RAW_DIR / sampling.file
        log = path.with_name(f"{path.name}.log")
        text = log.read_text(errors="replace")
        if code == 0 and path.exists():
            target.attempts = 0
            ahead_ns = time.time_ns() - time.monotonic_ns()
            born_ns = birth_ns(path)
            sampling.born_ns = born_ns - ahead_ns if born_ns is not None else None
            sampling.closed_ns = path.stat().st_mtime_ns - ahead_ns
            if found := _COUNTS.search(text):
                sampling.samples, sampling.errors = int(found[1]), int(found[2])
            log.unlink()
        elif host.process_start(sampling.pid) != sampling.process_start or self._is_ending:
            # It ended before py-spy had read anything.
            self.samplings.remove(sampling)
            log.unlink()
        elif _DENIED.search(text):
            self._is_denied = target.has_given_up = True
            sampling.problem = "permission denied"
        elif target.attempts >= _ATTEMPTS:
            target.has_given_up = True
            sampling.problem = next((line for line in text.splitlines() if line.strip()), f"it ended with code {code}")
        else:
            self.samplings.remove(sampling)
        self._write_index()

    def interrupt(self) -> None:
        """Ask every py-spy to write what it has and to end; nothing new is looked for."""
        self._is_ending = True
        for target in self._targets.values():
            if target.spy:
                os.kill(target.spy, signal.SIGINT)  # not waited for yet: the id is still its own

    def stop(self) -> None:
        """End every py-spy and wait for its file; what does not come within ten seconds is given up and said."""
        self.interrupt()
        deadline = time.monotonic() + _STOP_S
        self._reap()
        while any(target.spy for target in self._targets.values()) and time.monotonic() < deadline:
            time.sleep(0.005)
            self._reap()
        for target in self._targets.values():
            if target.spy:
                os.kill(target.spy, signal.SIGKILL)
                _, status, usage = os.wait4(target.spy, 0)
                self._trouble = f"it did not end within {_STOP_S:g} s and was killed; its samples are lost"
                self._ended(target, os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime)
        self._write_index()

    def _write_index(self) -> None:
        content: dict[str, Any] = {
            "schema": _SCHEMA,
            "rate_hz": self.rate_hz,
            "native": self.is_native,
            "tick_ns": _tick_ns(),
            "samplings": [asdict(one) for one in self.samplings],
        }
        path = self.run / RAW_DIR / PYTHON_INDEX
        draft = path.with_name(f".{path.name}")
        draft.write_text(json.dumps(content) + "\n", encoding="utf-8")
        draft.replace(path)


def _tick_ns() -> int:
    """Resolution of the time that a file system gives to files: the kernel's tick."""
    coarse = 5  # CLOCK_REALTIME_COARSE, which Python does not name
    try:
        return round(time.clock_getres(coarse) * 1e9)
    except OSError:
        return 10_000_000
