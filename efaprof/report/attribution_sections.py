"""The attribution report as tables and notes, for the terminal and for markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from efaprof.analyzers.by import By
from efaprof.report import decode_sections, units
from efaprof.report.attribution_report import DELIVERY, NO_STEPS
from efaprof.report.gpu_times import times_error
from efaprof.report.host_report import host_sections
from efaprof.report.nic_words import movement_words
from efaprof.report.sections import LEGEND, Notes, Section, Table
from efaprof.report.self_cost import self_cost_words
from efaprof.report.signature_sections import signature_notes
from efaprof.report.units import DERIVED, MEASURED
from efaprof.trace.layers import Layer, Match

if TYPE_CHECKING:
    from efaprof.analyzers.operations import OperationGroup
    from efaprof.analyzers.recorded import Recorded
    from efaprof.analyzers.spread import Spread
    from efaprof.report.attribution_report import AttributionReport

_MOST_ROWS = 12  # of a table on one screen; JSON has all of them
_MOST_UNKNOWN = 5
_OUTCOMES = (
    (Match.EXPECTED_NONE, "without one by design"),
    (Match.IN_FLIGHT, "in flight at the end"),
    (Match.CANCELLED, "cancelled"),
    (Match.FAILED_POST, "failed to post"),
    (Match.UNEXPLAINED, "unexplained"),
)


def attribution_heading(report: AttributionReport) -> str:
    """First line of the report."""
    run = report.run
    names = run.runs[0] if len(run.runs) == 1 else f"{len(run.runs)} runs"
    if report.decode is not None:
        return decode_sections.decode_heading(report.decode, names, run.path.value)
    processes = f"{run.processes} process" + ("es" if run.processes != 1 else "")
    found = report.segmentation
    steps = f"{found.decode} decode steps by signature" if found and found.decode else "no steps"
    return f"efaprof attribute · {names} · {run.path.value} path · {processes} · {steps} · method {report.method}"


def attribution_sections(report: AttributionReport) -> list[Section]:
    """What the report says, in order."""
    recorded = report.recorded
    sections: list[Section] = [_quality(report)]
    if report.decode is not None:
        sections += decode_sections.decode_sections(report.decode)
    else:
        sections += [_layers(recorded), _groups(recorded.kinds, By.KIND)]
    if report.segmentation is not None:
        sections.append(signature_notes(report.segmentation))
    if recorded.by is not By.KIND:
        sections.append(_groups(recorded.groups, recorded.by))
    if report.decode is None:
        if recorded.windows:
            sections.append(_rates(recorded))
        sections += [_queues(recorded), _outcomes(recorded), _verdict(report)]
    if recorded.movement is not None and recorded.movement.agrees is not None:
        sections.append(Notes("nic", (movement_words(recorded.movement),)))
    if report.host is not None:
        sections += host_sections(report.host)
    if report.warnings:
        sections.append(Notes("warnings", report.warnings))
    sections.append(Notes(_delivery(report), (f"{LEGEND}   next: {report.next_command}",)))
    return sections


def _quality(report: AttributionReport) -> Notes:
    recorded = report.recorded
    covered = report.decode.decode.split.coverage if report.decode else recorded.coverage
    coverage = units.NONE if covered is None else f"{units.percent(covered)} {DERIVED}"
    parts = (
        f"coverage {coverage}",
        f"drops {units.whole(recorded.dropped)} {MEASURED}",
        f"unexplained {units.whole(sum(recorded.unexplained.values()))} {DERIVED}",
        f"clock ±{units.duration(report.clock_error_ns)} {DERIVED}",
        *([f"times of GPUs {times_error(report.gpu_times)} {DERIVED}"] if report.gpu_times else []),
        f"emulated: {', '.join(report.run.emulated) or units.NONE}",
    )
    cost = [words] if (words := self_cost_words(report.self_cost)) else []
    if report.decode is None:
        return Notes("per operation", ("   ".join((*cost, *parts)),))
    return Notes("per token", ("   ".join((decode_sections.per_token(report.decode), *cost)), "   ".join(parts)))


def _layers(recorded: Recorded) -> Table:
    """Time per operation in each layer; receives apart, because they wait for somebody else."""
    rows = []
    for group in recorded.own:
        if group.direction == "tx":
            total = group.libfabric.sum_ns + (group.nic.sum_ns if group.nic else 0)
            rows.append(_layer_row(Layer.LIBFABRIC.value, group.libfabric, total))
            if group.nic:
                rows.append(_layer_row(Layer.NIC.value, group.nic, total))
        elif group.direction == "rx":
            rows.append(_layer_row("receives: libfabric", group.libfabric, None))
            if group.nic:
                rows.append(_layer_row("receives: until message", group.nic, None))
    columns = (
        "layer", f"p50 µs {MEASURED}", f"p90 {MEASURED}", f"p99 {MEASURED}", f"max {MEASURED}", f"sum {MEASURED}",
        f"operations {MEASURED}", f"share {DERIVED}", "of the time of operations",
    )  # fmt: skip
    return Table("layer", columns, tuple(rows), frozenset({"layer", "of the time of operations"}))


def _layer_row(name: str, spread: Spread, total_ns: int | None) -> tuple[str, ...]:
    share = spread.sum_ns / total_ns if total_ns else None
    return (
        name,
        *(units.microseconds(ns) for ns in (spread.p50_ns, spread.p90_ns, spread.p99_ns, spread.max_ns)),
        units.duration(spread.sum_ns),
        units.whole(spread.n),
        units.NONE if share is None else units.percent(share),
        "" if share is None else units.bar(share),
    )


def _groups(groups: tuple[OperationGroup, ...], by: By) -> Table:
    shown = groups[:_MOST_ROWS]
    rows = [_group_row(group, by) for group in shown]
    if len(groups) > len(shown):
        rest = groups[len(shown) :]
        rows.append((f"{len(rest)} more", units.whole(sum(group.count for group in rest)), *[units.NONE] * 6))
    columns = (
        by.value, f"count {MEASURED}", f"bytes {MEASURED}", f"libfabric p50 µs {MEASURED}", f"p99 {MEASURED}",
        f"nic p50 µs {MEASURED}", f"p99 {MEASURED} ", f"EAGAIN {MEASURED}",
    )  # fmt: skip
    return Table(by.value, columns, tuple(rows), frozenset({by.value}))


def _group_row(group: OperationGroup, by: By) -> tuple[str, ...]:
    name = units.NONE if group.key is None else str(group.key)
    if by is not By.KIND:
        name += f" {group.direction or 'cancel'}"
    if group.nest:
        name = f"{'  ' * group.nest}nested {group.nest}: {name}"
    nic = group.nic if group.direction == "tx" else None
    return (
        name,
        units.whole(group.count),
        units.size(group.bytes) if group.direction == "tx" else units.NONE,
        units.microseconds(group.libfabric.p50_ns),
        units.microseconds(group.libfabric.p99_ns),
        units.microseconds(nic.p50_ns) if nic else units.NONE,
        units.microseconds(nic.p99_ns) if nic else units.NONE,
        units.whole(group.eagain),
    )


def _rates(recorded: Recorded) -> Table:
    utilisation = recorded.utilisation
    line = recorded.movement.line_rate_bytes_s if recorded.movement else None
    of_line = f"utilisation {DERIVED} of {units.rate(line * 8, 'bit')}" if line else "utilisation"
    rows = tuple(
        (
            one.window,
            units.duration(one.length_ns),
            units.rate(one.operations_s, "op"),
            f"{units.size(one.bytes_s)}/s",
            units.percent(utilisation[one.window]) if one.window in utilisation else "unknown: no line rate",
        )
        for one in recorded.windows
    )
    columns = ("window", f"length {MEASURED}", f"operations {DERIVED}", f"bytes {DERIVED}", of_line)
    return Table("sent, window", columns, rows, frozenset({"window"}))


def _queues(recorded: Recorded) -> Notes:
    parts = []
    if recorded.outstanding_mean is not None:
        mean = units.digits(recorded.outstanding_mean)
        parts.append(f"outstanding {mean} {DERIVED} mean, {recorded.outstanding_highest} {MEASURED} highest")
    if recorded.eagain_per_post is not None:
        parts.append(f"EAGAIN {units.digits(recorded.eagain_per_post)} {DERIVED} per post")
    if recorded.empty_reads_per_completion is not None:
        parts.append(f"empty reads {units.digits(recorded.empty_reads_per_completion)} {DERIVED} per completion")
    if recorded.host.run_delay is not None:
        parts.append(f"waited for a core {units.percent(recorded.host.run_delay)} {DERIVED} (worst thread)")
    return Notes("queues", (" · ".join(parts) or units.NONE,))


def _outcomes(recorded: Recorded) -> Notes:
    """What became of the program's own operations, as a sum."""
    lines = []
    for group in recorded.own:
        if group.direction is None:
            continue
        completed = sum(group.matches.get(match, 0) for match in (Match.EXACT, Match.FIFO))
        others = [
            f"{units.whole(group.matches[match])} {words}" for match, words in _OUTCOMES if group.matches.get(match)
        ]
        what = "sent" if group.direction == "tx" else "receives"
        parts = [f"{units.whole(completed)} completed", *others]
        errors = f" ({units.whole(group.errors)} with an error)" if group.errors else ""
        lines.append(f"{units.whole(group.count)} {what} = {' + '.join(parts)}{errors} {MEASURED}")
    if recorded.arrivals.explained:
        words = "read that end no operation here: a peer's, or one given up"
        lines.append(f"{units.whole(recorded.arrivals.explained)} completions {words} {MEASURED}")
    if recorded.unexplained:
        kinds = ", ".join(f"{kind} {units.whole(count)}" for kind, count in recorded.unexplained.items())
        lines.append(f"unexplained: {kinds} {DERIVED}")
    return Notes("outcomes", tuple(lines) or (units.NONE,))


def _verdict(report: AttributionReport) -> Notes:
    verdict = report.verdict
    unknown = ", ".join(verdict.unknown[:_MOST_UNKNOWN])
    more = len(verdict.unknown) - _MOST_UNKNOWN
    lines = [
        f"step {verdict.step} · path {verdict.path}: {NO_STEPS}",
        f"unknown: {unknown}{f' and {more} more' if more > 0 else ''}",
    ]
    return Notes("verdict", tuple(lines))


def _delivery(report: AttributionReport) -> str:
    recorded, level = report.recorded, report.delivery_level
    words = DELIVERY[level]
    if report.decode is not None and report.decode.is_verified:
        words = f"payload verified: {units.whole(report.decode.verified_tokens)} tokens {MEASURED}"
    if recorded.movement is not None and level == 2:
        moved = units.size(recorded.movement.sent_bytes or 0)
        words += f": {moved} sent by {', '.join(recorded.movement.devices)} {MEASURED}"
    return f"delivery L{level} ({words})"
