"""Formats of an export."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """What `efaprof export` writes."""

    PERFETTO = "perfetto"
    CHROME = "chrome"
    PARQUET = "parquet"
    CSV = "csv"
