"""Gates: what a run must show for a continuous-integration job to pass, on its attribution document (METHOD §5).

A gate fails only on what is shown; what cannot be told is inconclusive, and passes unless the caller is strict.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from efaprof.analyzers.quality import MAX_LOST, MIN_COVERAGE
from efaprof.analyzers.rules import LAST_RULE, RULES
from efaprof.errors import NothingToAnalyse, UsageError
from efaprof.trace.layers import Layer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STEP = "step"
GROUPS = ("host", "issue", "receive")
MAX_CLOCK_CLIP = 0.01  # of the step
MAX_SELF_COST = 0.02  # of the time: what recording may cost
_FAMILIES = ("inconclusive", "mixed")  # whatever stands in brackets behind them
_NS_PER_US = 1e3


class GateStatus(StrEnum):
    """What became of a gate."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"  # it cannot be told from these data
    UNKNOWN = "unknown"  # nothing ever measured it


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate with what was found."""

    name: str
    status: GateStatus
    detail: str
    value: float | None = None
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Expectation:
    """`LABEL[/where[/kind]]` that the verdict must be, or with `!` must not be."""

    words: tuple[str, ...]
    is_negated: bool

    @property
    def text(self) -> str:
        """As it was typed."""
        return ("!" if self.is_negated else "") + "/".join(self.words)


@dataclass(frozen=True, slots=True)
class LayerLimit:
    """Most time per decoded token that a layer, a group of layers or the whole step may take."""

    name: str
    us: float


def parse_expectation(text: str) -> Expectation:
    """The expectation as typed on the command line; UsageError for a label that no verdict ever is."""
    words = tuple(text.removeprefix("!").split("/"))
    labels = sorted({rule.label.split("/")[0] for rule in (*RULES, LAST_RULE)} | {"negligible", *_FAMILIES})
    if words[0].split("(")[0] not in labels or not all(words):
        raise UsageError(f"--expect {text} names no verdict", hint=f"LABEL[/where[/kind]] or !…: {', '.join(labels)}")
    return Expectation(words, text.startswith("!"))


def limit_on(name: str, seconds: float) -> LayerLimit:
    """A limit on a layer; UsageError for a name that is none."""
    known = (STEP, *(layer.value for layer in Layer), *GROUPS)
    if name not in known:
        raise UsageError(f"--fail-above {name}=… names no layer", hint=f"choose one of {', '.join(known)}")
    return LayerLimit(name, seconds * 1e6)


def gates_of(
    document: Mapping[str, Any], *, expected: Sequence[Expectation] = (), limits: Sequence[LayerLimit] = ()
) -> list[Gate]:
    """Gates of a run in their order: the quality of its data first; NothingToAnalyse without decode steps.

    Where the data are not good enough, no later gate fails: it is inconclusive.
    """
    if document["wall_us"] is None:
        raise NothingToAnalyse(
            "there is no split per decoded token, which every gate looks at",
            hint="gates need one run with marked decode steps; efaprof info RUN says what was recorded",
        )
    quality = quality_gates(document)
    is_sound = all(gate.status is not GateStatus.FAILED for gate in quality)
    later = [_limit_gate(document, limit) for limit in limits] + [_verdict_gate(document, one) for one in expected]
    return [*quality, *(gate if is_sound else _withheld(gate) for gate in later)]


def quality_gates(document: Mapping[str, Any]) -> list[Gate]:
    """Whether a document with decode steps rests on enough of what happened."""
    coverage, drops = float(document["coverage"]), int(document["drops"])
    lost, counted = sum(document["unmatched"].values()), int(document["operations"]["count"])
    conservation = int(document["conservation_error_ns"])
    clip = float(document["clock_clip_ns"]) / (document["wall_us"]["value"] * _NS_PER_US)
    share = (drops + lost) / max(counted + drops, 1)
    return [
        _at_most("coverage", 1 - coverage, 1 - MIN_COVERAGE, f"{coverage:.1%} of the step is placed in a layer"),
        _at_most("drops", share, MAX_LOST, f"{drops:,} records dropped, {lost:,} operations unexplained"),
        _at_most("conservation", conservation, 0, f"layers miss the step by {conservation:,} ns"),
        _at_most("clock clip", clip, MAX_CLOCK_CLIP, f"clocks contradict each other by {clip:.2%} of the step"),
        _overhead(document.get("self_cost")),
    ]


def _overhead(self_cost: Mapping[str, Any] | None) -> Gate:
    """Passes on the bound from above; where that is too high, only a run without recording can tell."""
    name = "recording overhead"
    if self_cost is None:
        return Gate(name, GateStatus.UNKNOWN, "not known: compare with a run under --no-record")
    share = float(self_cost["share"])
    detail = f"{self_cost['records']:,} records of {self_cost['event_ns']:.3g} ns are at most {share:.2%} of the time"
    if share <= MAX_SELF_COST:
        return Gate(name, GateStatus.PASSED, detail, share, MAX_SELF_COST)
    return Gate(name, GateStatus.INCONCLUSIVE, f"{detail}: compare with a run under --no-record", share, MAX_SELF_COST)


def failed(gates: Sequence[Gate], *, is_strict: bool) -> list[Gate]:
    """Gates that end a command with exit code 4."""
    stops = {GateStatus.FAILED, GateStatus.INCONCLUSIVE} if is_strict else {GateStatus.FAILED}
    return [gate for gate in gates if gate.status in stops]


def _at_most(name: str, value: float, limit: float, detail: str) -> Gate:
    # Shares are differences of rounded numbers.
    return Gate(name, GateStatus.PASSED if value <= limit + 1e-12 else GateStatus.FAILED, detail, value, limit)


def _withheld(gate: Gate) -> Gate:
    detail = f"{gate.detail}; the data are not good enough to tell"
    return Gate(gate.name, GateStatus.INCONCLUSIVE, detail, gate.value, gate.limit)


def _limit_gate(document: Mapping[str, Any], limit: LayerLimit) -> Gate:
    """Fails where the whole interval lies above the limit; without an interval, on the value itself."""
    value, lo = _time_of(document, limit.name)
    status = GateStatus.PASSED if value <= limit.us else GateStatus.FAILED
    detail = f"{value:,.4g} µs per token, limit {limit.us:,.4g} µs"
    if status is GateStatus.FAILED and lo is not None and lo <= limit.us:
        status = GateStatus.INCONCLUSIVE
        detail += f", but the 95 % interval begins at {lo:,.4g} µs"
    return Gate(f"{limit.name} at most {limit.us:g} µs", status, detail, value, limit.us)


def _time_of(document: Mapping[str, Any], name: str) -> tuple[float, float | None]:
    if name == STEP:
        return document["wall_us"]["value"], document["wall_us"]["lo"]
    if name in GROUPS:
        return document["groups"][name]["us"], None
    # A layer that the path does not have takes no time.
    found = next((row["us"] for row in document["layers"] if row["layer"] == name), {"value": 0.0, "lo": 0.0})
    return found["value"], found["lo"]


def _verdict_gate(document: Mapping[str, Any], expected: Expectation) -> Gate:
    verdict = document["verdict"]
    path: str = verdict["path"]
    held = path.removeprefix("mixed(").removesuffix(")").split(", ") if path.startswith("mixed(") else [path]
    matches = [_matches(expected, label, verdict) for label in held]
    is_itself = "/".join(expected.words) in (path, *(one for one in _FAMILIES if path.startswith(one)))
    if not expected.is_negated:
        # One label of several that hold is not the verdict.
        is_it = is_itself or (len(held) == 1 and matches[0] is True)
        status = GateStatus.PASSED if is_it else GateStatus.FAILED
    elif is_itself or True in matches:
        status = GateStatus.FAILED
    elif None in matches or (path.startswith("inconclusive") and not expected.words[0].startswith(_FAMILIES)):
        status = GateStatus.INCONCLUSIVE
    else:
        status = GateStatus.PASSED
    where = "/".join(word for word in (path, verdict["where"], verdict["kind"]) if word)
    return Gate(f"verdict {expected.text}", status, f"the verdict is {where}")


def _matches(expected: Expectation, label: str, verdict: Mapping[str, Any]) -> bool | None:
    """Whether a label that holds is the expected one; None where its place or kind is not known."""
    found: list[str | None] = [*label.split("/")]
    if label.startswith("issue-bound"):
        found += [verdict["where"], verdict["kind"]]
    for number, word in enumerate(expected.words):
        own = found[number] if number < len(found) else ""
        if own is None:
            return None
        if own != word:
            return False
    return True
