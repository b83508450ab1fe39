"""The HTML report of a run: the attribution report, with pictures of its steps where it has any."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import polars as pl

from efaprof.report import units
from efaprof.report.attribution_report import report_on
from efaprof.report.attribution_sections import attribution_heading, attribution_sections
from efaprof.report.html import Figure, html_page
from efaprof.report.roofline import roofline
from efaprof.report.roofline_figure import roofline_figure
from efaprof.report.sections import Notes, Section, Table
from efaprof.report.step_figures import drawn_layers, spread_figure, steps_figure
from efaprof.report.worst_step import timeline_figure, worst_step
from efaprof.trace.reader import open_tables

if TYPE_CHECKING:
    from efaprof.analyzers.profile import Profile
    from efaprof.report.attribution_report import AttributionReport
    from efaprof.trace.layers import Layer
    from efaprof.trace.rundir import Run


def html_report(run: Run, profile: Profile | None = None) -> str:
    """The whole page; with a profile, the run stands under what its fabric reaches."""
    report = report_on([(run, open_tables(run))], profile=profile)
    figures, layers = _figures(run, report)
    figures += _under_the_roof(report, profile)
    sections = attribution_sections(report)
    first = [one for one in sections if one is sections[0] or one.title == "verdict"]
    return html_page(
        attribution_heading(report),
        first=first,
        figures=figures,
        layers=layers,
        rest=[*(one for one in sections if one not in first), *_rules(report), _origin(run, report)],
    )


def _figures(run: Run, report: AttributionReport) -> tuple[list[Figure], list[Layer]]:
    if report.decode is None:
        return [], []
    decode = report.decode.decode
    costs = decode.step_costs.filter(pl.col("kind") == "decode")
    layers = drawn_layers(costs, [row.layer for row in decode.split.layers])
    figures = [
        Figure("layers over steps", steps_figure(costs, layers), f"mean over ranks, method {report.method}"),
        Figure("per layer", spread_figure(costs, layers),
               f"time in one step on one rank, {units.whole(len(costs))} of them; drawn up to the 99.5th percentile"),
    ]  # fmt: skip
    worst = worst_step(run, costs)
    if worst is not None:
        others = f"; {worst.ranks} ranks, 8 drawn" if worst.ranks > 8 else ""
        length = units.duration(worst.end_ns - worst.begin_ns)
        caption = f"step {worst.step} on rank {worst.rank}, {length}: when each layer had something open{others}"
        figures.append(Figure("longest step", timeline_figure(worst), caption))
    return figures, layers


def _under_the_roof(report: AttributionReport, profile: Profile | None) -> list[Figure]:
    found = roofline([report], profile)
    if found is None:
        return []
    words = ["one rank" if report.decode else "one process", "while it communicates"]
    if profile is None:
        words.append("ceilings unknown: efaprof calibrate, efaprof report --profile FILE")
    elif found.is_lower_bound:
        words.append("the roof may be higher: the issuer of the calibration set it")
    if found.emulated:
        words.append(f"emulated: {', '.join(found.emulated)}")
    return [Figure("message roofline", roofline_figure(found), "; ".join(words))]


def _rules(report: AttributionReport) -> list[Section]:
    """Every rule of the verdict with its outcome."""
    words = {True: "holds", False: "does not hold", None: "unknown"}
    rows = tuple((label, words[holds]) for label, holds in report.verdict.rules)
    return [Table("rules", ("rule", "outcome"), rows, frozenset({"rule", "outcome"}))] if rows else []


def _origin(run: Run, report: AttributionReport) -> Notes:
    """Where the numbers come from."""
    manifest = run.manifest
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(manifest.started_realtime_ns // 1_000_000_000))
    lines = [
        f"run {', '.join(report.run.runs)}, started {started}, recorded by efaprof {manifest.efaprof_version}",
        f"command: {' '.join(manifest.command)}",
        f"host {manifest.host or units.NONE}: {manifest.cpu_model or 'CPU not known'}, {manifest.cpus or '?'} cores",
        f"providers: {', '.join(report.run.providers) or units.NONE}",
        f"emulated: {', '.join(report.run.emulated) or 'nothing'}",
        f"fingerprint: {json.dumps(manifest.fingerprint, ensure_ascii=False)}",
    ]
    return Notes("origin", tuple(lines))
