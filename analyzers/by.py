"""What operations can be grouped by; apart from the analysis, so that the command line needs no polars to parse it."""

from __future__ import annotations

from enum import StrEnum


class By(StrEnum):
    """A column of the operations table."""

    KIND = "kind"
    ENDPOINT = "endpoint"
    PEER = "peer"
    THREAD = "thread"
    PROVIDER = "provider"
