"""When bench/gdaki_faults.py takes a row of its table for good."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(name="faults")
def _faults(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), str(ROOT / "tests" / "gpu"), *sys.path])
    import gdaki_faults

    return gdaki_faults


def row(faults, *ends):
    found = faults.Row()
    for outcome, seconds, line in ends:
        found.add(outcome, seconds, line)
    return found


@pytest.mark.parametrize(
    ("name", "ends", "is_good", "said"),
    [
        ("reorders", [("verified", 1.0, ""), ("verified", 2.0, "")], True, "| 2 | 0 | 0 | 2.00 | kept | – |"),
        ("drops", [("named", 1.5, "waited"), ("named", 1.2, "later")], True, "| 0 | 2 | 0 | 1.50 | kept | waited |"),
        ("drops", [("verified", 0.1, ""), ("named", 99.0, "waited")], False, "NOT KEPT"),
        ("drops", [("named", 1.0, "waited"), ("wrong", 1.0, "GPU: no")], False, "| GPU: no |"),
        ("reorders", [("named", 1.0, "waited")], False, "waited"),
    ],
    ids=["harmless", "named", "late", "wrong", "harmless but named"],
)
def test_a_row_is_good_when_every_run_ended_in_time_and_as_it_may(faults, capsys, name, ends, is_good, said):
    assert faults.show("inside", name, row(faults, *ends)) is is_good
    assert said in capsys.readouterr().out


def test_a_program_that_ends_early_is_no_run_of_a_row(faults, monkeypatch, tmp_path):
    program = tmp_path / "bin" / "gda_fuzz"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho '1 1 named 200.5 the kernel waited'\necho '2 0 named 3 GPU: bad'\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("EFAPROF_BUILD_DIR", str(tmp_path))
    found = faults.inside(["drop"], "cpu", 3)
    assert (found.named, found.wrong, found.longest_s) == (1, 2, 0.2005)
    assert found.failures == ["GPU: bad", "exit code 3 after 2 of 3 runs: "]
