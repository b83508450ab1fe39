"""A calibrated profile makes the NIC's rate known to the rules and to replays, or is refused where it does not fit."""

from __future__ import annotations

import json

import pytest

from efaprof.analyzers.profile import LoopRow, profile_of
from efaprof.errors import NothingToAnalyse
from efaprof.report.attribution_report import report_on
from efaprof.trace.reader import open_tables
from efaprof.trace.rundir import open_run
from efaprof.trace.steady import Steady, write_steady

STEADY = Steady(steps=60, commands=16, proxy_ns=9_000)
TIME_S = (STEADY.wall_ns - STEADY.compute_ns) / 1e9
RUN_OPS_S = STEADY.commands / TIME_S


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "run"
    write_steady(path, STEADY)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["fingerprint"]["provider"] = "tcp"
    (path / "manifest.json").write_text(json.dumps(manifest))
    return open_run(path)


def profile(rate_ops_s, *, idle=0.5, provider="tcp", emulated=()):
    """One whose rate and peak are these; the issuer waited `idle` of the time."""
    rows = [LoopRow(1024, 1, 1000, 1_000_000_000, 900_000_000)]
    rows.append(LoopRow(1_000_000, 64, round(rate_ops_s), 1_000_000_000, round(idle * 1e9)))
    return profile_of(rows, {"provider": provider}, emulated)


def decoded(run, one):
    found = report_on([(run, open_tables(run))], profile=one).decode
    assert found is not None
    return found.decode


def test_a_quiet_nic_behind_a_busy_proxy_is_issue_bound_once_its_ceiling_is_known(run):
    assert decoded(run, None).verdict.path == "inconclusive"
    found = decoded(run, profile(20 * RUN_OPS_S))
    assert found.features["message_rate"].value == pytest.approx(1 / 20, rel=1e-3)
    assert "delta_issue" in found.features
    assert not found.is_upper_bound
    assert (found.verdict.path, found.verdict.where) == ("issue-bound", "proxy")
    assert found.split.conservation_error_ns == 0


def test_a_rate_that_the_issuer_set_bounds_the_part_from_above_only(run):
    found = decoded(run, profile(20 * RUN_OPS_S, idle=0.0))
    assert (found.features["message_rate"].lo, "delta_issue" in found.features) == (0.0, False)
    assert found.is_upper_bound
    assert found.verdict.path == "issue-bound"
    near = decoded(run, profile(1.2 * RUN_OPS_S, idle=0.0))
    assert near.verdict.path == "inconclusive"


def test_a_run_near_the_ceiling_is_not_issue_bound(run):
    assert decoded(run, profile(1.1 * RUN_OPS_S)).verdict.path != "issue-bound"


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (profile(20 * RUN_OPS_S, provider="efa"), "the profile is of provider efa, the run used tcp"),
        (profile(20 * RUN_OPS_S, emulated=["device: softefa ops=2M"]), "the profile is of device: softefa ops=2M"),
        (profile(RUN_OPS_S / 2), "2.00 times the operations per second"),
    ],
)
def test_a_profile_of_something_else_is_refused(run, one, reason):
    with pytest.raises(NothingToAnalyse, match=reason):
        decoded(run, one)
