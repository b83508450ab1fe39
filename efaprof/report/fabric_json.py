"""What providers report as JSON, schema efaprof.fabric/1 (efaprof/report/schemas/efaprof.fabric.1.json)."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any

from efaprof.report.fabric_known import RC, SRD
from efaprof.report.fabric_traits import Property

if TYPE_CHECKING:
    from efaprof.libfabric.survey import Atomics, Offer
    from efaprof.report.fabric_report import FabricReport, ProviderReport
    from efaprof.report.fabric_traits import Value

SCHEMA = "efaprof.fabric/1"
_LEFT_OUT = frozenset({"raw", "src_addr", "dest_addr"})


def fabric_document(report: FabricReport) -> dict[str, Any]:
    """The whole report. Attributes keep libfabric's names; sizes are bytes, speeds bits a second."""
    return {
        "schema": SCHEMA,
        "libfabric": {"path": report.path, "version": report.version},
        "emulated": list(report.emulated),
        "providers": [_provider(one) for one in report.providers],
        "references": [
            {"property": one.value, "rc": _value(RC[one]), "srd": _value(SRD[one])} for one in Property
        ],
        "warnings": list(report.warnings),
    }  # fmt: skip


def _provider(report: ProviderReport) -> dict[str, Any]:
    return {
        "provider": report.name,
        "is_present": report.offer is not None,
        "reported": None if report.offer is None else _offer(report.offer),
        "properties": [
            {"property": row.name.value, **_value(row.value), "means": row.means} for row in report.rows
        ],
    }  # fmt: skip


def _offer(offer: Offer) -> dict[str, Any]:
    return {
        "entries": offer.entries,
        "endpoint_types": [one.name for one in offer.ep_types],
        "domains": list(offer.domains),
        "completion_levels": [one.name for one in offer.levels],
        "atomics": None if offer.atomics is None else [_atomics(one) for one in offer.atomics],
        "has_gda_ops": offer.has_gda_ops,
        "immediate_takes_receive": offer.immediate_takes_receive,
        "problem": offer.problem,
        "info": _plain(offer.info),
    }


def _atomics(atomics: Atomics) -> dict[str, Any]:
    return {
        "kind": (atomics.kind.name or "BASE").lower(),
        "operations": [one.name for one in atomics.operations],
        "datatypes": [one.name for one in atomics.datatypes],
        "pairs": atomics.pairs,
        "largest_count": atomics.largest,
    }


def _value(value: Value) -> dict[str, Any]:
    return {"value": value.text, "provenance": value.provenance.value, "source": value.source}


def _plain(value: Any) -> Any:
    """Attributes as JSON: flags are lists of names, enumerations names."""
    if isinstance(value, IntFlag):
        return list(getattr(value, "names"))  # noqa: B009 every flag set of the binding has it
    if isinstance(value, IntEnum):
        return value.name
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value) if one.name not in _LEFT_OUT}
    return value
