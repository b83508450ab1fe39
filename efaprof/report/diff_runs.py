"""What each run contributes to a comparison: read from a run directory, or from the attribution.json of one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from efaprof.analyzers.attribution import NS_PER_US
from efaprof.analyzers.diff import RunMeasures
from efaprof.errors import NothingToAnalyse, TraceError
from efaprof.report.attribution_json import SCHEMA, attribution_document
from efaprof.report.attribution_report import report_on
from efaprof.trace.reader import open_tables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from efaprof.analyzers.profile import Profile
    from efaprof.report.attribution_report import AttributionReport
    from efaprof.trace.rundir import Run


@dataclass(frozen=True, slots=True)
class ReadRun:
    """A run's attribution document, and its measures."""

    document: dict[str, Any]
    measures: RunMeasures


def read_directory(run: Run, *, profile: Profile | None = None) -> ReadRun:
    """Attribute a run anew, so that all runs of a comparison are read by the same method."""
    return read_report(run, report_on([(run, open_tables(run))], profile=profile))


def read_report(run: Run, report: AttributionReport) -> ReadRun:
    """The same from a report on that run."""
    median = None
    if report.decode is not None:
        decode = report.decode.decode.step_costs.filter(pl.col("kind") == "decode")
        median = float(decode.group_by("step").agg(pl.mean("wall_ns"))["wall_ns"].median()) / NS_PER_US  # type: ignore[arg-type]
    machine = {"cpu_model": run.manifest.cpu_model, "cpus": run.manifest.cpus}
    machine |= {f"environment {name}": value for name, value in run.manifest.environment.items()}
    return _read(attribution_document(report), str(run.path), median_us=median, machine=machine)


def read_document(path: Path) -> ReadRun:
    """The measures in an attribution.json that was kept; TraceError when it is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TraceError(
            f"{path} cannot be read: {error}", hint="efaprof attribute RUN --json FILE makes one"
        ) from error
    found = document.get("schema") if isinstance(document, dict) else type(document).__name__
    if found != SCHEMA:
        raise TraceError(
            f"{path} has schema {found!r}, a comparison reads {SCHEMA!r}",
            hint="give run directories, or files that efaprof attribute --json FILE made",
        )
    try:
        return _read(document, str(path), median_us=None, machine={})
    except (KeyError, TypeError, AttributeError) as error:
        raise TraceError(
            f"{path} is damaged: {error!r}", hint="efaprof attribute RUN --json FILE makes it anew"
        ) from error


def _read(document: dict[str, Any], name: str, *, median_us: float | None, machine: Mapping[str, Any]) -> ReadRun:
    if document["wall_us"] is None:
        raise NothingToAnalyse(
            f"{name} has no decode steps: there is nothing to compare per token",
            hint="a comparison needs runs with marked steps, such as those of efaprof bench dispatch",
        )
    run, verdict = document["run"], document["verdict"]
    host = document["groups"]["host"]["recoverable_us"] if document["groups"] else None
    measures = RunMeasures(
        name=name,
        started_realtime_ns=run["started_realtime_ns"],
        wall_us=document["wall_us"]["value"],
        median_us=median_us,
        layers_us={row["layer"]: row["us"]["value"] for row in document["layers"]},
        host_us=None if host is None else host["value"],
        verdict="/".join(word for word in (verdict["path"], verdict["where"], verdict["kind"]) if word),
        comparable={
            **run["fingerprint"],
            "path": run["path"],
            "method": document["method"],
            "providers": run["providers"],
            "emulated": run["emulated"],
        },
        noted={"host": run["host"], "efaprof_version": run["efaprof_version"], **machine},
    )
    return ReadRun(document, measures)
