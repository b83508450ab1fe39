"""The decode steps of an attribution report as tables and notes: one screen (DESIGN §8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from efaprof.analyzers.batches import Estimate
from efaprof.analyzers.replay import FENCE, GROUPS, STANDARD
from efaprof.analyzers.verdict import evidence
from efaprof.report import units
from efaprof.report.annotated_report import found_words
from efaprof.report.sections import Notes, Section, Table
from efaprof.report.units import ASSUMED, DERIVED, MEASURED
from efaprof.trace.layers import Layer, Provenance
from efaprof.trace.postings import PARTS

if TYPE_CHECKING:
    from efaprof.analyzers.annotated import Tokens
    from efaprof.analyzers.attribution import DecodeSplit
    from efaprof.analyzers.decode import Decode
    from efaprof.report.decode_report import DecodeSection
    from efaprof.trace.postings import PostTotals

_NS_PER_US = 1e3
_MOST_UNKNOWN = 5
_MOST_EVIDENCE = 6
_MOST_LATE = 3
_MOST_GROUPS = 8
_MOST_TAIL = 5
_LEAST_TAIL = 5e-4  # less reads as 0.0 points
_PART_WORDS = {
    "order": "fence: earlier writes (nic)",
    "slot": "slot",
    "space": "room in the send queue",
    "build": "entry built",
    "turn": "turn: its batch",
    "fence": "memory fence",
    "doorbell": "doorbell",
}


def decode_heading(section: DecodeSection, names: str, path: str) -> str:
    """First line of a report with steps."""
    split = section.decode.split
    excluded = ", ".join(f"{count} {kind}" for kind, count in split.steps_excluded.items())
    left_out = f" ({excluded} excluded)" if excluded else ""
    proxies = f" with {section.proxies} proxies each" if section.proxies > 1 else ""
    return (
        f"efaprof attribute · {names} · {path} path · {len(split.ranks)} ranks{proxies} · "
        f"{split.steps} decode steps{found_words(section)}{left_out} · method {split.method}"
    )


def decode_sections(section: DecodeSection) -> list[Section]:
    """Layers, operations and verdict of the decode steps."""
    decode = section.decode
    found: list[Section] = [_layers(decode)]
    if decode.split.changes:
        found.append(_recoverable(decode))
    if decode.groups:
        found.append(_path_groups(decode))
    if section.postings is not None:
        found.append(_kernel_parts(section.postings, decode.split))
    return [*found, *_tail(decode), _operations(section), _verdict(section)]


def per_token(section: DecodeSection) -> str:
    """Wall time of a token with its interval, and the step's."""
    wall, tokens = section.decode.split.wall_us, section.tokens
    if tokens is None or tokens.tokens is None:
        return f"{_interval(wall)} {MEASURED} per step · one token a step and sequence assumed"
    lo, hi = (None if us is None else us / tokens.per_sequence for us in (wall.lo, wall.hi))
    per_token = Estimate(wall.value / tokens.per_sequence, lo, hi)
    return (
        f"{_interval(per_token)} {DERIVED} · {_interval(wall)} {MEASURED} per step,"
        f" {units.digits(tokens.per_sequence)} {_said(tokens)}"
    )


def _said(tokens: Tokens) -> str:
    if tokens.provenance is Provenance.MEASURED:
        return f"{MEASURED} tokens a step and sequence"
    return f"{ASSUMED} tokens a step, one sequence assumed"


def _interval(value: Estimate) -> str:
    if value.lo is None or value.hi is None:
        return f"{units.duration(value.value * _NS_PER_US)} (no interval: too few batches)"
    return units.interval(*(us * _NS_PER_US for us in (value.value, value.lo, value.hi)))


def _layers(decode: Decode) -> Table:
    rows = []
    has_replays = bool(decode.split.changes)
    for row in decode.split.layers:
        half = None if row.us.lo is None else row.us.value - row.us.lo
        spread = decode.latencies.get(row.layer)
        rows.append(
            (
                row.layer.value,
                units.microseconds(row.us.value * _NS_PER_US),
                units.NONE if half is None else f"±{units.microseconds(half * _NS_PER_US)}",
                units.percent(row.share),
                units.bar(row.share),
                *((_recovered(row.recoverable),) if has_replays else ()),
                units.microseconds(row.overlapped_us * _NS_PER_US),
                units.NONE if row.queue_us is None else units.microseconds(row.queue_us * _NS_PER_US),
                units.microseconds(spread.p50_ns) if spread else units.NONE,
                units.microseconds(spread.p99_ns) if spread else units.NONE,
            )
        )
    bound = "≤ " if decode.is_upper_bound else ""
    columns = (
        "layer", f"µs/step {DERIVED}", "95 %", f"share {DERIVED}", "of the step",
        *((f"recoverable {bound}{DERIVED}",) if has_replays else ()), f"overlapped {DERIVED}",
        f"queue {DERIVED}", f"p50 µs/op {MEASURED}", f"p99 {MEASURED}",
    )  # fmt: skip
    return Table("layer", columns, tuple(rows), frozenset({"layer", "of the step"}))


