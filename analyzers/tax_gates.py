"""Gates on the tax: what serving arms must show for a continuous-integration job to pass.

As elsewhere a gate fails only on what is shown; what cannot be told is inconclusive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from efaprof.analyzers.invariance import Outcome
from efaprof.analyzers.limits import Gate, GateStatus
from efaprof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from efaprof.analyzers.tax import Tax, TaxReport


@dataclass(frozen=True, slots=True)
class TaxLimit:
    """Most milliseconds per token that an arm may cost over the baseline, at every load."""

    arm: str | None  # None: every arm
    ms: float


@dataclass(frozen=True, slots=True)
class Expected:
    """What an arm's load invariance must come out as, or with `is_negated` must not."""

    arm: str
    outcome: Outcome
    is_negated: bool


def parse_expected(text: str) -> Expected:
    """`ARM=flat` or `!ARM=load-sensitive`; UsageError for another outcome."""
    arm, equals, word = text.removeprefix("!").rpartition("=")
    if not equals or not arm or word not in set(Outcome):
        raise UsageError(f"--expect {text} is not [!]ARM=OUTCOME", hint=f"outcomes are {', '.join(Outcome)}")
    return Expected(arm, Outcome(word), text.startswith("!"))


def tax_gates(report: TaxReport, *, limits: Sequence[TaxLimit] = (), expected: Sequence[Expected] = ()) -> list[Gate]:
    """Gates in the order asked for, a limit's by arm and load; UsageError for an arm that there is not."""
    gates: list[Gate] = []
    for limit in limits:
        found = [tax for tax in report.taxes if limit.arm in (None, tax.arm)]
        if not found:
            _refuse(f"--fail-above has no tax to look at for {limit.arm or 'any arm'}", report)
        gates += [_limit_gate(tax, limit.ms) for tax in found]
    for one in expected:
        if one.arm not in report.arms:
            _refuse(f"--expect: {one.arm} is no arm", report)
        gates.append(_expected_gate(report, one))
    return gates


def _refuse(message: str, report: TaxReport) -> None:
    against = f", against {report.baseline}" if report.baseline else "; no arm is the baseline: --baseline NAME"
    raise UsageError(message, hint=f"arms are {', '.join(report.arms)}{against}")


def _limit_gate(tax: Tax, limit_ms: float) -> Gate:
    """Fails where the whole 95 % interval lies above the limit; without an interval, on the value itself."""
    interval = tax.mean.interval()
    status = GateStatus.PASSED if interval.value <= limit_ms else GateStatus.FAILED
    detail = f"{interval.value:.4g} ms per token, limit {limit_ms:.4g} ms"
    if status is GateStatus.FAILED and interval.lo is not None and interval.lo <= limit_ms:
        status = GateStatus.INCONCLUSIVE
        detail += f", but the 95 % interval begins at {interval.lo:.4g} ms"
    if status is GateStatus.FAILED and tax.extrapolated:
        status = GateStatus.INCONCLUSIVE
        detail += f", but extrapolated: {'; '.join(tax.extrapolated)}"
    name = f"tax of {tax.arm} at conc {tax.key.concurrency} at most {limit_ms:g} ms"
    return Gate(name, status, detail, interval.value, limit_ms)


def _expected_gate(report: TaxReport, one: Expected) -> Gate:
    name = f"{one.arm} {'not ' if one.is_negated else ''}{one.outcome.value}"
    found = report.invariance.get(one.arm)
    if found is None:
        return Gate(name, GateStatus.INCONCLUSIVE, "fewer than two loads: nothing is known of load invariance")
    detail = f"the sweep shows {found.outcome.value}: {found.change:+.1%} over it"
    if found.outcome is Outcome.INCONCLUSIVE and one.outcome is not Outcome.INCONCLUSIVE:
        return Gate(name, GateStatus.INCONCLUSIVE, detail, found.change)
    is_met = (found.outcome is one.outcome) is not one.is_negated
    return Gate(name, GateStatus.PASSED if is_met else GateStatus.FAILED, detail, found.change)
