"""Chunks of a run taken up in order: what is said of a run does not depend on where it was cut."""

from __future__ import annotations

import numpy as np
import pytest

from efaprof.analyzers.by import PathBy
from efaprof.analyzers.replay import STANDARD
from efaprof.analyzers.stamps import Limits
from efaprof.analyzers.totals import Asked, Totals
from efaprof.trace import dispatch
from efaprof.trace.steady import Steady, write_steady
from efaprof.trace.survey import survey

STEADY = Steady(steps=40, commands=12, ranks=3, proxy_ns=5_000)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_steady(tmp_path_factory.mktemp("totals") / "run", STEADY)


def taken(run, chunk_ops, path_by=PathBy.RANK):
    totals = Totals(Asked(Limits(ring=64, window=8), STANDARD, path_by))
    totals.take(dispatch.chunks(survey(run.raw_files), chunk_ops=chunk_ops))
    return totals


@pytest.mark.parametrize("chunk_ops", [1, 100, 700])
def test_any_cut_gives_the_same_costs(run, chunk_ops):
    whole, cut = taken(run, 1 << 20), taken(run, chunk_ops)
    assert cut.costs.columns == whole.costs.columns
    rows = [np.lexsort((one.costs.column("step"), one.costs.column("rank"))) for one in (whole, cut)]
    for name in whole.costs.columns:
        if name.endswith("_overlapped_ns"):
            continue  # what is walked over only in the next chunk adds nothing
        assert (whole.costs.column(name)[rows[0]] == cut.costs.column(name)[rows[1]]).all(), name


@pytest.mark.parametrize("chunk_ops", [1, 700])
def test_any_cut_gives_the_same_sums(run, chunk_ops):
    whole, cut = taken(run, 1 << 20), taken(run, chunk_ops)
    assert (cut.operations, cut.stamped) == (whole.operations, whole.stamped) == (STEADY.operations,) * 2
    assert cut.job == whole.job
    assert cut.job_steps == STEADY.steps
    assert cut.kinds.tolist() == whole.kinds.tolist()
    assert {layer: one.counts().to_dicts() for layer, one in cut.spreads.items()} == {
        layer: one.counts().to_dicts() for layer, one in whole.spreads.items()
    }


def test_an_error_in_a_chunk_reaches_the_caller(run):
    class Broken(Exception):
        pass

    def chunks():
        found = list(dispatch.chunks(survey(run.raw_files), chunk_ops=100))
        yield from found[:2]
        raise Broken

    with pytest.raises(Broken):
        Totals(Asked(Limits(), STANDARD, None)).take(chunks())
