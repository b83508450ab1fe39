"""A lane that posts by itself over a device that does wrong: it ends soon, rightly or with a line that names it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

TIMEOUT_S = 120
HARMLESS = ("none", "reorder", "delay")
# What the device does, and a word of every line that may come of it.
NAMED = {
    "drop": ("waited",), "lose": ("waited",), "error": ("ended with status", "an arrival ended"),
    "flip": ("reference is", "came as step", "the notice", "announced other counts"),
    "qpn": ("names queue pair",), "request": ("not in flight",),
    "garbage": ("names queue pair", "not in flight", "an arrival ended", "of no queue"),
}  # fmt: skip
# These can be made good: a repeat may come when nobody looks any more.
PERHAPS = {
    "repeat": ("arrived twice", "arrived further ahead"), "twice": ("not in flight",),
    "immediate": ("arrived", "do not exist", "waited"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """How one case ended."""

    seed: int
    faults: int
    outcome: str
    message: str


def cases(build_dir: Path, fault: str, count: int, *more: str, first: int = 1) -> list[Case]:
    program = build_dir / "bin" / "gda_fuzz"
    if not program.is_file():
        pytest.skip("gda_fuzz was not built: it needs libfabric-dev")
    done = subprocess.run(
        [program, fault, str(first), str(count), *more], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = []
    for line in done.stdout.splitlines():
        seed, faults, outcome, _, message = line.split(" ", 4)
        found.append(Case(int(seed), int(faults), outcome, message))
    assert len(found) == count
    return found


@pytest.mark.parametrize("fault", HARMLESS)
def test_any_order_and_any_delay_give_the_right_answer(build_dir, fault):
    assert {case.outcome for case in cases(build_dir, fault, 10)} == {"verified"}


@pytest.mark.parametrize("fault", NAMED)
def test_what_the_device_does_wrong_is_named(build_dir, fault):
    found = cases(build_dir, fault, 8)
    struck = [case for case in found if case.faults]
    assert len(struck) >= 4
    for case in struck:
        assert case.outcome == "named", case
        assert any(word in case.message for word in (*NAMED[fault], "waited")), case
    assert {case.outcome for case in found if not case.faults} <= {"verified"}


@pytest.mark.parametrize("fault", PERHAPS)
def test_what_comes_twice_or_under_another_name_is_never_a_wrong_answer(build_dir, fault):
    found = cases(build_dir, fault, 12)
    assert {case.outcome for case in found} <= {"verified", "named"}
    named = [case for case in found if case.outcome == "named"]
    assert named
    for case in named:
        assert any(word in case.message for word in (*PERHAPS[fault], "waited", "not in flight")), case


def test_entries_with_a_bit_flipped_end_in_the_right_answer_or_a_named_error(build_dir):
    found = cases(build_dir, "reorder", 25, "entries")
    assert {case.outcome for case in found} == {"verified", "named"}


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*HARMLESS, *NAMED, *PERHAPS])
def test_many_cases_of_each_fault_never_give_a_wrong_answer(build_dir, fault):
    found = [case for first in range(1000, 1200, 50) for case in cases(build_dir, fault, 50, first=first)]
    found += cases(build_dir, fault, 50, "entries", first=2000)
    assert {case.outcome for case in found} <= {"verified", "named"}
