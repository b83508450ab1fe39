"""What posting from the kernel would save, predicted from runs with a proxy, and what it saved (METHOD §2).

The prediction replays a proxy run without its host stages, the kernel's time being what writing an entry and ringing
the doorbell was measured to take; nothing else of the run is changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from efaprof.analyzers.means import Mean, difference, from_interval
from efaprof.analyzers.replay import HOST, Change
from efaprof.analyzers.stamps import LABEL
from efaprof.native_graph import Scenario
from efaprof.trace.layers import Layer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from efaprof.analyzers.attribution import DecodeSplit
    from efaprof.analyzers.batches import Estimate
    from efaprof.trace.postings import PostTotals

POSTED = "posted by the kernel"
# Of an operation's issue; `order` waits for other operations, `turn` for entries whose own time is counted.
_OF_EACH = ("slot", "space", "build")
_OF_A_DOORBELL = ("fence", "doorbell")


@dataclass(frozen=True, slots=True)
class PathSaving:
    """What a step is shorter by, µs; how it came to be known."""

    what: str
    us: Estimate
    runs: int
    is_measured: bool


@dataclass(frozen=True, slots=True)
class PathChange:
    """The kernel-posted path beside what the proxy path's own runs say of it."""

    kernel_us: float  # the proxy path's kernel, an operation
    posted_us: float  # entry and doorbell of the kernel-posted path, an operation
    predicted: PathSaving
    measured: PathSaving
    fence: PathSaving | None  # predicted: the same proxy path without its fences
    unfenced: PathSaving | None  # measured: a proxy path that was run without them

    @property
    def is_sign_right(self) -> bool:
        """Prediction and measurement agree on whether it is shorter at all."""
        return (self.predicted.us.value > 0) == (self.measured.us.value > 0)

    @property
    def is_inside(self) -> bool | None:
        """What was measured lies in the interval that was predicted; None without an interval."""
        lo, hi = self.predicted.us.lo, self.predicted.us.hi
        return None if lo is None or hi is None else lo <= self.measured.us.value <= hi


def posted_cost_us(totals: PostTotals) -> float:
    """What the kernel itself spends on an operation that it posts; a doorbell is shared by those it announces."""
    each = sum(totals.sum_ns[part] for part in _OF_EACH) / totals.operations
    entries = totals.operations / totals.doorbells
    shared = sum(totals.sum_ns[part] for part in _OF_A_DOORBELL) / totals.operations / entries
    return (each + shared) / 1e3


def posted_by_kernel(kernel_us: float, posted_us: float) -> Change:
    """Replay: no host stages, and the kernel's time on an operation `posted_us` instead of `kernel_us`."""
    scale = {LABEL[layer]: 0.0 for layer in HOST} | {LABEL[Layer.KERNEL]: posted_us / kernel_us}
    return Change(POSTED, Scenario(scale))


def of_change(splits: Sequence[DecodeSplit], name: str, what: str) -> PathSaving | None:
    """What a replayed change saves, over runs; None where one of them has not replayed it."""
    found = [split.changes.get(name) for split in splits]
    known = [one for one in found if one is not None]
    if len(known) < len(found) or not known:
        return None
    mean = _over_runs([(one, split.batching.batches) for one, split in zip(known, splits, strict=True)])
    return PathSaving(what, mean.interval(), len(splits), is_measured=False)


def of_runs(before: Sequence[DecodeSplit], after: Sequence[DecodeSplit], what: str) -> PathSaving:
    """What steps were shorter by: mean wall time of the runs before, less that of the runs after."""
    means = [_over_runs([(split.wall_us, split.batching.batches) for split in side]) for side in (before, after)]
    return PathSaving(what, difference(*means).interval(), min(len(before), len(after)), is_measured=True)


def _over_runs(values: Sequence[tuple[Estimate, int]]) -> Mean:
    """The unit is the run; of a single one its batches of steps are."""
    if len(values) == 1:
        estimate, batches = values[0]
        return from_interval(estimate.value, estimate.lo, estimate.hi, batches)
    numbers = [estimate.value for estimate, _ in values]
    mean = sum(numbers) / len(numbers)
    variance = sum((one - mean) ** 2 for one in numbers) / (len(numbers) - 1)
    return Mean(mean, math.sqrt(variance / len(numbers)), float(len(numbers) - 1))