def _kernel_parts(totals: PostTotals, split: DecodeSplit) -> Table:
    """What a kernel that posts by itself does of an operation; the wait in front of a fence is nic time above."""
    steps = max(split.steps * len(split.ranks), 1)
    rows = tuple(
        (
            _PART_WORDS[part],
            units.microseconds(totals.sum_ns[part] / totals.operations),
            units.microseconds(totals.sum_ns[part] / steps),
            units.microseconds(totals.max_ns[part]),
        )
        for part in PARTS
    )
    entries = units.digits(totals.operations / totals.doorbells)
    title = f"kernel part ({entries} entries a doorbell {MEASURED})"
    columns = (title, f"mean µs/op {MEASURED}", f"µs/step {DERIVED}", f"max {MEASURED}")
    return Table(title, columns, rows, frozenset({title}))


def _path_groups(decode: Decode) -> Table:
    """The critical path by a key; of many keys those with the most time."""
    shown = decode.groups
    if len(shown) > _MOST_GROUPS:
        largest = sorted(shown, key=lambda group: group.us, reverse=True)[:_MOST_GROUPS]
        shown = tuple(group for group in shown if group in largest)
    layers = [row.layer for row in decode.split.layers]
    rows = tuple(
        (
            units.NONE if group.key is None else group.key,
            units.microseconds(group.us * _NS_PER_US),
            *(units.microseconds(group.layers.get(layer, 0.0) * _NS_PER_US) for layer in layers),
        )
        for group in shown
    )
    title = f"path by {decode.path_by}"
    more = f" (of {len(decode.groups)})" if len(shown) < len(decode.groups) else ""
    return Table(
        title + more, (title, f"µs/step {DERIVED}", *(layer.value for layer in layers)), rows, frozenset({title})
    )


def _recovered(value: Estimate | None) -> str:
    return units.NONE if value is None else units.microseconds(value.value * _NS_PER_US)


def _recoverable(decode: Decode) -> Notes:
    """What several layers would buy together, the changes asked for, and for whom the ranks waited."""
    changes = decode.split.changes
    together = "   ".join(f"{name} {_recovered(changes[name])}" for name in (*GROUPS, FENCE) if name in changes)
    bound = " at most: the NIC's own ceiling is not calibrated" if decode.is_upper_bound else ""
    lines = [f"{together} µs/step {DERIVED}{bound}"] if together else []
    standard = {change.name for change in STANDARD}
    lines += [
        f"what if {name}: {_interval(value)} shorter {DERIVED}"
        for name, value in changes.items()
        if name not in standard
    ]
    skew = decode.split.of(Layer.SKEW)
    if skew is not None and skew.us.value > 0:
        late = ", ".join(
            f"rank {one.rank} for rank {one.late_rank} {units.microseconds(one.us * _NS_PER_US)}"
            for one in decode.skew_by[:_MOST_LATE]
        )
        true = units.microseconds((skew.true_us or 0) * _NS_PER_US)
        lines.append(f"of skew, {true} µs {DERIVED} while the late rank computed; waited: {late}")
    return Notes("together", tuple(lines))


def _tail(decode: Decode) -> list[Section]:
    """By how much each layer's share differs in the slowest steps, largest first; nothing where it hardly does."""
    found = sorted(decode.split.tail.items(), key=lambda item: -abs(item[1]))
    shown = [f"{layer} {100 * share:+.1f}" for layer, share in found if abs(share) >= _LEAST_TAIL]
    if not shown:
        return []
    line = f"steps above p99 against p40 to p60, points of share {DERIVED}: {', '.join(shown[:_MOST_TAIL])}"
    return [Notes("tail", (line,))]


def _operations(section: DecodeSection) -> Notes:
    decode = section.decode
    split = decode.split
    kinds = ", ".join(f"{kind.kind} {units.whole(kind.count)}" for kind in decode.kinds)
    predicted = (
        ""
        if section.predicted_per_step is None
        else f" (predicted {units.digits(section.predicted_per_step, 4)} {DERIVED})"
    )
    lines = [
        (
            f"{units.digits(split.operations_per_step, 4)} {MEASURED} a step and rank{predicted}, "
            f"{units.size(split.bytes_per_step)} {MEASURED}: {kinds}"
        ),
        f"{units.percent(decode.stamped)} {DERIVED} stamped in every stage",
    ]
    return Notes("operations", tuple(lines))


def _verdict(section: DecodeSection) -> Notes:
    decode = section.decode
    verdict = decode.verdict
    where = f"/{verdict.where}" if verdict.where else ""
    kind = f" ({verdict.kind})" if verdict.kind else ""
    grade = f" · grade {verdict.grade}" if verdict.grade else ""
    lines = [f"step {verdict.step} · path {verdict.path}{where}{kind}{grade}"]
    if decode.failed:
        lines += [f"because  {failed.reason}" for failed in decode.failed]
    shown = [
        f"{one.feature.name} {one.feature.value:.2f} [{one.feature.lo:.2f}, {one.feature.hi:.2f}] against "
        f"{one.bound} {one.threshold:g}"
        for one in evidence(verdict, decode.features)[:_MOST_EVIDENCE]
    ]
    if shown:
        lines += [f"evidence {DERIVED}  " + " · ".join(shown[:3])]
        if shown[3:]:
            lines += ["            " + " · ".join(shown[3:])]
    if verdict.runner_up:
        lines.append(f"runner-up  {verdict.runner_up}")
    unknown = ", ".join(verdict.unknown[:_MOST_UNKNOWN])
    more = len(verdict.unknown) - _MOST_UNKNOWN
    if unknown:
        lines.append(f"unknown  {unknown}{f' and {more} more' if more > 0 else ''}")
    if verdict.next_experiment:
        lines.append(f"next  {verdict.next_experiment}")
    return Notes("verdict", tuple(lines))
