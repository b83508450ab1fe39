"""Times per decoded token in the form that github-action-benchmark reads as `customSmallerIsBetter`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from efaprof.analyzers.diff import Diff
    from efaprof.analyzers.tax import TaxReport


def attribution_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The step, each layer of it, and what removing the host's part would buy; of a document with decode steps."""
    extra = f"{document['steps']} steps, {document['method']}"
    found = [("step", document["wall_us"])]
    found += [(f"layer {row['layer']}", row["us"]) for row in document["layers"]]
    host = document["groups"]["host"]["recoverable_us"]
    if host is not None:
        found.append(("host recoverable", host))
    return [_row(name, us["value"], us["lo"], us["hi"], extra) for name, us in found]


def diff_rows(diff: Diff) -> list[dict[str, Any]]:
    """Times of the second group, with the change against the first."""
    runs = f"mean of {len(diff.second)} runs"
    return [_row(one.name, one.second_us, None, None, f"{runs}, {one.change:+.2%}") for one in diff.measures]


def tax_rows(report: TaxReport) -> list[dict[str, Any]]:
    """Tax of each arm at each load."""
    rows = []
    for tax in report.taxes:
        us = {name: None if (ms := getattr(tax.mean.interval(), name)) is None else ms * 1e3 for name in ("lo", "hi")}
        name = f"tax {tax.arm} conc {tax.key.concurrency}"
        rows.append(_row(name, tax.mean.value * 1e3, us["lo"], us["hi"], f"against {report.baseline}"))
    return rows


def _row(name: str, value: float, lo: float | None, hi: float | None, extra: str) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "unit": "µs/token", "value": value, "extra": extra}
    if lo is not None and hi is not None:
        row["range"] = f"± {(hi - lo) / 2:.4g}"
    return row
