"""The rules of METHOD §3 as one table: three-valued tests on the bound that makes a rule harder to hold."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from efaprof.trace.layers import Provenance

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Feature:
    """One measured property of the path with its interval; `lo`/`hi` equal `value` where none can be given."""

    name: str
    value: float
    lo: float
    hi: float
    provenance: Provenance = Provenance.DERIVED
    note: str = ""  # the denominator or the window, where the number needs one to be read


class Bound(StrEnum):
    """Which side of the threshold the feature must lie on."""

    AT_LEAST = "≥"
    BELOW = "<"


@dataclass(frozen=True, slots=True)
class Test:
    """A feature against a threshold, on the bound that makes the rule harder to hold."""

    feature: str
    bound: Bound
    threshold: float
    over: str | None = None  # the threshold is then this feature times `threshold`

    def outcome(self, features: Mapping[str, Feature]) -> bool | None:
        """True, False, or None when a feature is unknown."""
        found = features.get(self.feature)
        if found is None:
            return None
        limit = self.threshold
        if self.over is not None:
            other = features.get(self.over)
            if other is None:
                return None
            limit *= other.hi if self.bound is Bound.AT_LEAST else other.lo
        return found.lo >= limit if self.bound is Bound.AT_LEAST else found.hi < limit


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Holds when one of its tests does; unknown when none does but one is unknown."""

    tests: tuple[Test | AllOf, ...]

    def outcome(self, features: Mapping[str, Feature]) -> bool | None:
        """Three-valued or."""
        found = [test.outcome(features) for test in self.tests]
        if any(outcome is True for outcome in found):
            return True
        return None if any(outcome is None for outcome in found) else False


@dataclass(frozen=True, slots=True)
class WhenKnown:
    """A test that only a run of several can make: it stops a rule when it fails, not when its feature is unknown."""

    test: Test

    def outcome(self, features: Mapping[str, Feature]) -> bool:
        """False only when the feature is known and fails."""
        return self.test.outcome(features) is not False


@dataclass(frozen=True, slots=True)
class AllOf:
    """Holds when all of its tests do; unknown when none fails but one is unknown."""

    tests: tuple[Test | AnyOf | AllOf | WhenKnown, ...]

    def outcome(self, features: Mapping[str, Feature]) -> bool | None:
        """Three-valued and."""
        found = [test.outcome(features) for test in self.tests]
        if any(outcome is False for outcome in found):
            return False
        return None if any(outcome is None for outcome in found) else True


@dataclass(frozen=True, slots=True)
class Rule:
    """A label and what must hold for it."""

    label: str
    condition: AllOf
    grade: str  # evidence grade of the strongest test in it


def _at_least(feature: str, threshold: float, *, over: str | None = None) -> Test:
    return Test(feature, Bound.AT_LEAST, threshold, over)


def _below(feature: str, threshold: float, *, over: str | None = None) -> Test:
    return Test(feature, Bound.BELOW, threshold, over)


# What shows that issuing operations is what the path waits for.
WITNESS = AnyOf(
    (
        _at_least("proxy_busy", 0.70),
        _at_least("kernel_busy", 0.70),
        _at_least("waiting_at_dequeue", 0.50),
        _at_least("eagain_per_post", 0.01),
        _at_least("at_window_limit", 0.50),
        AllOf((_below("elasticity_parallelism", -0.15),)),
    )
)

# The wire may be nearly full and yet wait for the issuer: then the path goes through issuing.
NOT_ISSUING = WhenKnown(_below("issue_share", 0.50))
# A NIC may be busy all the time and yet not be what the path waits for.
ON_THE_WIRE = WhenKnown(_at_least("nic_share", 0.30))

