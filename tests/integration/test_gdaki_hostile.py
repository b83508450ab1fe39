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
    "qpn": ("names queue pair",), "request": ("not in flight",),
    "garbage": ("names queue pair", "not in flight", "an arrival ended", "of no queue"),
}  # fmt: skip
# These can be made good: a repeat may come when nobody looks any more, a flipped bit be lost in a sum's rounding.
PERHAPS = {
    "flip": ("reference is", "came as step", "the notice", "announced other counts"),
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


def program_of(build_dir: Path) -> Path:
    program = build_dir / "bin" / "gda_fuzz"
    if not program.is_file():
        pytest.skip("gda_fuzz was not built: it needs libfabric-dev")
    return program


@pytest.fixture(scope="module")
def warps(build_dir, beside_warps) -> Path:
    """The program beside kernels that run on a CPU."""
    return beside_warps(program_of(build_dir))


def cases(program: Path, fault: str, count: int, *more: str, first: int = 1) -> list[Case]:
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
    assert {case.outcome for case in cases(program_of(build_dir), fault, 10)} == {"verified"}


@pytest.mark.parametrize("fault", NAMED)
def test_what_the_device_does_wrong_is_named(build_dir, fault):
    found = cases(program_of(build_dir), fault, 8)
    struck = [case for case in found if case.faults]
    assert len(struck) >= 4
    for case in struck:
        assert case.outcome == "named", case
        assert any(word in case.message for word in (*NAMED[fault], "waited")), case
    assert {case.outcome for case in found if not case.faults} <= {"verified"}


@pytest.mark.parametrize("fault", PERHAPS)
def test_what_comes_twice_or_under_another_name_is_never_a_wrong_answer(build_dir, fault):
    found = cases(program_of(build_dir), fault, 12)
    assert {case.outcome for case in found} <= {"verified", "named"}
    named = [case for case in found if case.outcome == "named"]
    assert named
    for case in named:
        assert any(word in case.message for word in (*PERHAPS[fault], "waited", "not in flight")), case


def test_entries_with_a_bit_flipped_end_in_the_right_answer_or_a_named_error(build_dir):
    found = cases(program_of(build_dir), "reorder", 25, "entries")
    assert {case.outcome for case in found} == {"verified", "named"}


@pytest.mark.parametrize(("fault", "said"), [("drop", "waited"), ("error", "counter of errors went up by")])
def test_a_counter_that_stays_behind_or_counts_errors_is_named(build_dir, fault, said):
    found = cases(program_of(build_dir), fault, 6, "counter")
    struck = [case for case in found if case.faults]
    assert struck
    assert all(case.outcome == "named" and said in case.message for case in struck), struck


@pytest.mark.parametrize("fault", ["reorder", "delay"])
def test_a_counter_gives_the_right_answer_in_any_order(build_dir, fault):
    assert {case.outcome for case in cases(program_of(build_dir), fault, 6, "counter")} == {"verified"}


# ---- the same in warps
WARPS_NAMED = {"drop": "waited", "error": "ended with status", "request": "is not in flight"}


@pytest.mark.parametrize("more", [(), ("counter",)], ids=["queue", "counter"])
def test_warps_give_the_right_answer_in_any_order(warps, more):
    assert {case.outcome for case in cases(warps, "reorder", 2, "cuda", *more)} == {"verified"}


@pytest.mark.parametrize("fault", WARPS_NAMED)
def test_what_the_device_does_wrong_is_named_by_a_warp(warps, fault):
    struck = [case for case in cases(warps, fault, 2, "cuda") if case.faults]
    assert struck
    assert all(case.outcome == "named" and WARPS_NAMED[fault] in case.message for case in struck), struck


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("entries",), ("counter",)], ids=["queue", "entries", "counter"])
@pytest.mark.parametrize("fault", [*HARMLESS, *NAMED, *PERHAPS])
def test_many_cases_of_each_fault_never_give_a_warp_a_wrong_answer(warps, fault, more):
    assert {case.outcome for case in cases(warps, fault, 12, "cuda", *more)} <= {"verified", "named"}


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*HARMLESS, *NAMED, *PERHAPS])
def test_many_cases_of_each_fault_never_give_a_wrong_answer(build_dir, fault):
    program = program_of(build_dir)
    found = [case for first in range(1000, 1200, 50) for case in cases(program, fault, 50, first=first)]
    found += cases(program, fault, 50, "entries", first=2000)
    assert {case.outcome for case in found} <= {"verified", "named"}
