"""Format 1 may grow and nothing of it may change: every line that a release wrote down still holds."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from pathlib import Path

import numpy as np

from efaprof.trace import layout

KEPT = Path(__file__).resolve().parents[2] / "golden" / "trace-format-1.txt"


def lines() -> list[str]:
    """All of the format that layout.py holds, a fact a line."""
    found = []
    for name, value in sorted(vars(layout).items()):
        if isinstance(value, np.dtype):
            found.append(f"{name} is {value.itemsize} bytes")
            found += [f"{name}.{field} at {at}: {kind}" for field, (kind, at, *_) in (value.fields or {}).items()]
        elif isinstance(value, type) and issubclass(value, IntEnum | IntFlag) and value not in (IntEnum, IntFlag):
            found += [f"{name}.{member.name} = {member.value}" for member in value]
        elif name.isupper() and isinstance(value, int) and name not in ("FORMAT_VERSION", "OLDEST_READABLE"):
            found.append(f"{name} = {value}")
    for kind, functions in layout.OP_FUNCTIONS.items():
        found += [f"{kind.name} function {at} is {function}" for at, function in enumerate(functions)]
    return [*found, *(f"the id of {text!r} is {layout.name_id(text):#x}" for text in (b"", b"fi_write"))]


def test_what_format_1_says_still_holds(request):
    if request.config.getoption("--update-golden") and not KEPT.exists():
        KEPT.write_text("\n".join(lines()) + "\n", encoding="utf-8")
    kept = KEPT.read_text(encoding="utf-8").splitlines()
    assert len(kept) > 300
    gone = sorted(set(kept) - set(lines()))
    assert not gone, f"readers of format 1 rely on this: {gone}; a change needs format 2 and a reader of both"


def test_runs_of_format_1_are_read_for_good():
    assert layout.OLDEST_READABLE <= 1 <= layout.FORMAT_VERSION
