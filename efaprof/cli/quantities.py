"""Times and rates as people type them on the command line."""

from __future__ import annotations

import math
import re

from efaprof.errors import UsageError

_NUMBER = r"(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"
_TIME = re.compile(rf"{_NUMBER}\s*(?P<unit>ns|us|µs|ms|s|min|m|h|d)")
_RATE = re.compile(rf"{_NUMBER}\s*(?P<prefix>[KMGT]?)(?P<unit>bps|bit/s|B/s)", re.ASCII)
_COUNT = re.compile(rf"{_NUMBER}\s*(?P<prefix>[kKMG]?)", re.ASCII)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_POWER = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def parse_seconds(text: str) -> float:
    """Seconds of `300us`, `1.5ms`, `24h`, `2d`; a bare number has no unit and is refused."""
    found = _TIME.fullmatch(text.strip())
    seconds = float(found["number"]) * _SECONDS[found["unit"]] if found else math.nan
    if not math.isfinite(seconds):
        raise UsageError(f"{text!r} is no time", hint="write it like 300us, 1.5ms or 24h")
    return seconds


def parse_percent(text: str) -> float:
    """The share that `5%` or `5` is: 0.05."""
    found = re.fullmatch(_NUMBER + r"\s*%?", text.strip())
    if found is None or not math.isfinite(float(found["number"])):
        raise UsageError(f"{text!r} is no percentage", hint="write it like 5%")
    return float(found["number"]) / 100


def parse_rate(text: str) -> float:
    """Bytes per second of `400Gbps` (bits) or `50GB/s` (bytes); prefixes are powers of 1000, as NICs count."""
    found = _RATE.fullmatch(text.strip())
    rate = float(found["number"]) * _POWER[found["prefix"]] if found else math.nan
    if found is None or not math.isfinite(rate) or rate <= 0:
        raise UsageError(f"{text!r} is no rate", hint="write it like 400Gbps or 50GB/s")
    return rate if found["unit"] == "B/s" else rate / 8


def parse_count(text: str) -> float:
    """The number that `200k` or `1.5M` is; prefixes are powers of 1000."""
    found = _COUNT.fullmatch(text.strip())
    count = float(found["number"]) * _POWER[found["prefix"].upper()] if found else math.nan
    if not math.isfinite(count) or count <= 0:
        raise UsageError(f"{text!r} is no number of operations", hint="write it like 200k or 1.5M")
    return count
