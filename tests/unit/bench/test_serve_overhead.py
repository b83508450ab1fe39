"""What bench/serve.py makes of turns: ratios of rounds, intervals of pairs of servers."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture(name="bench")
def _bench(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    for name in ("serve", "load", "serve_runs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import serve

    yield serve
    monkeypatch.delitem(sys.modules, "serve", raising=False)  # the example's has this name too


def rounds(bench, ratios):
    """A round of each pair with these ratios of recorded to bare gaps; two turns differ about their mean."""
    return [
        bench.Round(
            pair,
            [bench.Turn(9.0, 100.0), bench.Turn(11.0, 100.0)],
            [bench.Turn(10.0 * ratio - 1, 100.0), bench.Turn(10.0 * ratio + 1, 100.0)],
        )
        for pair, of in enumerate(ratios)
        for ratio in of
    ]


def test_a_ratio_is_of_the_means_of_both_turns(bench):
    (one,) = rounds(bench, [[1.1]])
    assert one.ratio("gap_ms") == pytest.approx(math.log(1.1))
    assert one.ratio("tokens_per_s") == 0.0


def test_the_unit_of_the_interval_is_the_pair_of_servers(bench):
    # Rounds of a pair agree; pairs differ by 2 %: t of one degree of freedom, 12.7 times half of that.
    found = bench.change(rounds(bench, [[math.exp(0.01)] * 5, [math.exp(-0.01)] * 5]), "gap_ms")
    assert found == f"+0.0 %, 95 % [{100 * (math.exp(-0.12706) - 1):+.1f}, {100 * (math.exp(0.12706) - 1):+.1f}]"


def test_of_one_pair_it_is_the_round(bench):
    found = bench.change(rounds(bench, [[math.exp(0.01), math.exp(0.01), math.exp(0.01)]]), "gap_ms")
    assert found == "+1.0 %, 95 % [+1.0, +1.0]"


def test_the_report_says_of_how_many_it_is(bench, capsys):
    bench.report(rounds(bench, [[1.0, 1.0], [1.0, 1.01]]))
    said = capsys.readouterr().out
    assert "bare         10.000 ms between tokens (p50)     100.0 tokens/s, mean of 8 turns" in said
    assert "4 rounds of A B B A, 2 pairs of servers" in said
