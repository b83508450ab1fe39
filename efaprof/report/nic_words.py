"""What NIC counters moved by against what operations asked for, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from efaprof.report import units
from efaprof.report.units import DERIVED, MEASURED

if TYPE_CHECKING:
    from efaprof.analyzers.nic import Difference, Movement


def movement_words(moved: Movement) -> str:
    """`44.1 MB ● sent by efa0 for 40.0 MB ● asked, +4.1 MB ○ (+10.2 %)`; the payload alone where the NIC counts it."""
    by = ", ".join(moved.devices)
    said = []
    if moved.sent is not None:
        said.append(f"{_against(moved.sent, f'sent by {by}')}")
    if moved.fetched is not None:
        said.append(f"{_against(moved.fetched, f'received by {by}')}")
    if moved.payload is not None and moved.payload != moved.sent:
        said.append(_against(moved.payload, "of it payload"))
    return "; ".join(said) or f"{units.size(moved.sent_bytes or 0)} {MEASURED} sent by {by}"


def _against(found: Difference, what: str) -> str:
    sign = "+" if found.bytes >= 0 else "−"
    times = f"×{units.digits(1 + found.share)}" if found.share >= 1 else f"{sign}{units.percent(abs(found.share))}"
    change = f"{sign}{units.size(abs(found.bytes))} {DERIVED} ({times})"
    moved, asked = units.size(found.moved_bytes), units.size(found.asked_bytes)
    return f"{moved} {MEASURED} {what} for {asked} {MEASURED} asked, {change}"
