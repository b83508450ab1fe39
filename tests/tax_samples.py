"""Load points and tax reports made of a few numbers."""

from __future__ import annotations

from efaprof.analyzers.load_points import load_points
from efaprof.analyzers.serving import Cell, CellKey, Format, Summary
from efaprof.analyzers.tax import NS_PER_H, TaxOptions, compare


def cell(mean, *, concurrency=4, session_h=0.0, lengths=(120, 128), source="x", model=None, std=0.25) -> Cell:
    session = None if session_h is None else int(session_h * NS_PER_H)
    return Cell(
        CellKey(concurrency, *lengths),
        source,
        Format.AIPERF_SUMMARY,
        Summary(mean, std, concurrency * 10),
        session_ns=session,
        model=model,
    )


def report(arm_cells, base_cells, **options):
    arms = {"deepep": load_points(arm_cells), "dense": load_points(base_cells)}
    return compare(arms, TaxOptions(**options))
