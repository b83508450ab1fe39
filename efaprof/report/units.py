"""Numbers as people read them: a few digits, a unit that fits, the mark of their provenance."""

from __future__ import annotations

from efaprof.trace.layers import PROVENANCE_MARK, Provenance

NONE = "–"
MEASURED, DERIVED, ASSUMED = (PROVENANCE_MARK[one] for one in Provenance)
_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_COUNTS = ((1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, " "))
_BAR = " ▏▎▍▌▋▊▉█"


def whole(value: int) -> str:
    """1 204 331."""
    return f"{value:,}".replace(",", " ")


def digits(value: float, figures: int = 3) -> str:
    """A few significant figures, never in exponent form."""
    if value == 0:
        return "0"
    before = len(str(int(abs(value))))
    return f"{value:,.{max(figures - before, 0) if abs(value) >= 1 else figures}f}".replace(",", " ")


def _scaled(value: float, scales: tuple[tuple[float, str], ...]) -> tuple[str, str]:
    factor, unit = next(((factor, unit) for factor, unit in scales if abs(value) >= factor), scales[-1])
    return digits(value / factor), unit


def microseconds(value_ns: float) -> str:
    """12.3, of nanoseconds; the unit stands in the column's head."""
    return digits(value_ns / 1e3)


def duration(value_ns: float) -> str:
    """12.3 µs."""
    if abs(value_ns) < _TIMES[-2][0] and value_ns == int(value_ns):
        return f"{int(value_ns)} ns"
    return " ".join(_scaled(value_ns, _TIMES))


def interval(value_ns: float, low_ns: float, high_ns: float) -> str:
    """12.3 µs [12.1, 12.5]: the ends in the unit of the value."""
    factor, unit = next(((factor, unit) for factor, unit in _TIMES if abs(value_ns) >= factor), _TIMES[-1])
    return f"{digits(value_ns / factor)} {unit} [{digits(low_ns / factor)}, {digits(high_ns / factor)}]"


def size(value_bytes: float) -> str:
    """16.4 MB."""
    if abs(value_bytes) < _SIZES[-2][0] and value_bytes == int(value_bytes):
        return f"{int(value_bytes)} B"
    return " ".join(_scaled(value_bytes, _SIZES))


def rate(value_s: float, what: str) -> str:
    """20.4 k ops/s."""
    number, prefix = _scaled(value_s, _COUNTS)
    return f"{number}{prefix}{what}/s"


def percent(value: float) -> str:
    """70.6 %; all of something is only said when it is all."""
    shown = f"{value:.1%}"
    if shown == "100.0%" and value < 1:
        shown = "99.9%"
    return f"{shown[:-1]} %"


def bar(share: float, width: int = 16) -> str:
    """A bar of eighths of a character."""
    eighths = round(max(min(share, 1.0), 0.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_BAR[rest] if rest else "")
