"""Profiles of calibrated ceilings (schema efaprof.profile/1), read and written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from efaprof.analyzers.profile import LoopRow, Profile, profile_of
from efaprof.errors import TraceError
from efaprof.ingest.fields import whole
from efaprof.ingest.lines import document

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA = "efaprof.profile/1"
_HINT = "efaprof calibrate --provider NAME writes one"
_ROW = ("size_bytes", "window", "completed", "elapsed_ns", "idle_ns")


def profile_document(profile: Profile) -> dict[str, Any]:
    """The profile as JSON; everything but the rows follows from them."""
    return {
        "schema": SCHEMA,
        "fingerprint": dict(profile.fingerprint),
        "emulated": list(profile.emulated),
        "rate_ops_s": {"value": profile.rate_ops_s.value, "is_ceiling": profile.rate_ops_s.is_ceiling},
        "peak_bytes_s": {"value": profile.peak_bytes_s.value, "is_ceiling": profile.peak_bytes_s.is_ceiling},
        "latency_us": profile.latency_us,
        "provenance": "measured",
        "rows": [{name: getattr(row, name) for name in (*_ROW, "threads")} for row in profile.rows],
    }


def write_profile(path: Path, profile: Profile) -> None:
    """Store a profile."""
    path.write_text(json.dumps(profile_document(profile), indent=1) + "\n", encoding="utf-8")


def read_profile(path: Path) -> Profile:
    """A stored profile, computed again from its rows; TraceError when it is none."""
    value = document(path)
    found = value.get("schema") if isinstance(value, dict) else type(value).__name__
    if not isinstance(value, dict) or found != SCHEMA:
        raise TraceError(f"{path} has schema {found!r}, this efaprof reads {SCHEMA!r}", hint=_HINT)
    rows, fingerprint, emulated = (value.get(name) for name in ("rows", "fingerprint", "emulated"))
    if not isinstance(rows, list) or not isinstance(fingerprint, dict) or not isinstance(emulated, list):
        raise TraceError(f"{path} has no rows, fingerprint or emulated", hint=_HINT)
    return profile_of(
        [_row(row, f"{path}: rows[{at}]") for at, row in enumerate(rows)],
        {str(name): str(text) for name, text in fingerprint.items()},
        [str(label) for label in emulated],
    )


def _row(row: Any, where: str) -> LoopRow:
    numbers: Mapping[str, Any] = row if isinstance(row, dict) else {}
    found = {name: whole(numbers.get(name)) for name in _ROW}
    values = {name: number for name, number in found.items() if number is not None and number >= 0}
    threads = whole(numbers.get("threads", 1))
    if not threads or threads < 0 or len(values) < len(_ROW) or not values["elapsed_ns"] or not values["size_bytes"]:
        raise TraceError(f"{where} is no loop: it needs {', '.join(_ROW)}", hint=_HINT)
    return LoopRow(**values, threads=threads)
