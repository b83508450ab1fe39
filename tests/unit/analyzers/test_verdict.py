"""The verdict abstains on what it does not know, and holds each rule on the harder bound."""

from __future__ import annotations

import pytest

from efaprof.analyzers.rules import Feature
from efaprof.analyzers.verdict import decide


def known(**values):
    """Features with an interval of ±5 % unless a (lo, hi) pair is given."""
    found = {}
    for name, value in values.items():
        lo, hi = value if isinstance(value, tuple) else (value * 0.95, value * 1.05)
        found[name] = Feature(name, (lo + hi) / 2, min(lo, hi), max(lo, hi))
    return found


QUIET_WIRE = {"utilisation_active": 0.02, "message_rate": 0.1, "communication_share": 0.8}
ALL_BUT_LATENCY = {
    "skew_share": 0.05, "skew_is_largest": 0.0, "elasticity_bytes": 0.05, "nic_grows_with_outstanding": 0.0,
    "proxy_busy": 0.1, "waiting_at_dequeue": 0.1, "eagain_per_post": 0.0, "at_window_limit": 0.1,
    "elasticity_parallelism": 0.0, "delta_issue": 0.05, "delta_issue_upper": 0.05, "delta_fence": 0.01,
    "delta_receive": 0.05, "receive_wait_share": 0.2, "issue_share": 0.1, "outstanding_over_limit": 0.1,
    "nic_share": 0.7,
}  # fmt: skip


def test_busy_proxy_with_a_quiet_wire_is_issue_bound_and_names_the_layer():
    verdict = decide(known(**QUIET_WIRE, delta_issue=0.5, proxy_busy=0.9, proxy_share=0.4, ring_share=0.1))
    assert (verdict.path, verdict.where) == ("issue-bound", "proxy")
    assert verdict.kind is None  # no second run: rate or latency is not known


def test_a_kernel_that_issues_most_of_the_time_is_a_witness_too():
    slow = {**QUIET_WIRE, "issue_share": 0.8, "kernel_share": 0.7, "proxy_share": 0.1, "proxy_busy": 0.1}
    verdict = decide(known(**slow, kernel_busy=0.9))
    assert (verdict.path, verdict.where) == ("issue-bound", "kernel")
    assert decide(known(**slow, kernel_busy=0.2)).path == "inconclusive"


@pytest.mark.parametrize(
    "larger",
    [
        {"nic_share": 0.6},
        {"delta_fence": (0.36, 0.40), "delta_issue_upper": 0.4},
        {"delta_receive": (0.36, 0.40), "delta_issue_upper": 0.4},
    ],
)
def test_issuing_is_not_named_where_the_wire_or_ordering_takes_as_much(larger):
    slow = {**QUIET_WIRE, "issue_share": 0.4, "delta_issue": 0.4, "proxy_busy": 0.9}
    assert decide(known(**slow)).path == "issue-bound"
    assert decide(known(**slow, **larger)).path == "inconclusive"


def test_a_busy_nic_beside_the_path_is_not_what_it_waits_for():
    busy = {"communication_share": 0.9, "message_rate": 0.8, "utilisation_active": 0.1, "proxy_busy": 0.1}
    assert decide(known(**busy, nic_share=0.8)).path == "wire-bound/rate"
    assert decide(known(**busy, nic_share=0.1)).path == "inconclusive"


def test_of_two_full_ceilings_the_fuller_is_named():
    wire = {"communication_share": 0.9, "utilisation_active": 0.8, "nic_share": 0.9}
    assert decide(known(**wire, message_rate=0.5)).path == "wire-bound/bandwidth"
    assert decide(known(**wire, message_rate=0.9)).path == "inconclusive"


@pytest.mark.parametrize("other", [{"message_rate": 0.6}, {"delta_fence": 0.25}, {"delta_issue_upper": 0.4}])
def test_latency_is_not_left_over_where_something_else_takes_a_good_part(other):
    assert decide(known(**{**QUIET_WIRE, **ALL_BUT_LATENCY, **other})).path == "inconclusive"


def test_a_flat_load_curve_alone_is_inconclusive():
    verdict = decide(known(elasticity_load=0.0, communication_share=0.8))
    assert verdict.path == "inconclusive"
    assert "delta_issue" in verdict.unknown
    assert verdict.next_experiment


def test_issue_rule_needs_a_witness_and_a_known_wire():
    assert decide(known(**QUIET_WIRE, delta_issue=0.5, proxy_busy=0.2)).path == "inconclusive"
    assert decide(known(communication_share=0.8, delta_issue=0.5, proxy_busy=0.9)).path == "inconclusive"


def test_interval_that_straddles_the_threshold_does_not_hold():
    assert decide(known(utilisation_active=(0.65, 0.80))).path == "inconclusive"
    assert decide(known(utilisation_active=(0.71, 0.80))).path == "wire-bound/bandwidth"


def test_serialization_must_exceed_what_issuing_faster_would_buy():
    base = {**QUIET_WIRE, "delta_fence": (0.40, 0.44)}
    assert decide(known(**base, delta_issue_upper=(0.1, 0.2))).path == "serialization-bound"
    assert decide(known(**base, delta_issue_upper=(0.3, 0.6))).path != "serialization-bound"


def test_latency_is_what_is_left_only_when_everything_else_is_known_not_to_hold():
    assert decide(known(**QUIET_WIRE, **ALL_BUT_LATENCY)).path == "wire-bound/latency"
    some = {name: value for name, value in ALL_BUT_LATENCY.items() if name != "delta_fence"}
    assert decide(known(**QUIET_WIRE, **some)).path == "inconclusive"


def test_several_rules_that_hold_are_mixed():
    verdict = decide(known(utilisation_active=0.9, delta_receive=0.5))
    assert verdict.path == "mixed(wire-bound/bandwidth, receiver-bound)"


@pytest.mark.parametrize("defect", ["oversubscribed", "throttled", "data"])
def test_a_failed_quality_test_stops_the_path_label(defect):
    verdict = decide(known(utilisation_active=0.9), defects=(defect,))
    assert verdict.path == f"inconclusive({defect})"
    assert verdict.grade is None
    assert verdict.next_experiment


def test_little_communication_is_negligible():
    assert decide(known(communication_share=0.02, compute_share=0.97, utilisation_active=0.9)).path == "negligible"


def test_runner_up_names_the_test_that_failed_with_its_numbers():
    verdict = decide(known(**QUIET_WIRE, delta_issue=0.5, proxy_busy=0.2))
    assert verdict.runner_up.startswith("issue-bound: proxy_busy 0.20 [0.19, 0.21], needs ≥ 0.7")


def test_calibration_is_the_next_experiment_when_nothing_else_is_missing():
    known_wire = {"utilisation_active": 0.02, "communication_share": 0.8, "issue_share": 0.6}
    waiting = decide(known(**known_wire, proxy_busy=0.9))
    assert waiting.path == "inconclusive"
    assert "efaprof calibrate" in waiting.next_experiment
    assert decide(known(**known_wire, proxy_busy=0.9, message_rate=0.1)).path == "issue-bound"
    assert "channels" in decide(known(communication_share=0.8)).next_experiment
