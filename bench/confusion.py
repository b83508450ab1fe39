"""Confusion matrix of the verdict on synthetic steps whose bottleneck is known, and how its thresholds were chosen.

    python bench/confusion.py [cases per label, default 400]

Truth is the resource whose doubling shortens the step most in an FIFO simulation (tests/verdict_cases.py). Thresholds
are looked at on some seeds and scored on others. It tests the rules, on features of the simulation's own stamps; that
recordings give these features is for other tests.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO / "tests"))

from verdict_cases import LABELS, judged, score  # noqa: E402

from efaprof.analyzers.rules import LAST_RULE, RULES, Test, WhenKnown  # noqa: E402
from efaprof.analyzers.verdict import decide  # noqa: E402

CALIBRATION, SCORING = range(1, 3), range(101, 103)
BALANCED, ANYTHING = "proxy as slow as the NIC", "anything"
SCALES = (0.7, 0.85, 1.0, 1.15, 1.3)
SCANNED = (
    "skew_share", "utilisation_active", "message_rate", "delta_issue", "issue_share", "proxy_busy",
    "waiting_at_dequeue", "delta_fence", "delta_receive", "receive_wait_share", "nic_share",
)  # fmt: skip


def scaled(condition, feature, factor):
    """A condition with every threshold of one feature scaled."""
    if isinstance(condition, Test):
        is_it = condition.feature == feature and condition.over is None
        return replace(condition, threshold=condition.threshold * factor) if is_it else condition
    if isinstance(condition, WhenKnown):
        return WhenKnown(scaled(condition.test, feature, factor))
    return replace(condition, tests=tuple(scaled(part, feature, factor) for part in condition.tests))


def cases(labels, count, seeds, *, is_swept):
    """Cases of each label over all seeds."""
    return {
        label: [judged(label, count // len(seeds), seed * 1000 + at, is_swept=is_swept) for seed in seeds]
        for at, label in enumerate(labels)
    }


def percent(part, whole):
    return f"{100 * part / whole:5.1f}"


def table(title, found):
    """One line a label; returns cases, right and wrong of all."""
    print(f"\n{title}\n{'truth':26}{'cases':>7}{'right %':>9}{'abstained %':>13}{'wrong %':>9}  verdicts")
    total = [0, 0, 0]
    for label, parts in found.items():
        scores = [score(*part) for part in parts]
        count, right, wrong = (sum(getattr(one, name) for one in scores) for name in ("cases", "right", "wrong"))
        names = {}
        for one in scores:
            for name, number in one.labels.items():
                names[name] = names.get(name, 0) + number
        shown = ", ".join(f"{name} {number}" for name, number in sorted(names.items(), key=lambda item: -item[1])[:4])
        away = count - right - wrong
        shares = f"{percent(right, count):>9}{percent(away, count):>13}{percent(wrong, count):>9}"
        print(f"{label:26}{count:7}{shares}  {shown}")
        total = [total[0] + count, total[1] + right, total[2] + wrong]
    return total


def scan(found):
    """Right and wrong over all calibration cases, one feature's thresholds scaled at a time."""
    print("\nthresholds scaled, calibration seeds: right % / wrong %")
    print(f"{'feature':22}" + "".join(f"{f'×{factor:g}':>14}" for factor in SCALES))
    for feature in SCANNED:
        cells = []
        for factor in SCALES:
            rules = tuple(
                replace(rule, condition=scaled(rule.condition, feature, factor)) for rule in (*RULES, LAST_RULE)
            )
            scores = [
                score(*part, lambda known, rules=rules: decide(known, rules=rules).path)
                for parts in found.values()
                for part in parts
            ]
            count, right, wrong = (sum(getattr(one, name) for one in scores) for name in ("cases", "right", "wrong"))
            cells.append(f"{percent(right, count)} /{percent(wrong, count)}")
        print(f"{feature:22}" + "".join(f"{cell:>14}" for cell in cells))


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    began = time.monotonic()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores; {count} cases drawn per label")
    scan(cases((*LABELS, BALANCED, ANYTHING), min(count, 100), CALIBRATION, is_swept=True))
    for words, is_swept in (("one run", False), ("with a sweep of operations, issuers and payload", True)):
        dominant = cases(LABELS, count, SCORING, is_swept=is_swept)
        total = table(f"scoring seeds, one dominant bottleneck, {words}", dominant)
        print(f"all: {percent(total[1], total[0])} % right, {percent(total[2], total[0])} % wrong")
        others = cases((BALANCED, ANYTHING), count, SCORING, is_swept=is_swept)
        table(f"scoring seeds, no dominance, {words}", others)
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
