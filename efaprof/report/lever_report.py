"""Several runs that differ in named levers: their elasticities, LogGP, and the first run's verdict with both known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from efaprof.analyzers.attribution import NS_PER_US
from efaprof.analyzers.batches import choose_batching, estimate
from efaprof.analyzers.elasticity import Axis, Point, elasticities
from efaprof.analyzers.loggp import LogGP, Refusal, Sample, fit
from efaprof.analyzers.means import from_interval
from efaprof.analyzers.verdict import decide
from efaprof.errors import NothingToAnalyse, UsageError
from efaprof.report import units
from efaprof.report.sections import Notes, Section, Table
from efaprof.report.units import DERIVED, MEASURED
from efaprof.trace.layers import Layer, Provenance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from efaprof.analyzers.batches import Estimate
    from efaprof.analyzers.by_step import Costs
    from efaprof.analyzers.rules import Feature
    from efaprof.report.attribution_report import AttributionReport

# Entries of a fingerprint that put a run on an axis; without one, runs of equal fingerprint are equal there too.
_PARALLELISM = ("threads", "proxies")
_LOAD = ("load", "concurrency", "tokens")
_IMPLIED = {"proxies": 1}  # what a fingerprint does not name
_FREE = frozenset({"seed"})  # another seed is a repetition


@dataclass(frozen=True, slots=True)
class LeverReport:
    """What the runs say together."""

    levers: tuple[str, ...]
    points: tuple[Point, ...]
    features: dict[str, Feature]
    refused: dict[Axis, Refusal]
    loggp: LogGP | Refusal
    first: AttributionReport  # with the verdict that the elasticities allow


def lever_report(reports: Sequence[AttributionReport], levers: Sequence[str]) -> LeverReport:
    """Compare runs that may differ in `levers` (names of fingerprint entries) and in nothing else.

    Raises NothingToAnalyse when they differ in more, UsageError when a lever moved nothing.
    """
    _check(reports, levers)
    points = tuple(_point(report, levers) for report in reports)
    features, refused = elasticities(points)
    samples = [Sample(one.time_us.value, one.axes[Axis.OPERATIONS], one.axes[Axis.BYTES]) for one in points]
    return LeverReport(
        levers=tuple(levers),
        points=points,
        features=features,
        refused=refused,
        loggp=fit(samples),
        first=_with_elasticities(reports, features),
    )


def _check(reports: Sequence[AttributionReport], levers: Sequence[str]) -> None:
    for report in reports:
        if report.decode is None:
            raise NothingToAnalyse(f"{report.run.runs[0]} has no decode steps", hint="--lever compares steps of runs")
    prints = [report.run.fingerprint for report in reports]
    for lever in levers:
        if len({repr(one.get(lever)) for one in prints}) < 2:
            known = ", ".join(sorted({name for one in prints for name in one}))
            raise UsageError(f"every run has the same {lever}", hint=f"their fingerprints name {known}")
    names = {name for one in prints for name in one} - set(levers) - _FREE
    moved = sorted(name for name in names if len({repr(one.get(name)) for one in prints}) > 1)
    if moved:
        raise NothingToAnalyse(
            f"the runs are not comparable: they also differ in {', '.join(moved)}",
            hint=f"name it too, if it was meant: --lever {moved[0]}",
        )


def _point(report: AttributionReport, levers: Sequence[str]) -> Point:
    assert report.decode is not None  # checked before
    split, fingerprint = report.decode.decode.split, _IMPLIED | report.run.fingerprint
    axes = {Axis.OPERATIONS: split.operations_per_step, Axis.BYTES: split.bytes_per_step}
    for axis, names in ((Axis.PARALLELISM, _PARALLELISM), (Axis.LOAD, _LOAD)):
        moved_first = sorted(names, key=lambda name: name not in levers)
        found = next((float(fingerprint[name]) for name in moved_first if isinstance(fingerprint.get(name), int)), None)
        if found is None and not set(levers) & set(names):
            found = 1.0
        if found is not None:
            axes[axis] = found
    time = _communication(report.decode.decode.step_costs)
    mean = from_interval(time[0].value, time[0].lo, time[0].hi, time[1])
    settings = {name: value for name, value in fingerprint.items() if name not in {*levers, *_FREE}}
    return Point(report.run.runs[0], mean, axes, settings)


def _communication(costs: Costs) -> tuple[Estimate, int]:
    """T of a decode step, mean over ranks, µs; and the number of batches behind its interval."""
    own = [f"{layer}_ns" for layer in (Layer.COMPUTE, Layer.LAUNCH) if f"{layer}_ns" in costs.columns]
    by_step = (
        costs.filter(pl.col("kind") == "decode")
        .group_by("step")
        .agg(pl.mean("wall_ns", *own), pl.min("begin_ns"))
        .sort("begin_ns")
    )
    time: np.ndarray[Any, np.dtype[np.float64]] = by_step["wall_ns"].to_numpy() / NS_PER_US
    for name in own:
        time = time - by_step[name].to_numpy() / NS_PER_US
    batching = choose_batching(time)
    return estimate(time, batching), batching.batches


def _with_elasticities(reports: Sequence[AttributionReport], features: dict[str, Feature]) -> AttributionReport:
    """The first run's report, decided again; what is wrong with any of the runs is wrong with the comparison."""
    first = reports[0]
    assert first.decode is not None  # checked before
    decode = first.decode.decode
    failed = tuple(one for report in reports if report.decode for one in report.decode.decode.failed)
    known = decode.features | features
    verdict = decide(known, defects=tuple(one.defect.value for one in failed))
    decided = replace(decode, features=known, verdict=verdict, failed=tuple(dict.fromkeys(failed)))
    return replace(first, decode=replace(first.decode, decode=decided), verdict=verdict)


