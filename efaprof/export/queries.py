"""The SQL that is shipped with efaprof: tables and views over a trace that it exported, for Perfetto's engine."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "sql"


def prelude() -> str:
    """All tables and views, in the order in which they must be made; run once, then query them."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.sql")))