# `delta_issue` is known only where the NIC's ceiling is; `delta_issue_upper` bounds it from above, which is the harder
# side for rules that need it small.
# METHOD §3, one row a rule, in its order. Features that no analysis of this run could give are unknown.
RULES: tuple[Rule, ...] = (
    Rule("skew-bound", AllOf((_at_least("skew_share", 0.30), _at_least("skew_is_largest", 1.0))), "E2"),
    Rule(
        "wire-bound/bandwidth",
        AllOf(
            (
                AnyOf(
                    (
                        _at_least("utilisation_active", 0.70),
                        # More bytes may fill a line that is not what the path waits for now.
                        AllOf((_at_least("elasticity_bytes", 0.60), WhenKnown(_at_least("utilisation_active", 0.60)))),
                    )
                ),
                NOT_ISSUING,
                # Behind a limit of operations, a line that is nearly full is not what the path waits for.
                WhenKnown(_below("message_rate", 1.0, over="utilisation_active")),
            )
        ),
        "E1",
    ),
    Rule(
        "wire-bound/rate",
        AllOf(
            (
                AnyOf(
                    (
                        AllOf(
                            (
                                _at_least("message_rate", 0.70),
                                _below("utilisation_active", 0.70),
                                WhenKnown(_below("utilisation_active", 0.90, over="message_rate")),
                            )
                        ),
                        # Behind a line that is nearly full, time in the NIC grows too.
                        AllOf(
                            (
                                _at_least("nic_grows_with_outstanding", 1.0),
                                _below("proxy_busy", 0.70),
                                _below("utilisation_active", 0.30),
                            )
                        ),
                    )
                ),
                # A proxy as slow as the NIC: neither alone is what the path waits for.
                WhenKnown(_below("proxy_busy", 0.60)),
                NOT_ISSUING,
                ON_THE_WIRE,
                WhenKnown(_at_least("elasticity_operations", 0.50)),
                WhenKnown(_at_least("elasticity_parallelism", -0.05)),
                WhenKnown(_below("elasticity_parallelism", 0.05)),
            )
        ),
        "E1",
    ),
    Rule(
        "issue-bound",
        AllOf(
            (
                AnyOf((_at_least("delta_issue", 0.30), _at_least("issue_share", 0.50))),
                _below("utilisation_active", 0.30),
                _below("message_rate", 0.70),
                # On the path, yet nothing is saved without it: something beside it is as slow.
                WhenKnown(_at_least("delta_issue_upper", 0.15)),
                # Neither the wire's part of the path nor what ordering or the receiver costs is as large.
                WhenKnown(_at_least("issue_share", 1.0, over="nic_share")),
                WhenKnown(_below("delta_fence", 0.80, over="delta_issue_upper")),
                WhenKnown(_below("delta_receive", 0.80, over="delta_issue_upper")),
                WITNESS,
            )
        ),
        "E1",
    ),
    Rule(
        "serialization-bound",
        AllOf((_at_least("delta_fence", 0.30), _at_least("delta_fence", 1.0, over="delta_issue_upper"))),
        "E2",
    ),
    Rule(
        "receiver-bound",
        AllOf(
            (
                # Neither the wire's part of the path nor what issuing costs is as large.
                WhenKnown(_at_least("receive_wait_share", 1.0, over="nic_share")),
                WhenKnown(_below("delta_issue_upper", 0.80, over="delta_receive")),
                AnyOf(
                    (
                        _at_least("delta_receive", 0.30),
                        # A replay is worth more than a share.
                        AllOf(
                            (
                                _at_least("receive_wait_share", 0.50),
                                _below("delta_issue_upper", 0.15),
                                WhenKnown(_at_least("delta_receive", 0.15)),
                            )
                        ),
                    )
                ),
            )
        ),
        "E1",
    ),
)

# Only when none of the above holds.
LAST_RULE = Rule(
    "wire-bound/latency",
    AllOf(
        (
            _at_least("nic_share", 0.50),
            _below("utilisation_active", 0.30),
            _below("outstanding_over_limit", 0.50),
            _below("nic_grows_with_outstanding", 1.0),
            # What is left over: neither issuing, nor the NIC's rate, nor ordering takes a large part.
            WhenKnown(_below("delta_issue_upper", 0.30)),
            WhenKnown(_below("message_rate", 0.50)),
            WhenKnown(_below("delta_fence", 0.15)),
        )
    ),
    "E1",
)


Condition = Test | AnyOf | AllOf | WhenKnown


def tests_of(condition: Condition) -> list[Test]:
    """Every test of a condition, in reading order."""
    if isinstance(condition, Test):
        return [condition]
    if isinstance(condition, WhenKnown):
        return [condition.test]
    return [found for part in condition.tests for found in tests_of(part)]


def describe(condition: Condition, features: Mapping[str, Feature]) -> str:
    """A condition with the numbers that it was tested on."""
    if isinstance(condition, WhenKnown):
        return f"{describe(condition.test, features)} when known"
    if isinstance(condition, Test):
        found = features.get(condition.feature)
        value = "unknown" if found is None else f"{found.value:.2f} [{found.lo:.2f}, {found.hi:.2f}]"
        limit = f"{condition.threshold:g}" + (f" × {condition.over}" if condition.over else "")
        return f"{condition.feature} {value}, needs {condition.bound.value} {limit}"
    word = " or " if isinstance(condition, AnyOf) else " and "
    return word.join(describe(part, features) for part in condition.tests)