def lever_sections(report: LeverReport) -> list[Section]:
    """The runs as a table, and what they say together."""
    columns = ("run", f"communication µs/step {DERIVED}", "95 %", f"operations {MEASURED}", f"bytes {MEASURED}")
    rows = []
    for one in report.points:
        interval = one.time_us.interval()
        half = (
            units.NONE if interval.hi is None else f"±{units.microseconds((interval.hi - interval.value) * NS_PER_US)}"
        )
        rows.append(
            (
                one.source,
                units.microseconds(one.time_us.value * NS_PER_US),
                half,
                units.digits(one.axes[Axis.OPERATIONS], 4),
                units.size(one.axes[Axis.BYTES]),
            )
        )
    lines = [
        f"{one.name} {one.value:+.2f} [{one.lo:+.2f}, {one.hi:+.2f}] {DERIVED} {one.note}"
        for one in report.features.values()
    ]
    lines += [f"elasticity_{axis} unknown: {one.reason}" for axis, one in report.refused.items()]
    lines.append(f"LogGP {_loggp_words(report.loggp)}")
    return [
        Table(f"by {', '.join(report.levers)}", columns, tuple(rows), frozenset({"run"})),
        Notes("together", tuple(lines)),
    ]


def _loggp_words(found: LogGP | Refusal) -> str:
    if isinstance(found, Refusal):
        return f"refused: {found.reason}"
    costs = (("L", found.latency_us, 1.0, "µs"), ("o", found.per_operation_us, 1.0, "µs/op"),
             ("G", found.per_byte_us, 1e3, "ns/B"))  # fmt: skip
    words = [
        f"{name} {one.value * scale:.4g}"
        + ("" if one.lo is None or one.hi is None else f" [{one.lo * scale:.4g}, {one.hi * scale:.4g}]")
        + f" {unit}"
        for name, one, scale, unit in costs
    ]
    return f"{' · '.join(words)} {DERIVED} off by {units.percent(found.relative_error)} of {found.samples} runs"


def lever_keys(report: LeverReport) -> dict[str, Any]:
    """Keys that several runs add to efaprof.attribution/1."""
    loggp: dict[str, Any]
    if isinstance(report.loggp, Refusal):
        loggp = {"refused": report.loggp.reason}
    else:
        fitted = report.loggp
        loggp = {
            name: {"value": one.value, "lo": one.lo, "hi": one.hi, "provenance": Provenance.DERIVED.value}
            for name, one in (
                ("latency_us", fitted.latency_us),
                ("per_operation_us", fitted.per_operation_us),
                ("per_byte_us", fitted.per_byte_us),
            )
        } | {"relative_error": fitted.relative_error, "runs": fitted.samples}
    return {
        "levers": {
            "names": list(report.levers),
            "runs": [
                {
                    "run": one.source,
                    "communication_us": one.time_us.value,
                    "operations": one.axes[Axis.OPERATIONS],
                    "bytes": one.axes[Axis.BYTES],
                    "provenance": Provenance.DERIVED.value,
                }
                for one in report.points
            ],
            "elasticities": [
                {"name": one.name, "value": one.value, "lo": one.lo, "hi": one.hi, "note": one.note,
                 "provenance": Provenance.DERIVED.value}
                for one in report.features.values()
            ],
            "refused": {f"elasticity_{axis}": one.reason for axis, one in report.refused.items()},
            "loggp": loggp,
        }
    }  # fmt: skip
