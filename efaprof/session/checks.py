"""What `efaprof doctor` says of one thing that it looked at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Outcome of a check."""

    OK = "ok"
    DEGRADED = "degraded"
    NO = "no"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    check: str
    state: State
    detail: str
    hint: str = ""  # what to type; empty when there is nothing to do
