"""Gates as rows of JSON and as a section of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from efaprof.analyzers.limits import GateStatus
from efaprof.report.sections import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from efaprof.analyzers.limits import Gate

_MARK = {GateStatus.PASSED: "✓", GateStatus.FAILED: "✗", GateStatus.INCONCLUSIVE: "?", GateStatus.UNKNOWN: "·"}


def gate_rows(gates: Sequence[Gate]) -> list[dict[str, Any]]:
    """`gates` of a document."""
    return [
        {"name": one.name, "status": one.status.value, "value": one.value, "limit": one.limit, "detail": one.detail}
        for one in gates
    ]


def gates_table(gates: Sequence[Gate]) -> Table:
    """Gates in their order, readable without colour."""
    rows = tuple((f"{_MARK[one.status]} {one.name}", one.status.value, one.detail) for one in gates)
    return Table("gate", ("gate", "status", "found"), rows, frozenset({"gate", "status", "found"}))
