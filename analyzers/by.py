"""What operations and critical paths can be grouped by: apart from the analysis, for a command line without polars."""

from __future__ import annotations

from enum import StrEnum


class By(StrEnum):
    """A column of the operations table."""

    KIND = "kind"
    ENDPOINT = "endpoint"
    PEER = "peer"
    THREAD = "thread"
    PROVIDER = "provider"


class PathBy(StrEnum):
    """What the critical path of decode steps can be grouped by."""

    STEP = "step"
    LAYER = "layer"  # of the model
    PHASE = "phase"
    RANK = "rank"
    PEER = "peer"  # rank whose operation let a gate go
    CHANNEL = "channel"


class Grouping(StrEnum):
    """Everything that a report can be grouped by."""

    KIND = "kind"
    ENDPOINT = "endpoint"
    PEER = "peer"
    THREAD = "thread"
    PROVIDER = "provider"
    STEP = "step"
    LAYER = "layer"
    PHASE = "phase"
    RANK = "rank"
    CHANNEL = "channel"

    @property
    def operations(self) -> By:
        """What operations are then grouped by; their kind where they have no such column."""
        return By(self.value) if self.value in set(By) else By.KIND

    @property
    def path(self) -> PathBy | None:
        """What the critical path is then grouped by."""
        return PathBy(self.value) if self.value in set(PathBy) else None
