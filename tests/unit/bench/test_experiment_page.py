"""The page of the experiment: taxes of clients and of traces side by side, and what is said when they differ."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench"
T = 12.706  # 97.5 % of Student's t with one degree of freedom


@pytest.fixture(name="page")
def _page(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.delitem(sys.modules, "experiment_page", raising=False)
    import experiment_page

    return experiment_page


def document(proxy, dense):
    """What `efaprof tax` says of one load; ITL as (value, low, high)."""

    def value(found):
        return {"itl_ms": dict(zip(("value", "lo", "hi"), found, strict=True))}

    return {
        "cells": [{"concurrency": 4, "arms": {"proxy": value(proxy), "dense": value(dense)}}],
        "invariance": {"proxy": {"outcome": "flat", "change": 0.013}, "dense": {"outcome": "inconclusive"}},
    }


def traces(page, proxy, dense):
    """Runs of both arms: time per token, and the decode step made of two layers."""
    cell = page.Cell(4, 8)

    def runs(tokens):
        return [page.Trace(one + 0.5, one, one, {"nic": one - 2.0, "compute": 2.0}) for one in tokens]

    return {("proxy", cell): runs(proxy), ("dense", cell): runs(dense)}


MS = 1_000_000


def test_a_gap_reaches_from_the_end_of_one_step_to_that_of_the_next(page):
    # Two sequences; 1 ms between steps of 9 ms.
    steps = [page.Step(False, 2, 10 * number * MS, (10 * number + 9) * MS) for number in range(4)]
    assert page.mean_gap_ms(steps) == pytest.approx((9 + 3 * 10) / 4)


def test_a_sequence_waits_for_the_prompts_of_others_and_not_for_its_own(page):
    ends = [10, 20, 25, 31, 41, 51]
    kinds = [(False, 1), (False, 1), (True, 1), (True, 1), (False, 3), (False, 3)]
    begins = [0, *ends[:-1]]
    steps = [page.Step(*kind, begin * MS, end * MS) for kind, begin, end in zip(kinds, begins, ends, strict=True)]
    # Gaps: 10 and 10 of the first; it waits 5 and 6 for two prompts, the second 6 for the third; then 10 and 10 of all.
    assert page.mean_gap_ms(steps) == pytest.approx((10 + 10 + 5 + 6 + 6 + 6 * 10) / (1 + 1 + 3 + 3))


def test_nobody_waits_for_prompts_when_all_sequences_have_ended(page):
    steps = [page.Step(False, 2, 0, 10 * MS), page.Step(True, 2, 50 * MS, 70 * MS),
             page.Step(False, 2, 71 * MS, 80 * MS)]  # fmt: skip
    assert page.mean_gap_ms(steps) == pytest.approx((2 * 10 + 2 * 10) / 4)


def test_differences_of_rounds_have_the_interval_of_both_arms(page):
    (one,) = page.compare(traces(page, [10, 12], [7, 9]), {8: document((11.5, 11, 12), (8.5, 8, 9))}, "proxy")
    assert one.tax.value == pytest.approx(3.0)
    assert one.tax.half == pytest.approx(math.hypot(0.5, 0.5))
    assert one.traced.value == pytest.approx(3.0)
    assert one.traced.half == pytest.approx(math.hypot(T, T), rel=1e-4)
    assert one.outside == (0.5, 0.5)
    assert one.layers == {"nic": 3.0, "compute": 0.0}
    assert one.residual == pytest.approx(0.0)
    assert one.agrees is True


def test_taxes_further_apart_than_their_intervals_contradict_each_other(page):
    ours = traces(page, [10.0, 10.0], [7.0, 7.0])
    agreeing = page.compare(ours, {8: document((10.6, 10.5, 10.7), (7.5, 7.4, 7.6))}, "proxy")
    against = page.compare(ours, {8: document((12.0, 11.9, 12.1), (7.5, 7.4, 7.6))}, "proxy")
    assert [one.agrees for one in (*agreeing, *against)] == [True, False]
    assert page.agreement(agreeing) == (
        "The tax that clients saw meets that of the traces within intervals in all 1 cells."
    )
    assert page.agreement([*agreeing, *against]) == (
        "The tax that clients saw is NOT that of the traces: proxy at concurrency 4, isl 8."
    )
    assert "| NO |" in page.table(against)[-1]


def test_one_round_has_no_intervals_to_compare(page):
    (one,) = page.compare(traces(page, [10.0], [7.0]), {8: document((12.0, None, None), (7.5, None, None))}, "proxy")
    assert one.agrees is None
    assert page.agreement([one]) == "Clients and traces are not compared: one round has no intervals."
    assert "| – |" in page.table([one])[-1]


def test_the_page_says_what_was_run_and_whether_it_depends_on_the_load(page):
    documents = {8: document((11.5, 11, 12), (8.5, 8, 9))}
    compared = {"proxy": page.compare(traces(page, [10, 12], [7, 9]), documents, "proxy")}
    text = page.page(["Model --layers 4.", "Rounds: 2."], compared, documents)
    assert "Model --layers 4.\nRounds: 2.\nThe tax that clients saw meets" in text
    assert "## proxy against dense" in text
    assert "- proxy: flat, change +1.3 %\n- dense: inconclusive\n" in text
    one_load = {8: documents[8] | {"invariance": {}}}
    assert "Does it depend" not in page.page([], compared, one_load)
    header, rule, row = (line for line in text.splitlines() if line.startswith("|"))
    assert header.count("|") == rule.count("|") == row.count("|")
