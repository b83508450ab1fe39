"""A profile of calibrated ceilings as a table and notes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from efaprof.analyzers.profile import LEAST_IDLE
from efaprof.analyzers.roofline import roof
from efaprof.report import units
from efaprof.report.sections import LEGEND, Notes, Section, Table
from efaprof.report.units import DERIVED, MEASURED

if TYPE_CHECKING:
    from efaprof.analyzers.profile import Ceiling, Profile


def profile_heading(profile: Profile) -> str:
    """First line."""
    marked = f" · emulated: {', '.join(profile.emulated)}" if profile.emulated else ""
    of = profile.fingerprint
    return f"efaprof calibrate · {of.get('provider')} · libfabric {of.get('libfabric')} · {of.get('host')}{marked}"


def profile_sections(profile: Profile) -> list[Section]:
    """Every loop, then the ceilings."""
    rows = tuple(
        (
            units.size(row.size_bytes),
            units.whole(row.threads),
            units.whole(row.window),
            units.rate(row.operations_s, "op"),
            f"{units.size(row.bytes_s)}/s",
            units.percent(row.idle),
            roof(profile.fabric, messages=row.window * row.threads, size_bytes=row.size_bytes).ceiling.value,
        )
        for row in profile.rows
    )
    columns = (
        "size", "threads", f"in flight, each {MEASURED}", f"rate {MEASURED}", f"bytes {MEASURED}",
        f"issuer idle {MEASURED}", f"roofline {DERIVED}",
    )  # fmt: skip
    lines = (
        f"rate {units.rate(profile.rate_ops_s.value, 'op')} {MEASURED} {_kind(profile.rate_ops_s)}",
        f"peak {units.size(profile.peak_bytes_s.value)}/s {MEASURED} {_kind(profile.peak_bytes_s)}",
        f"latency {units.duration(profile.latency_us * 1e3)} {MEASURED} of the smallest write, to its local completion",
        f"up to {max(row.threads for row in profile.rows)} issuing threads; all share this host   {LEGEND}",
    )
    return [Table("size", columns, rows, frozenset({columns[-1]})), Notes("ceilings", lines)]


def _kind(ceiling: Ceiling) -> str:
    if ceiling.is_ceiling:
        return "(ceiling: the issuer waited)"
    return f"(at least: the issuer waited less than {LEAST_IDLE:.0%} of the time)"
