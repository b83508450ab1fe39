"""Signals, job control and the terminal: as without us, and the trace is safe whatever comes."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pexpect
import pytest
from recording import EFAPROF, efaprof, manifest, wait_until, writer, written

# Says on its output which signals it gets; ends by SIGTERM, or when told.
LISTENER = """
import os, signal, sys, time
got = []
def heard(number, frame):
    got.append(number)
    print("got", signal.Signals(number).name, flush=True)
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), heard)
signal.signal(signal.SIGTERM, lambda *_: (print("total", len(got), flush=True), os._exit(17)))
print("ready", os.getpid(), flush=True)
while True: time.sleep(0.01)
"""


class Recorded:
    """A program under record, its output read line by line."""

    def __init__(self, folder: Path, *command: str, **options) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [*EFAPROF, "record", "-q", "-o", "r", "--", *command], cwd=folder, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, **options,
        )  # fmt: skip

    def line(self) -> str:
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, str]:
        """Exit code and what stood on stderr."""
        _, stderr = self.process.communicate(timeout=60)
        return self.process.returncode, stderr


@pytest.fixture
def listener(tmp_path):
    started: list[Recorded] = []

    def start(*names: str, **options) -> Recorded:
        recorded = Recorded(tmp_path, sys.executable, "-c", LISTENER, *names, **options)
        started.append(recorded)
        recorded.program = int(recorded.line().split()[1])
        return recorded

    yield start
    for recorded in started:
        if recorded.process.poll() is None:
            recorded.process.kill()
            os.kill(recorded.program, signal.SIGKILL)
        recorded.process.communicate()


@pytest.mark.parametrize(
    "name", ["SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGALRM", "SIGPROF"]
)
def test_a_signal_sent_to_the_recorder_reaches_the_program_once(listener, name):
    recorded = listener(name)
    recorded.process.send_signal(getattr(signal, name))
    assert recorded.line() == f"got {name}"
    recorded.process.send_signal(signal.SIGTERM)
    assert recorded.line() == "total 1"
    assert recorded.end()[0] == 17


def test_real_time_signals_reach_it_too(listener):
    recorded = listener("SIGRTMIN")
    recorded.process.send_signal(signal.SIGRTMIN)
    assert recorded.line() == "got SIGRTMIN"


def test_many_signals_all_arrive(listener):
    recorded = listener("SIGUSR1")
    for _ in range(50):
        recorded.process.send_signal(signal.SIGUSR1)
        assert recorded.line() == "got SIGUSR1"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGSEGV, signal.SIGRTMIN + 3])
def test_a_program_killed_by_a_signal_gives_128_and_its_number(tmp_path, number):
    done = efaprof("record", "-o", "r", "--", *writer(100, f"os.kill(os.getpid(), {int(number)})"), cwd=tmp_path)
    assert done.returncode == 128 + number
    assert "was killed by" in done.stderr
    said = manifest(tmp_path / "r")
    assert (said["exit_code"], said["signal"]) == (None, number)
    assert written(tmp_path / "r").counters["test.value"] == list(range(100))


def test_a_second_interrupt_does_not_lose_the_trace(tmp_path):
    then = "try:\n print('ready', flush=True)\n while True: time.sleep(0.01)\nexcept KeyboardInterrupt: write(9000, 1)"
    recorded = Recorded(tmp_path, *writer(1, then))
    assert recorded.line() == "ready"
    recorded.process.send_signal(signal.SIGINT)
    while recorded.process.poll() is None:  # every one after the first finds the program, or the recorder, at its end
        recorded.process.send_signal(signal.SIGHUP)
        time.sleep(0.002)
    code, _ = recorded.end()
    assert code in {0, 128 + signal.SIGHUP}
    run = tmp_path / "r"
    assert manifest(run)["ended_realtime_ns"]
    values = written(run).counters["test.value"]
    assert values == list(range(len(values)))


def test_what_was_ignored_when_we_started_stays_ignored(listener):
    recorded = listener("SIGUSR2", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    recorded.process.send_signal(signal.SIGHUP)
    recorded.process.send_signal(signal.SIGUSR2)
    assert recorded.line() == "got SIGUSR2"
    status = Path(f"/proc/{recorded.program}/status").read_text()
    ignored = int(status.split("SigIgn:")[1].split()[0], 16)
    assert ignored >> signal.SIGHUP - 1 & 1


def test_an_ignored_sigchld_does_not_hide_the_exit_code(tmp_path):
    recorded = Recorded(
        tmp_path, "sh", "-c", "exit 9", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    )
    assert recorded.end()[0] == 9


def test_no_thread_of_the_recorder_can_be_given_a_signal(listener):
    recorded = listener()
    for task in Path(f"/proc/{recorded.process.pid}/task").iterdir():
        mask = int((task / "status").read_text().split("SigBlk:")[1].split()[0], 16)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1):
            # The main thread waits for them: the kernel shows them as not blocked for that time.
            assert mask >> number - 1 & 1 or int(task.name) == recorded.process.pid


def test_an_alarm_set_before_we_were_executed_reaches_the_program(tmp_path):
    line = "use POSIX; alarm 2; exec @ARGV"
    done = subprocess.run(
        ["perl", "-e", line, *EFAPROF, "record", "-q", "-o", "r", "sleep", "60"], cwd=tmp_path, check=False,
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode in {128 + signal.SIGALRM, -signal.SIGALRM}
    assert done.returncode == -signal.SIGALRM or manifest(tmp_path / "r")["signal"] == signal.SIGALRM


def test_stop_and_continue_pass_through(listener):
    # A group of its own, with a parent outside it: the kernel ignores SIGTSTP in orphaned groups, as under nohup.
    recorded = listener("SIGUSR1", process_group=0)

    def state(pid: int) -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    recorded.process.send_signal(signal.SIGTSTP)
    wait_until(lambda: state(recorded.program) == "T")
    wait_until(lambda: state(recorded.process.pid) == "T")
    recorded.process.send_signal(signal.SIGCONT)
    wait_until(lambda: state(recorded.program) != "T")
    recorded.process.send_signal(signal.SIGUSR1)
    assert recorded.line() == "got SIGUSR1"


def test_a_program_stopped_by_itself_does_not_stop_the_recorder(listener):
    recorded = listener("SIGUSR1")
    os.kill(recorded.program, signal.SIGSTOP)
    os.kill(recorded.program, signal.SIGCONT)
    recorded.process.send_signal(signal.SIGUSR1)
    assert recorded.line() == "got SIGUSR1"


def test_a_signal_that_comes_before_the_program_starts_it_not_at_all(tmp_path):
    # Held from the first moment: the signal is pending before the recorder looks at anything.
    code = (
        "import os, signal, sys; from efaprof.session.signals import SignalGate\n"
        "before = SignalGate.__init__\n"
        "def init(gate): before(gate); os.kill(os.getpid(), signal.SIGTERM)\n"
        "SignalGate.__init__ = init\n"
        "sys.argv = ['efaprof', 'record', '-o', 'r', '--', 'touch', 'started']\n"
        "from efaprof.cli.app import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 128 + signal.SIGTERM
    assert "SIGTERM came before the command was started" in done.stderr
    assert list(tmp_path.iterdir()) == []


# ---- on a terminal ----------------------------------------------------------------------------


@pytest.fixture
def terminal(tmp_path):
    shells: list[pexpect.spawn] = []

    def start() -> pexpect.spawn:
        shell = pexpect.spawn(
            "bash", ["--norc", "--noprofile", "-i"], cwd=str(tmp_path), encoding="utf-8", timeout=60, echo=False,
            env={**os.environ, "PS1": "PROMPT> ", "TERM": "dumb", "HISTFILE": ""},
        )  # fmt: skip
        shells.append(shell)
        shell.expect_exact("PROMPT> ")
        return shell

    yield start
    for shell in shells:
        shell.close(force=True)


def under_record(*command: str) -> str:
    return shlex.join([*EFAPROF, "record", "-q", "-o", "r", "--", *command])


def test_ctrl_c_reaches_the_program_once(terminal):
    shell = terminal()
    shell.sendline(under_record(sys.executable, "-c", LISTENER, "SIGINT"))
    shell.expect("ready ([0-9]+)")
    program = int(shell.match[1])
    for _ in range(3):
        shell.sendintr()
        shell.expect("got SIGINT")
    os.kill(program, signal.SIGTERM)
    shell.expect("total 3")
    shell.expect_exact("PROMPT> ")
    shell.sendline("echo code=$?")
    shell.expect("code=17")


def test_ctrl_c_ends_a_script_that_runs_us_in_a_loop_as_without_us(terminal, tmp_path):
    script = tmp_path / "loop.sh"
    script.write_text(
        f"for i in 1 2 3; do {shlex.join([*EFAPROF, 'record', '-q', '-f', '-o', 'r', '--', 'sh', '-c'])}"
        " 'echo round; exec sleep 60'; done; echo went on\n"
    )
    shell = terminal()
    shell.sendline(f"bash {script}")
    shell.expect("round")
    shell.sendintr()
    shell.expect_exact("PROMPT> ")
    assert "went on" not in shell.before
    assert "round" not in shell.before
    shell.sendline("echo code=$?")
    shell.expect("code=130")
    assert manifest(tmp_path / "r")["signal"] == signal.SIGINT


def test_ctrl_backslash_gives_the_programs_end(terminal, tmp_path):
    shell = terminal()
    shell.sendline(under_record("sh", "-c", "ulimit -c 0; echo ready; exec sleep 60") + "; echo code=$?")
    shell.expect("ready")
    shell.sendcontrol("\\")
    shell.expect(f"code={128 + signal.SIGQUIT}")
    assert manifest(tmp_path / "r")["signal"] == signal.SIGQUIT


def test_ctrl_z_stops_the_job_and_fg_continues_it(terminal, tmp_path):
    shell = terminal()
    then = "print('re' + 'ady', flush=True); value = input(); write(100, 1); print('read', value)"
    shell.sendline(under_record(*writer(1, then)))
    shell.expect("ready")
    shell.sendcontrol("z")
    shell.expect("Stopped")
    shell.expect_exact("PROMPT> ")
    shell.sendline("jobs; echo listed")
    shell.expect("Stopped.*listed")
    shell.sendline("fg")
    shell.sendline("a line")
    shell.expect("read a line")
    shell.expect_exact("PROMPT> ")
    assert written(tmp_path / "r").counters["test.value"] == list(range(101))


def test_a_background_job_that_reads_the_terminal_is_stopped(terminal):
    shell = terminal()
    shell.sendline(under_record("sh", "-c", "read line; echo read $line") + " &")
    shell.expect_exact("PROMPT> ")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        shell.sendline("jobs; echo listed")
        shell.expect("listed")
        if "Stopped" in shell.before:
            break
        shell.expect_exact("PROMPT> ")
    else:
        pytest.fail("the job was not stopped")
    shell.sendline("fg")
    shell.sendline("hello")
    shell.expect("read hello")


def test_the_program_sees_the_terminal_and_its_size(terminal):
    shell = terminal()
    shell.setwinsize(33, 99)
    code = (
        "import os; print('tty', [os.isatty(n) for n in (0, 1, 2)], os.get_terminal_size(0),"
        " os.getpgrp() == os.tcgetpgrp(0))"
    )
    shell.sendline(under_record(sys.executable, "-c", code))
    shell.expect(r"tty \[True, True, True\] os.terminal_size\(columns=99, lines=33\) True")


def test_a_resize_reaches_the_program_once(terminal):
    shell = terminal()
    shell.sendline(under_record(sys.executable, "-c", LISTENER, "SIGWINCH"))
    shell.expect("ready ([0-9]+)")
    program = int(shell.match[1])
    shell.setwinsize(40, 100)
    shell.expect("got SIGWINCH")
    os.kill(program, signal.SIGTERM)
    shell.expect("total 1")


def test_a_hang_up_of_the_terminal_closes_the_run(tmp_path):
    command = [*EFAPROF, "record", "-q", "-o", "r", "--", *writer(50, "print('ready', flush=True); time.sleep(60)")]
    shell = pexpect.spawn(command[0], command[1:], cwd=str(tmp_path), timeout=60, encoding="utf-8")
    shell.expect("ready")
    shell.close(force=False)  # the recorder is the session's leader: only it is told
    wait_until(lambda: manifest(tmp_path / "r")["ended_realtime_ns"])
    assert manifest(tmp_path / "r")["signal"] == signal.SIGHUP
    assert written(tmp_path / "r").counters["test.value"] == list(range(50))
