"""Runs of a sweep: each with its time and verdict, then what they say together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from efaprof.report import units
from efaprof.report.attribution_json import attribution_document
from efaprof.report.lever_report import lever_keys, lever_sections
from efaprof.report.sections import LEGEND, Notes, Section, Table
from efaprof.report.units import DERIVED, MEASURED
from efaprof.trace.layers import Provenance

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from efaprof.report.attribution_report import AttributionReport
    from efaprof.report.lever_report import LeverReport

_NS_PER_US = 1e3


def sweep_heading(folder: Path, reports: Sequence[AttributionReport]) -> str:
    """First line."""
    emulated = ", ".join(reports[0].run.emulated)
    return f"efaprof sweep · {folder} · {len(reports)} runs" + (f" · emulated: {emulated}" if emulated else "")


def sweep_sections(reports: Sequence[AttributionReport], compared: LeverReport) -> list[Section]:
    """Each run's step and verdict, the comparison, and the first run's verdict with it."""
    columns = ("run", f"step µs {MEASURED}", "95 %", f"coverage {DERIVED}", f"path {DERIVED}")
    rows = []
    for report in reports:
        assert report.decode is not None  # lever_report refuses runs without steps
        split = report.decode.decode.split
        wall = split.wall_us
        half = units.NONE if wall.hi is None else f"±{units.microseconds((wall.hi - wall.value) * _NS_PER_US)}"
        rows.append(
            (
                report.run.runs[0],
                units.microseconds(wall.value * _NS_PER_US),
                half,
                units.percent(split.coverage),
                report.verdict.path,
            )
        )
    verdict = compared.first.verdict
    unknown = f" · unknown: {', '.join(verdict.unknown)}" if verdict.unknown else ""
    lines = (f"{reports[0].run.runs[0]} with all runs: {verdict.path}{unknown}", LEGEND)
    table = Table("run", columns, tuple(rows), frozenset({"run", columns[-1]}))
    return [table, *lever_sections(compared), Notes("verdict", lines)]


def sweep_document(reports: Sequence[AttributionReport], compared: LeverReport) -> dict[str, Any]:
    """The first run's attribution with the comparison, and each run's step and verdict."""
    rows = []
    for report in reports:
        assert report.decode is not None  # lever_report refuses runs without steps
        wall = report.decode.decode.split.wall_us
        rows.append(
            {
                "run": report.run.runs[0],
                "wall_us": {"value": wall.value, "lo": wall.lo, "hi": wall.hi},
                "path": report.verdict.path,
                "provenance": Provenance.MEASURED.value,
            }
        )
    return attribution_document(compared.first) | lever_keys(compared) | {"sweep": rows}
