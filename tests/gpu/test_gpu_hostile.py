"""Kernels that post by themselves over devices that do wrong. Also runs without pytest, as test_gpu.py does."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_runs import POSTED, REPO, command, library_folder, main_without_pytest, missing, on_device, run

try:
    import pytest
except ImportError:  # a machine with a GPU may have none
    pytest = None

PROGRAM = Path(os.environ.get("EFAPROF_BUILD_DIR", REPO / "build" / "dev")) / "bin" / "gda_fuzz"


def lacking() -> str | None:
    """Why nothing can be tested here; None when it can."""
    return missing() or (None if PROGRAM.is_file() else f"{PROGRAM} is not built: it needs libfabric-dev")


if pytest is not None:
    pytestmark = pytest.mark.skipif(lacking() is not None, reason=str(lacking()))

CASES, PATIENCE_S, START_S = 4, 1, 4  # the kernels wait for a second; memory and graphs are made and freed


def outcomes(fault, *more):
    """(faults, outcome, message) of each case, all of which ended in time."""
    path = f"{library_folder()}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    ended = run([str(PROGRAM), fault, "1", str(CASES), "cuda", *more], LD_LIBRARY_PATH=path)
    assert (ended.code, ended.err) == (0, "")
    found = [line.split(" ", 4) for line in ended.out.splitlines()]
    assert len(found) == CASES
    assert all(float(case[3]) < (PATIENCE_S + START_S) * 1e3 for case in found), found
    assert not any(case[4].startswith("GPU: ") for case in found), found  # a call that failed is none of the faults
    return [(int(case[1]), case[2], case[4]) for case in found]


def check_named(fault, *said, more=()):
    found = outcomes(fault, *more)
    assert any(faults for faults, _, _ in found)
    for faults, outcome, message in found:
        assert outcome == ("named" if faults else "verified"), message
        assert not faults or any(word in message for word in (*said, "waited 1 s for")), message


def test_any_order_and_any_delay_give_the_right_answer():
    for fault in ("none", "reorder", "delay"):
        for more in ((), ("counter",)):
            assert {outcome for _, outcome, _ in outcomes(fault, *more)} == {"verified"}, (fault, more)


def test_operations_that_are_dropped_and_completions_that_are_lost_are_waited_for_in_vain():
    check_named("drop")
    check_named("lose")
    check_named("drop", more=("counter",))


def test_errors_are_named():
    check_named("error", "ended with status")
    check_named("error", "counter of errors went up by", more=("counter",))


def test_corrupted_payload_is_found():
    check_named("flip", "is not what was sent", "the notice from", "is not of this layer", "announced other counts",
                "the reference is", "are not its own")  # fmt: skip


def test_completions_that_fit_nothing_are_named():
    check_named("qpn", "names another queue pair")
    check_named("request", "is not in flight")
    check_named("garbage", "a completion of request", "ended with status", "arrived twice")


def test_what_comes_twice_or_under_another_name_is_never_a_wrong_answer():
    for fault in ("repeat", "twice", "immediate"):
        assert {outcome for _, outcome, _ in outcomes(fault)} <= {"verified", "named"}


def test_entries_with_a_bit_flipped_end_in_the_right_answer_or_a_named_error():
    assert {outcome for _, outcome, _ in outcomes("reorder", "entries")} <= {"verified", "named"}


def test_spoiled_entries_on_the_emulated_device_end_soon_in_the_right_answer_or_in_one_line():
    for seed in ("1", "2", "3"):
        begin = time.monotonic()
        words = command(*POSTED, "--fuzz", "10", "--seed", seed, provider="efa-direct", timeout_s=1)
        ended = on_device(words, "latency=5us,reorder=0.3")
        assert time.monotonic() - begin < 30
        said = [line for line in ended.err.splitlines() if line.startswith("efaprof-dispatch: ")]
        if ended.code == 0:
            assert ended.summary["verified_tokens"] == 2 * 8 * 2 * 45
        else:
            assert (ended.code, len(said)) == (1, 1), ended.err


if __name__ == "__main__":
    sys.exit(main_without_pytest(lacking(), globals()))
