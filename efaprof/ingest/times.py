"""Times as tools write them: units of durations, and when a benchmark started."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

# Milliseconds in one unit of time, by the unit's name.
MILLISECONDS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3}
_FORMATS = ("%Y%m%d-%H%M%S",)  # vllm bench serve


def unix_ns(text: Any) -> int | None:
    """Unix nanoseconds of an ISO time or of `YYYYmmdd-HHMMSS`; without a zone it is read as UTC; None if unreadable.

    Sessions are compared within one machine's exports, where a common offset cancels.
    """
    if not isinstance(text, str):
        return None
    moment: datetime | None = None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        for pattern in _FORMATS:
            try:
                moment = datetime.strptime(text, pattern)
            except ValueError:
                continue
    if moment is None:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000_000) * 1000
