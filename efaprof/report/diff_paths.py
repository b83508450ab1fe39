"""A comparison across paths: what runs with a proxy predict of posting from the kernel, beside what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from efaprof.analyzers.path_change import PathChange, of_change, of_runs, posted_by_kernel, posted_cost_us
from efaprof.analyzers.replay import FENCE
from efaprof.errors import NothingToAnalyse
from efaprof.report import units
from efaprof.report.attribution_report import report_on
from efaprof.report.sections import Notes, Section, Table
from efaprof.report.units import DERIVED, MEASURED
from efaprof.trace.layers import DispatchPath, Layer, Provenance
from efaprof.trace.reader import open_tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from efaprof.analyzers.path_change import PathSaving
    from efaprof.analyzers.replay import Change
    from efaprof.report.decode_report import DecodeSection
    from efaprof.report.diff_runs import ReadRun
    from efaprof.trace.rundir import Run

# What differs with the path, and is what such a comparison is about.
PATH_KEYS = frozenset({"path", "posting", "providers"})
_NS_PER_US = 1e3


def is_across_paths(first: Sequence[ReadRun], second: Sequence[ReadRun]) -> bool:
    """One side posts by a proxy, the other from the kernel."""
    paths = [{one.measures.comparable["path"] for one in side} for side in (first, second)]
    return paths == [{DispatchPath.PROXY.value}, {DispatchPath.GDAKI.value}]


def path_change(proxy: Sequence[Run], posted: Sequence[Run], unfenced: Sequence[Run]) -> PathChange:
    """Prediction and measurement from run directories; NothingToAnalyse where one lacks what it takes."""
    after = [_steps(run) for run in posted]
    costs_us = [posted_cost_us(one.postings) for one in after if one.postings is not None]
    if len(costs_us) < len(after):
        raise NothingToAnalyse(
            f"{posted[0].path} holds no operation that a kernel posted",
            hint="record it with bench dispatch --path gdaki",
        )
    posted_us = sum(costs_us) / len(costs_us)
    before, kernel_us = [], []
    for run in proxy:
        kernel_us.append(_kernel_us(run))
        before.append(_steps(run, posted_by_kernel(kernel_us[-1], posted_us)))
    splits = [one.decode.split for one in before]
    predicted = of_change(splits, posted_by_kernel(1.0, 1.0).name, "posted by the kernel: replay of A")
    assert predicted is not None  # it was asked for
    without = [_steps(run).decode.split for run in unfenced]
    return PathChange(
        kernel_us=sum(kernel_us) / len(kernel_us),
        posted_us=posted_us,
        predicted=predicted,
        measured=of_runs(splits, [one.decode.split for one in after], "posted by the kernel: A less B"),
        fence=of_change(splits, FENCE, "proxy without fences: replay of A"),
        unfenced=of_runs(splits, without, "proxy without fences: A less those runs") if without else None,
    )


def _steps(run: Run, *changes: Change) -> DecodeSection:
    report = report_on([(run, open_tables(run))], what_if=changes)
    if report.decode is None:
        raise NothingToAnalyse(f"{run.path} has no decode steps", hint="record it with efaprof bench dispatch")
    return report.decode


def _kernel_us(run: Run) -> float:
    spread = _steps(run).decode.latencies.get(Layer.KERNEL)
    if spread is None or spread.mean_ns <= 0:
        raise NothingToAnalyse(
            f"{run.path} has no kernel stamps: what the kernel does on the proxy path is not known",
            hint="record it with efaprof bench dispatch",
        )
    return spread.mean_ns / _NS_PER_US


def _rows(change: PathChange) -> list[PathSaving]:
    return [one for one in (change.predicted, change.measured, change.fence, change.unfenced) if one is not None]


def path_sections(change: PathChange) -> list[Section]:
    """The table of savings, and in words whether the claim held."""
    rows = tuple(
        (
            f"{one.what} {MEASURED if one.is_measured else DERIVED}",
            units.microseconds(one.us.value * _NS_PER_US),
            units.NONE
            if one.us.lo is None or one.us.hi is None
            else f"{units.microseconds(one.us.lo * _NS_PER_US)} … {units.microseconds(one.us.hi * _NS_PER_US)}",
            str(one.runs),
        )
        for one in _rows(change)
    )
    lines = (
        (
            f"an operation costs the kernel {change.kernel_us:.3f} µs {MEASURED} with a proxy,"
            f" {change.posted_us:.3f} µs {MEASURED} to write its entry and ring"
        ),
        _agreement(change),
    )
    table = Table("saves of a step", ("saves of a step", "µs", "95 %", "runs"), rows, frozenset({"saves of a step"}))
    return [table, Notes("claim", lines)]


def _agreement(change: PathChange) -> str:
    if not change.is_sign_right:
        return "measured and predicted disagree on whether a step is shorter"
    if change.is_inside is None:
        return "measured and predicted agree on the sign; one run of few steps gives no interval"
    if change.is_inside:
        return "the measured saving lies inside the interval that the proxy path's own replay predicted"
    return (
        "the sign agrees, the measured saving lies outside the predicted interval: the replay keeps the recorded wire,"
        " cores and order, and they were not the same in the runs that were compared"
    )


def path_document(change: PathChange) -> dict[str, Any]:
    """Key `paths` of efaprof.diff/1."""
    return {
        "kernel_us": change.kernel_us,
        "posted_us": change.posted_us,
        "savings": [
            {
                "what": one.what,
                "us": {"value": one.us.value, "lo": one.us.lo, "hi": one.us.hi},
                "runs": one.runs,
                "provenance": (Provenance.MEASURED if one.is_measured else Provenance.DERIVED).value,
            }
            for one in _rows(change)
        ],
        "is_sign_right": change.is_sign_right,
        "is_inside": change.is_inside,
    }
