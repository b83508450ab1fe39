"""Fields of parsed JSON that may be absent, of another type, or absurd: what comes back is usable or None."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST_WHOLE = 1 << 62  # fits a signed 64-bit column with room for a duration on top
LARGEST_MS = 1e12  # 31 years: a longer time is not one
SMALLEST_MS = 1e-9  # a picosecond: a shorter time between tokens is not one


def number(value: Any) -> float | None:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def whole(value: Any) -> int | None:
    """A whole number that fits a column; a float is cut."""
    found = number(value)
    return int(value) if found is not None and abs(found) < LARGEST_WHOLE else None


def positive(value: Any) -> float | None:
    """A finite number above 0."""
    found = number(value)
    return found if found is not None and found > 0 else None


def count(value: Any) -> int | None:
    """A whole number from 1 on; a float is rounded."""
    found = whole(round(found)) if (found := number(value)) is not None else None
    return found if found is not None and found > 0 else None


def text(value: Any) -> str | None:
    """A string."""
    return value if isinstance(value, str) else None


def table(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object under `name`, or an empty one."""
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def duration_ms(value: Any, factor: float = 1.0) -> float | None:
    """A time in ms: `value` × `factor`, not negative and under LARGEST_MS."""
    found = number(value)
    return found * factor if found is not None and 0 <= found * factor < LARGEST_MS else None


def step_ms(value: Any, factor: float = 1.0) -> float | None:
    """A time between tokens in ms, so above 0."""
    found = duration_ms(value, factor)
    return found if found is not None and found > SMALLEST_MS else None


def durations_ms(values: Any, factor: float = 1.0) -> list[float] | None:
    """A list of times in ms; None when any of them is none."""
    if not isinstance(values, list):
        return None
    if not values:
        return []
    # Whole-list built-ins: a generator over every gap of a gigabyte would cost as much as parsing it.
    if not {float, int}.issuperset(map(type, values)) or min(values) < 0 or max(values) >= LARGEST_MS / factor:
        return None
    if not math.isfinite(sum(values)):  # NaN compares as neither too small nor too large
        return None
    return values if factor == 1.0 else [value * factor for value in values]
