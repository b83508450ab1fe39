"""The tax report as tables and notes, for the terminal and for markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from efaprof.analyzers.invariance import TOST_LEVEL, Outcome
from efaprof.analyzers.load_points import Unit
from efaprof.report.sections import LEGEND, Notes, Section, Table
from efaprof.trace.layers import PROVENANCE_MARK, Provenance

if TYPE_CHECKING:
    from efaprof.analyzers.batches import Estimate
    from efaprof.analyzers.invariance import Flatness
    from efaprof.analyzers.load_points import LoadPoint
    from efaprof.analyzers.serving import CellKey, RequestCounts
    from efaprof.analyzers.tax import TaxReport

MEASURED, DERIVED, ASSUMED = (PROVENANCE_MARK[one] for one in Provenance)
_UNITS = {
    Unit.WAVE: "waves",
    Unit.ASSUMED_WAVE: f"waves {ASSUMED}",
    Unit.BATCH: "batches",
    Unit.RUN: "runs",
}


def tax_heading(report: TaxReport) -> str:
    """First line of the report."""
    against = f"baseline {report.baseline}" if report.baseline else "no baseline: cells only"
    return f"efaprof tax · {', '.join(report.arms)} · {against} · from mean ITL, 95 % intervals"


def tax_sections(report: TaxReport) -> list[Section]:
    """What the report says, in order: cells, tax, load invariance, requests, warnings, legend."""
    sections: list[Section] = [_cells(report)]
    if report.taxes:
        sections.append(_taxes(report))
    if report.invariance:
        sections += _invariance(report)
    sections += [_requests(report), *_extrapolations(report)]
    if report.warnings:
        sections.append(Notes("warnings", report.warnings))
    sections.append(Notes(LEGEND, (f"ITL = (latency − TTFT)/(tokens − 1); tax {DERIVED} = ITL − ITL of the baseline",)))
    return sections


def _cells(report: TaxReport) -> Table:
    rows = []
    for name, points in report.arms.items():
        for point in points:
            rows.append(
                (
                    name,
                    f"{point.key.concurrency} {_mark(point.concurrency_provenance)}",
                    _lengths(point.key),
                    f"{with_interval(point.mean.interval(), 3)} {_itl_mark(point)}",
                    f"{point.per_user_tok_s:.3f} {_mark(point.per_user_provenance)}",
                    f"{point.units} {_UNITS[point.unit]}",
                    "–" if point.icc is None else f"{point.icc:.2f} {_mark(point.icc_provenance)}",
                    "–" if point.lag1 is None else f"{point.lag1:.2f}",
                )
            )
    columns = ("arm", "conc", "ISL/OSL", "ITL ms", "tok/s per user", "clusters", "icc", "lag-1")
    return Table("arm", columns, tuple(rows), frozenset({"arm", "clusters"}))


def _taxes(report: TaxReport) -> Table:
    layers = report.options.moe_layers
    rows = []
    for tax in report.taxes:
        row = [
            f"{tax.arm} − {report.baseline}",
            str(tax.key.concurrency),
            f"{with_interval(tax.mean.interval(), 2)} {DERIVED}",
            f"{tax.ratio:.3f} {DERIVED}",
        ]
        if layers is not None and tax.per_layer_us is not None:
            row.append(f"{with_interval(tax.per_layer_us, 0)} {DERIVED}")
        row.append("–" if tax.without_stalls_ms is None else f"{tax.without_stalls_ms:.2f} {DERIVED}")
        row.append("extrapolated" if tax.extrapolated else "")
        rows.append(tuple(row))
    columns = ["tax", "conc", "ms/token", "speed ratio"]
    if layers is not None:
        columns.append(f"µs per layer ({layers})")
    columns += ["without stalls", ""]
    return Table("tax", tuple(columns), tuple(rows), frozenset({"tax", ""}))


def _invariance(report: TaxReport) -> list[Section]:
    rows = []
    statements: dict[str, list[str]] = {}
    for name, flat in report.invariance.items():
        rows.append(
            (
                name,
                f"{flat.loads[0]}–{flat.loads[-1]}",
                f"{flat.change:+.2%} {DERIVED}",
                _share_interval(flat),
                f"{flat.units} {_UNITS[flat.unit]}",
                outcome(flat),
            )
        )
        statements.setdefault(flat.leverage.statement, []).append(name)
    columns = ("load invariance", "conc", "change of ITL", f"{TOST_LEVEL:.0%} interval", "clusters", "outcome")
    table = Table("load invariance", columns, tuple(rows), frozenset({"load invariance", "clusters", "outcome"}))
    lines = tuple(f"{', '.join(names)}: {statement}" for statement, names in statements.items())
    return [table, Notes("leverage", lines)]


def outcome(flat: Flatness) -> str:
    """The outcome in words, with its margin and what it hangs on."""
    if flat.outcome is Outcome.FLAT:
        words = [f"flat within ±{flat.tight_margin if flat.is_within_tight else flat.margin:.0%}"]
        if not flat.is_within_tight:
            words.append(f"not within ±{flat.tight_margin:.0%}")
        if flat.is_slope_significant:
            words.append("slope significant")
    else:
        words = [f"{flat.outcome.value} (±{flat.margin:.0%})"]
    if flat.is_one_run_per_load:
        words.append("conditional on one run per load")
    return ", ".join(words)


def _requests(report: TaxReport) -> Table:
    rows = []
    for name, points in report.arms.items():
        for point in points:
            counts, waves = point.counts, point.wave_kind
            rows.append(
                (
                    name,
                    str(point.key.concurrency),
                    f"{counts.used}/{counts.read}" if counts.read else "–",
                    _lost(counts),
                    "–" if waves is None else waves.value,
                    "–" if waves is None else str(point.warmup_waves),
                    "–" if point.cold_ttft is None else f"{point.cold_ttft:.0f}×",
                    *_chunk_cells(point),
                )
            )
    columns = ("requests", "conc", "used", "not used", "waves", "warm-up dropped", "cold TTFT", *_CHUNK_COLUMNS)
    return Table("requests", columns, tuple(rows), frozenset({"requests", "not used", "waves", "stalls"}))


_CHUNK_COLUMNS = ("coalesced chunks", "gap p50/p99 ms", "stalls")
_LOST_WORDS = {
    "warmup": "warm-up",
    "failed": "failed",
    "cancelled": "cancelled",
    "partial": "partial",
    "single_token": "of one token",
    "malformed": "malformed lines",
}


def _lost(counts: RequestCounts) -> str:
    found = [f"{getattr(counts, name)} {word}" for name, word in _LOST_WORDS.items() if getattr(counts, name)]
    return ", ".join(found) or "0"


def _chunk_cells(point: LoadPoint) -> tuple[str, str, str]:
    chunks = point.chunks
    if chunks is None:
        return "–", "–", "–"
    coalesced = f"{chunks.coalesced_chunks}/{chunks.gaps}"
    odd = {"tokens unplaced": chunks.unplaced_tokens, "chunks empty": chunks.surplus_chunks}
    if any(odd.values()):
        coalesced += f" ({', '.join(f'{word}: {count}' for word, count in odd.items() if count)})"
    gaps = "–"
    if chunks.p50_ms is not None and chunks.p99_ms is not None:
        gaps = f"{chunks.p50_ms:.1f}/{chunks.p99_ms:.1f}"
    if chunks.stalls is None:
        stalls = f"{chunks.long_gaps} long gaps, no times" if chunks.long_gaps else "–"
    else:
        stalls = str(chunks.stalls.events)
        if point.stall_ms_per_token:
            stalls += f" (+{point.stall_ms_per_token:.3f} ms/token)"
        if chunks.stalls.lone_gaps:
            stalls += f", {chunks.stalls.lone_gaps} lone gaps"
    if chunks.candidates_not_kept:
        stalls += f", {chunks.candidates_not_kept} beyond those kept"
    return coalesced, gaps, stalls


def _extrapolations(report: TaxReport) -> list[Notes]:
    lines = dict.fromkeys(f"{tax.arm}: {reason}" for tax in report.taxes for reason in tax.extrapolated)
    return [Notes("extrapolated", tuple(lines))] if lines else []


def with_interval(estimate: Estimate, digits: int) -> str:
    """A number with its 95 % interval; "[?]" where too few units were observed to have one."""
    if estimate.lo is None or estimate.hi is None:
        return f"{estimate.value:.{digits}f} [?]"
    return f"{estimate.value:.{digits}f} [{estimate.lo:.{digits}f}, {estimate.hi:.{digits}f}]"


def _share_interval(flat: Flatness) -> str:
    return "unknown" if flat.lo is None or flat.hi is None else f"[{flat.lo:+.2%}, {flat.hi:+.2%}]"


def _lengths(key: CellKey) -> str:
    return "/".join("?" if length is None else str(length) for length in (key.isl, key.osl))


def _itl_mark(point: LoadPoint) -> str:
    return MEASURED if point.unit is not Unit.BATCH else DERIVED


def _mark(provenance: Provenance) -> str:
    return PROVENANCE_MARK[provenance]
