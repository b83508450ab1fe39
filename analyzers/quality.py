"""Quality tests that come before any verdict (METHOD §3): what is wrong with the data or the machine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from efaprof.analyzers.batches import MAX_LAG1, MIN_BATCHES, Batching

MIN_COVERAGE = 0.95
MAX_LOST = 0.001  # of records or operations
MAX_RUN_DELAY = 0.05  # of the communication window
MAX_THROTTLED = 0.01  # of the communication window
MAX_DRIFT = 0.05


class Defect(StrEnum):
    """Why a verdict is withheld."""

    DATA = "data"
    OVERSUBSCRIBED = "oversubscribed"
    THROTTLED = "throttled"


@dataclass(frozen=True, slots=True)
class Failed:
    """One failed test, and its numbers in words."""

    defect: Defect
    reason: str


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the tests look at; None means that nothing measured it, and such a test cannot fail."""

    coverage: float
    batching: Batching
    drift: float | None
    lost: float  # dropped records over records
    unexplained: float  # operations without an explanation over operations
    run_delay: float | None  # run-queue delay of the worst polling thread over its communication window
    throttled: float | None  # time that the cgroup was throttled over the communication window


def failed_tests(facts: RunFacts) -> tuple[Failed, ...]:
    """Failed tests, worst first: lost data, then the machine, then what the machine does to the steps."""
    batching = facts.batching
    lag1 = "unknown" if batching.lag1 is None else f"{batching.lag1:.2f}"
    tests = [
        (
            facts.lost > MAX_LOST,
            Defect.DATA,
            f"{facts.lost:.2%} of the records were dropped (more than {MAX_LOST:.1%})",
        ),
        (
            facts.unexplained > MAX_LOST,
            Defect.DATA,
            f"{facts.unexplained:.2%} of the operations are unexplained (more than {MAX_LOST:.1%})",
        ),
        (
            facts.coverage < MIN_COVERAGE,
            Defect.DATA,
            f"coverage is {facts.coverage:.1%} (less than {MIN_COVERAGE:.0%})",
        ),
        (
            facts.throttled is not None and facts.throttled > MAX_THROTTLED,
            Defect.THROTTLED,
            f"the cgroup was throttled for {facts.throttled or 0:.1%} of the communication window",
        ),
        (
            facts.run_delay is not None and facts.run_delay > MAX_RUN_DELAY,
            Defect.OVERSUBSCRIBED,
            f"a polling thread waited for a core for {facts.run_delay or 0:.1%} of the communication window",
        ),
        (
            not batching.is_sound,
            Defect.DATA,
            (
                f"{batching.batches} batches of {batching.batch_steps} steps with lag-1 {lag1}"
                f" (needs {MIN_BATCHES}, under {MAX_LAG1})"
            ),
        ),
        (
            facts.drift is not None and abs(facts.drift) > MAX_DRIFT,
            Defect.DATA,
            f"the step's trend over the run is {facts.drift or 0:+.1%} of its mean",
        ),
    ]
    return tuple(Failed(defect, reason) for has_failed, defect, reason in tests if has_failed)
