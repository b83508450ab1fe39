"""What providers report, as tables and notes: one screen a provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

from efaprof.libfabric import Cap, EpType
from efaprof.report import units
from efaprof.report.fabric_known import RC, SRD
from efaprof.report.fabric_traits import UNLIMITED
from efaprof.report.sections import LEGEND, Notes, Section, Table
from efaprof.trace.layers import PROVENANCE_MARK

if TYPE_CHECKING:
    from efaprof.libfabric.survey import Offer
    from efaprof.report.fabric_report import FabricReport, ProviderReport
    from efaprof.report.fabric_traits import Value

_DIRECTIONS = ((Cap.MSG, Cap.SEND | Cap.RECV), (Cap.RMA, Cap.READ | Cap.WRITE | Cap.REMOTE_READ | Cap.REMOTE_WRITE))


def fabric_heading(report: FabricReport) -> str:
    """First line of the report."""
    emulated = f" · emulated: {', '.join(report.emulated)}" if report.emulated else ""
    return f"efaprof fabric · libfabric {report.version} · {report.path}{emulated}"


def fabric_sections(report: FabricReport) -> list[Section]:
    """What the report says, in order: each provider's attributes, properties and what they mean; warnings."""
    sections: list[Section] = []
    for provider in report.providers:
        sections += [_about(provider), _properties(provider), _meanings(provider)]
    if report.warnings:
        sections.append(Notes("warnings", report.warnings))
    sections.append(Notes(LEGEND, ("RC and SRD are documented, not asked here",)))
    return sections


def _about(provider: ProviderReport) -> Notes:
    if provider.offer is None:
        return Notes(provider.name, ("not here: every value is documented, none was asked",))
    offer = provider.offer
    info = offer.info
    names = ", ".join(offer.domains[:4]) + (f" and {len(offer.domains) - 4} more" if len(offer.domains) > 4 else "")
    others = [one.name for one in offer.ep_types if one != info.ep.type]
    entries = f"{offer.entries} entries" if offer.entries > 1 else "1 entry"
    lines = [
        f"{info.ep.type.name} endpoint"
        + (f" (also {', '.join(others)})" if others else "")
        + f" on {names} · protocol {info.ep.protocol.name} · {entries} in fi_getinfo",
        f"caps {units.MEASURED} {' '.join(_main(info.caps).names)}",
        _limits(offer),
    ]
    if info.nic is not None:
        nic = info.nic
        lines.append(
            f"NIC {nic.name} · {nic.speed_bits_s / 1e9:g} Gb/s · MTU {nic.mtu} · link {nic.state.name.lower()}"
        )
    return Notes(provider.name, tuple(lines))


def _main(caps: Cap) -> Cap:
    """Capabilities without the directions that go without saying."""
    for whole, directions in _DIRECTIONS:
        if whole in caps and directions in caps:
            caps &= ~directions
    return caps


def _limits(offer: Offer) -> str:
    info = offer.info
    largest = "unlimited" if info.ep.max_msg_size >= UNLIMITED else units.size(info.ep.max_msg_size)
    parts = [
        f"inject {units.size(info.tx.inject_size)}",
        f"message {largest}",
        f"queues {info.tx.size} tx {info.rx.size} rx",
        f"threads {info.domain.threading.name}",
        f"progress {info.domain.data_progress.name}",
        f"mode {' '.join(info.mode.names) or 'none'}",
    ]
    return f"limits {units.MEASURED} {' · '.join(parts)}"


def _properties(provider: ProviderReport) -> Table:
    columns = ("property", "reported" if provider.offer else "documented", "RC", "SRD")
    rows = tuple(
        (row.name.value, marked(row.value), marked(RC[row.name]), marked(SRD[row.name])) for row in provider.rows
    )
    return Table("property", columns, rows, frozenset(columns))


def _meanings(provider: ProviderReport) -> Table:
    is_reliable = provider.offer is None or provider.offer.info.ep.type != EpType.DGRAM
    title = "for dispatch" if is_reliable else "for dispatch (unreliable)"
    columns = (title, "it means")
    return Table(title, columns, tuple((row.name.value, row.means) for row in provider.rows), frozenset(columns))


def marked(value: Value) -> str:
    """A cell with the mark of its provenance."""
    return f"{PROVENANCE_MARK[value.provenance]} {value.text}"
