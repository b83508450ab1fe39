"""The verdict (METHOD §3): which rules hold on these features, and abstention before guessing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from efaprof.analyzers.rules import LAST_RULE, RULES, Feature, WhenKnown, describe, tests_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from efaprof.analyzers.rules import Rule

NEGLIGIBLE_T = 0.05
STEP_LIMIT = 0.5
ISSUE_LAYERS = ("kernel", "ring", "proxy", "libfabric")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Both labels with what they rest on."""

    step: str
    path: str
    where: str | None
    kind: str | None
    grade: str | None
    rules: tuple[tuple[str, bool | None], ...]  # every rule with its outcome
    unknown: tuple[str, ...]  # features that a test asked for and nobody could give
    runner_up: str | None  # label and first test that it failed
    next_experiment: str | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """A known feature that a rule was tested on, with the threshold of the test."""

    feature: Feature
    bound: str
    threshold: float


def evidence(verdict: Verdict, features: Mapping[str, Feature]) -> tuple[Evidence, ...]:
    """Known features behind the rules that hold, each once; behind every rule when none does."""
    rules = [*RULES, LAST_RULE]
    holding = {label for label, outcome in verdict.rules if outcome}
    tests = [test for rule in rules if not holding or rule.label in holding for test in tests_of(rule.condition)]
    found: dict[str, Evidence] = {}
    for test in tests:
        if test.feature in features and test.over is None:
            found.setdefault(test.feature, Evidence(features[test.feature], test.bound.value, test.threshold))
    return tuple(found.values())


def decide(
    features: Mapping[str, Feature], *, defects: tuple[str, ...] = (), rules: tuple[Rule, ...] = (*RULES, LAST_RULE)
) -> Verdict:
    """The verdict for these features. `defects` are failed quality tests, worst first: they stop every path label.

    `rules` end with the one that only holds when no other does; thresholds are calibrated by giving others than ours.

    The path is one label, `mixed(a, b)` when several rules hold, `negligible` when communication is under 5 % of the
    step, else `inconclusive` or `inconclusive(<defect>)` with the cheapest next experiment.
    """
    *first, left_over = rules
    outcomes = tuple((rule.label, rule.condition.outcome(features)) for rule in first)
    holding = [label for label, outcome in outcomes if outcome is True]
    if not holding:
        last = left_over.condition.outcome(features)
        # A rule that is only unknown might hold: then latency is not what is left over.
        if last and any(outcome is None for _, outcome in outcomes):
            last = None
        outcomes += ((left_over.label, last),)
        holding = [left_over.label] if last else []
    path, next_experiment = _path_label(holding, features, defects, rules)
    where, kind = _where(features) if path.startswith("issue-bound") else (None, None)
    grades = [rule.grade for rule in rules if rule.label in holding]
    return Verdict(
        step=_step_label(features),
        path=path,
        where=where,
        kind=kind,
        grade=max(grades) if grades and not path.startswith("inconclusive") else None,
        rules=outcomes,
        unknown=_unknown(features, rules),
        runner_up=_runner_up(features, holding, rules),
        next_experiment=next_experiment,
    )


def _path_label(
    holding: list[str], features: Mapping[str, Feature], defects: tuple[str, ...], rules: tuple[Rule, ...]
) -> tuple[str, str | None]:
    if defects:
        return f"inconclusive({defects[0]})", NEXT_FOR_DEFECT.get(defects[0])
    communication = features.get("communication_share")
    if communication is not None and communication.hi < NEGLIGIBLE_T:
        return "negligible", None
    if not holding:
        return "inconclusive", _next_experiment(features, rules)
    if len(holding) > 1:
        return f"mixed({', '.join(holding)})", NEXT_EXPERIMENT
    return holding[0], None


# First choice: it moves operations at fixed bytes.
NEXT_EXPERIMENT = (
    "record again with another number of channels (num_sms): it moves operations at fixed bytes; "
    "then efaprof attribute RUN RUN --lever channels"
)
# What the NIC could take is all that is missing: cheaper than another recording.
NEXT_CALIBRATION = "efaprof calibrate --provider NAME, then efaprof attribute --profile FILE"
NEXT_FOR_DEFECT = {
    "oversubscribed": "record on a machine with at least 4 cores a rank",
    "throttled": "raise the CPU quota of the cgroup and record again",
    "data": "record longer, with a larger --buffer when records were dropped",
}


def _next_experiment(features: Mapping[str, Feature], rules: tuple[Rule, ...]) -> str:
    """Calibration when a rule waits for nothing but the message rate, at either end of it."""
    if "message_rate" not in features:
        ends = (Feature("message_rate", value, value, value) for value in (0.0, 1.0))
        supposed = [{**features, "message_rate": end} for end in ends]
        if any(rule.condition.outcome(known) for rule in rules for known in supposed):
            return NEXT_CALIBRATION
    return NEXT_EXPERIMENT


def _step_label(features: Mapping[str, Feature]) -> str:
    for share, label in (
        ("compute_share", "compute-limited"),
        ("launch_share", "launch-limited"),
        ("communication_share", "comm-limited"),
    ):
        found = features.get(share)
        if found is not None and found.lo >= STEP_LIMIT:
            return label
    return "mixed" if "communication_share" in features else "unknown"


def _where(features: Mapping[str, Feature]) -> tuple[str | None, str | None]:
    shares = {layer: features[f"{layer}_share"].value for layer in ISSUE_LAYERS if f"{layer}_share" in features}
    where = max(shares, key=lambda layer: shares[layer]) if shares else None
    elasticity = features.get("elasticity_operations")
    if elasticity is None:
        return where, None
    return where, "rate" if elasticity.lo >= 0.5 else "latency" if elasticity.hi < 0.2 else None


def _unknown(features: Mapping[str, Feature], rules: tuple[Rule, ...]) -> tuple[str, ...]:
    asked = [test for rule in rules for test in tests_of(rule.condition)]
    names = [name for test in asked for name in (test.feature, test.over) if name is not None]
    return tuple(dict.fromkeys(name for name in names if name not in features))


def _runner_up(features: Mapping[str, Feature], holding: list[str], rules: tuple[Rule, ...]) -> str | None:
    """The rule that came nearest without holding, and the first of its tests that is false or unknown."""
    best: tuple[float, str] | None = None
    for rule in rules:
        if rule.label in holding:
            continue
        # What would only be asked of several runs is no step nearer to holding.
        parts = [part for part in rule.condition.tests if not isinstance(part, WhenKnown) or not part.outcome(features)]
        outcomes = [part.outcome(features) for part in parts]
        score = sum(outcome is True for outcome in outcomes) / len(parts) - 0.01 * sum(o is None for o in outcomes)
        failed = next((part for part, outcome in zip(parts, outcomes, strict=True) if outcome is not True), None)
        reason = describe(failed, features) if failed else "another rule is unknown and might hold"
        if best is None or score > best[0]:
            best = (score, f"{rule.label}: {reason}")
    return best[1] if best else None
