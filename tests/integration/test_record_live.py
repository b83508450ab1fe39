"""`efaprof record --live` on a terminal, and where there is none."""

from __future__ import annotations

import json
import re
import sys

import pexpect
from recording import efaprof, the_run

from efaprof.instrument.dispatch import DispatchOptions, binary
from efaprof.trace.reader import open_tables
from efaprof.trace.rundir import open_run

OPTIONS = DispatchOptions(steps=150, warmup=5, layers=4, tokens=4, compute_us=1500)


def test_a_terminal_shows_rates_layers_nics_drops_and_where_they_point(tmp_path):
    # Steps that wait for their stand-in of computing: about four seconds of them.
    arguments = ["-m", "efaprof", "record", "--live", "-o", "run", "--", str(binary()), *OPTIONS.arguments()]
    screen = pexpect.spawn(
        sys.executable, arguments, cwd=str(tmp_path), timeout=90, encoding="utf-8", dimensions=(40, 200)
    )
    screen.expect(r"efaprof · run · \d+ s · \S+ \S+ of records")
    screen.expect(r"operations ([1-9][\d,]*), now [1-9][\d,]*/s · steps [1-9]")
    counted = int(screen.match[1].replace(",", ""))
    screen.expect(r"time of operations, summed \(they overlap\)")
    screen.expect(r"(proxy|nic|ring) \d+\.\d%")
    screen.expect(r"\w+ sends [\d,.]+ MB/s")
    screen.expect(r"dropped \d")
    screen.expect("so far: points .* efaprof attribute decides")
    screen.expect(pexpect.EOF)
    screen.close()
    assert screen.exitstatus == 0
    assert "next: efaprof attribute run" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.before)
    tables = open_tables(open_run(tmp_path / "run"))
    assert 0 < counted <= tables.facts.records["stage"]
    assert tables.facts.losses.dropped == 0


def test_nothing_is_drawn_where_stderr_is_no_terminal(tmp_path):
    done = efaprof("record", "--live", "--", sys.executable, "-c", "import time; time.sleep(0.3)", cwd=tmp_path)
    assert done.returncode == 0
    assert "so far" not in done.stderr
    assert "\x1b" not in done.stderr
    assert json.loads((the_run(tmp_path) / "manifest.json").read_text())["options"]["live"] is False


def test_the_program_s_own_exit_code_and_output_are_left_alone(tmp_path):
    code = "import time; print('one', flush=True); time.sleep(0.3); print('two', flush=True); raise SystemExit(7)"
    screen = pexpect.spawn(
        sys.executable, ["-m", "efaprof", "record", "--live", "--", sys.executable, "-c", code], cwd=str(tmp_path),
        timeout=60, encoding="utf-8", dimensions=(40, 120),
    )  # fmt: skip
    screen.expect("so far: no verdict")
    screen.expect_exact("one")
    screen.expect_exact("two")
    screen.expect(pexpect.EOF)
    screen.close()
    assert screen.exitstatus == 7


def test_a_program_that_cannot_be_started_leaves_the_terminal_as_it_was(tmp_path):
    program = tmp_path / "broken"
    program.write_bytes(b"\x7fELF but no more")
    program.chmod(0o700)
    screen = pexpect.spawn(
        sys.executable, ["-m", "efaprof", "record", "--live", "--", str(program)], cwd=str(tmp_path), timeout=60,
        encoding="utf-8", dimensions=(40, 120),
    )  # fmt: skip
    screen.expect(pexpect.EOF)
    screen.close()
    assert screen.exitstatus == 126
    taken, given_back = screen.before.rfind("\x1b[1;"), screen.before.rfind("\x1b[r")
    assert given_back >= taken  # the scrolling region, if one was set at all
