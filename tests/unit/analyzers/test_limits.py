"""Gates on one run's document: what fails, what only cannot be told, and in which order."""

from __future__ import annotations

import copy

import pytest

from efaprof.analyzers.limits import GateStatus, failed, gates_of, limit_on, parse_expectation
from efaprof.errors import NothingToAnalyse, UsageError

P, F, U, X = GateStatus.PASSED, GateStatus.FAILED, GateStatus.INCONCLUSIVE, GateStatus.UNKNOWN
DOCUMENT = {
    "wall_us": {"value": 1000.0, "lo": 980.0, "hi": 1020.0},
    "coverage": 0.99,
    "drops": 0,
    "unmatched": {},
    "operations": {"count": 10_000},
    "conservation_error_ns": 0,
    "clock_clip_ns": 0,
    "layers": [{"layer": "proxy", "us": {"value": 300.0, "lo": 290.0, "hi": 310.0}}],
    "groups": {"host": {"us": 500.0}, "issue": {"us": 600.0}, "receive": {"us": 50.0}},
    "verdict": {"path": "issue-bound", "where": "proxy", "kind": None},
}


def document(**changes):
    made = copy.deepcopy(DOCUMENT)
    made.update(changes)
    return made


def verdict_gate(text, path="issue-bound", where="proxy", kind=None):
    found = document(verdict={"path": path, "where": where, "kind": kind})
    return gates_of(found, expected=[parse_expectation(text)])[-1].status


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("issue-bound", P),
        ("issue-bound/proxy", P),
        ("issue-bound/ring", F),
        ("issue-bound/proxy/rate", F),
        ("receiver-bound", F),
        ("!receiver-bound", P),
        ("!issue-bound", F),
        ("!issue-bound/ring", P),
        ("!issue-bound/proxy", F),
        ("!issue-bound/proxy/rate", U),
    ],
)
def test_a_verdict_is_compared_as_deep_as_is_asked(text, status):
    assert verdict_gate(text) is status


@pytest.mark.parametrize(
    ("text", "path", "status"),
    [
        ("wire-bound", "wire-bound/rate", P),
        ("wire-bound/rate", "wire-bound/rate", P),
        ("wire-bound/bandwidth", "wire-bound/rate", F),
        ("!wire-bound/bandwidth", "wire-bound/rate", P),
        ("issue-bound", "mixed(issue-bound, receiver-bound)", F),
        ("mixed", "mixed(issue-bound, receiver-bound)", P),
        ("!receiver-bound", "mixed(issue-bound, receiver-bound)", F),
        ("!skew-bound", "mixed(issue-bound, receiver-bound)", P),
        ("inconclusive", "inconclusive(data)", P),
        ("inconclusive(data)", "inconclusive(data)", P),
        ("inconclusive(throttled)", "inconclusive(data)", F),
        ("!inconclusive", "inconclusive(data)", F),
        ("!inconclusive", "negligible", P),
        ("issue-bound", "inconclusive(data)", F),
        ("!issue-bound", "inconclusive(data)", U),
    ],
)
def test_labels_with_parts_several_labels_and_none(text, path, status):
    assert verdict_gate(text, path, None) is status


@pytest.mark.parametrize("text", ["isue-bound", "", "!", "issue-bound/", "proxy"])
def test_a_label_that_no_verdict_ever_is_is_refused(text):
    with pytest.raises(UsageError, match="names no verdict"):
        parse_expectation(text)


@pytest.mark.parametrize(
    ("name", "limit_us", "status"),
    [
        ("proxy", 300, P),
        ("proxy", 295, U),  # the interval begins at 290
        ("proxy", 289, F),
        ("step", 1000, P),
        ("step", 970, F),
        ("host", 499, F),
        ("launch", 1, P),  # the path has none
    ],
)
def test_a_limit_fails_only_when_the_whole_interval_is_above_it(name, limit_us, status):
    gate = gates_of(document(), limits=[limit_on(name, limit_us / 1e6)])[-1]
    assert gate.status is status
    assert gate.limit == pytest.approx(limit_us)


def test_a_limit_on_nothing_is_refused():
    with pytest.raises(UsageError, match="names no layer"):
        limit_on("proxi", 1.0)


def test_the_quality_of_the_data_comes_first_and_in_order():
    gates = gates_of(document())
    assert [gate.name for gate in gates] == ["coverage", "drops", "conservation", "clock clip", "recording overhead"]
    assert [gate.status for gate in gates] == [P, P, P, P, X]


@pytest.mark.parametrize(("share", "status"), [(0.002, P), (0.02, P), (0.03, U)])
def test_what_recording_cost_at_most_passes_or_cannot_be_told(share, status):
    cost = {"records": 1000, "event_ns": 22.7, "share": share}
    gate = next(gate for gate in gates_of(document(self_cost=cost)) if gate.name == "recording overhead")
    assert (gate.status, gate.value, gate.limit) == (status, share, 0.02)
    assert "1,000 records of 22.7 ns" in gate.detail


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("coverage", {"coverage": 0.94}),
        ("drops", {"drops": 20}),
        ("drops", {"unmatched": {"rma.write": 11}}),
        ("conservation", {"conservation_error_ns": 1}),
        ("clock clip", {"clock_clip_ns": 20_000}),
    ],
)
def test_poor_data_fail_their_own_gate_and_leave_the_others_open(name, changes):
    gates = gates_of(
        document(**changes), limits=[limit_on("proxy", 1e-6)], expected=[parse_expectation("!issue-bound")]
    )
    assert [gate.name for gate in gates if gate.status is F] == [name]
    assert [gate.status for gate in gates[-2:]] == [U, U]


def test_only_failures_stop_unless_strict():
    gates = gates_of(document(), limits=[limit_on("proxy", 295e-6), limit_on("proxy", 200e-6)])
    assert [gate.limit for gate in failed(gates, is_strict=False)] == [pytest.approx(200)]
    assert len(failed(gates, is_strict=True)) == 2


def test_a_run_without_steps_has_nothing_to_gate():
    with pytest.raises(NothingToAnalyse, match="no split per decoded token"):
        gates_of(document(wall_us=None))
