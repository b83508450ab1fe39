"""Gates on the tax fail only on what the exports show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tax_samples import cell, report

from efaprof.analyzers.invariance import Outcome
from efaprof.analyzers.limits import GateStatus
from efaprof.analyzers.tax_gates import Expected, TaxLimit, parse_expected, tax_gates
from efaprof.errors import UsageError

P, F, U = GateStatus.PASSED, GateStatus.FAILED, GateStatus.INCONCLUSIVE
LOADS = (4, 8, 16)


def swept(factor=1.0):
    """An arm whose ITL grows by `factor` per doubling of the load, against a flat one; 16.3 ms apart at the first."""
    arm = [cell(51.9 * factor**at, concurrency=load) for at, load in enumerate(LOADS)]
    return report(arm, [cell(35.6, concurrency=load) for load in LOADS])


@pytest.mark.parametrize(("ms", "status"), [(17.0, P), (16.25, U), (15.0, F)])
def test_a_limit_fails_only_when_the_whole_interval_is_above_it(ms, status):
    (gate,) = tax_gates(report([cell(51.9)], [cell(35.6)]), limits=[TaxLimit("deepep", ms)])
    assert (gate.name, gate.status) == (f"tax of deepep at conc 4 at most {ms:g} ms", status)
    assert gate.value == pytest.approx(16.3)


def test_a_limit_looks_at_every_load():
    gates = tax_gates(swept(1.1), limits=[TaxLimit(None, 18.0)])
    assert [(gate.name.split(" at ")[1], gate.status) for gate in gates] == [
        ("conc 4", P), ("conc 8", F), ("conc 16", F)
    ]  # fmt: skip


def test_an_extrapolated_tax_cannot_fail():
    found = report([cell(51.9, session_h=14 * 24)], [cell(35.6)], may_extrapolate=True)
    (gate,) = tax_gates(found, limits=[TaxLimit(None, 1.0)])
    assert gate.status is U
    assert "extrapolated" in gate.detail


@pytest.mark.parametrize(
    ("text", "outcome", "status"),
    [
        ("deepep=flat", Outcome.FLAT, P),
        ("deepep=flat", Outcome.LOAD_SENSITIVE, F),
        ("deepep=flat", Outcome.INCONCLUSIVE, U),
        ("!deepep=load-sensitive", Outcome.FLAT, P),
        ("!deepep=load-sensitive", Outcome.LOAD_SENSITIVE, F),
        ("!deepep=load-sensitive", Outcome.INCONCLUSIVE, U),
        ("deepep=inconclusive", Outcome.INCONCLUSIVE, P),
        ("deepep=inconclusive", Outcome.FLAT, F),
    ],
)
def test_load_invariance_is_expected_or_not(text, outcome, status):
    found = swept()
    flat = {name: replace(one, outcome=outcome) for name, one in found.invariance.items()}
    (gate,) = tax_gates(replace(found, invariance=flat), expected=[parse_expected(text)])
    assert gate.status is status


def test_one_load_says_nothing_of_invariance():
    (gate,) = tax_gates(report([cell(51.9)], [cell(35.6)]), expected=[Expected("deepep", Outcome.FLAT, False)])
    assert gate.status is U


def test_arms_that_there_are_not_are_refused_by_name():
    with pytest.raises(UsageError, match="for nobody"):
        tax_gates(swept(), limits=[TaxLimit("nobody", 1.0)])
    with pytest.raises(UsageError, match="nobody is no arm"):
        tax_gates(swept(), expected=[Expected("nobody", Outcome.FLAT, False)])
    with pytest.raises(UsageError, match="OUTCOME"):
        parse_expected("deepep")
