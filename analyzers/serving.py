"""Requests and cells of a serving benchmark: one schema, whatever tool exported them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from efaprof.trace.layers import Provenance

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from efaprof.analyzers.chunks import ChunkStats

LENGTH_TOLERANCE = 0.02  # prompts of "the same" length differ by a few tokens of template


class Format(StrEnum):
    """Who wrote the export, and in which of its shapes."""

    AIPERF_RECORDS = "aiperf-records"
    AIPERF_SUMMARY = "aiperf-summary"
    AIPERF_CSV = "aiperf-csv"
    VLLM = "vllm"
    SGLANG = "sglang"
    EFAPROF = "efaprof-run"


@dataclass(frozen=True, slots=True, order=True)
class CellKey:
    """Load point: requests in flight, prompt tokens, output tokens (means; None where the export does not say)."""

    concurrency: int
    isl: int | None = None
    osl: int | None = None

    def has_lengths_of(self, other: CellKey) -> bool:
        """Prompt and output lengths agree within LENGTH_TOLERANCE, or one side does not say."""
        return _agree(self.isl, other.isl) and _agree(self.osl, other.osl)

    def matches(self, other: CellKey) -> bool:
        """The same load point."""
        return self.concurrency == other.concurrency and self.has_lengths_of(other)

    def __str__(self) -> str:
        lengths = "/".join("?" if length is None else str(length) for length in (self.isl, self.osl))
        return f"conc {self.concurrency}, ISL/OSL {lengths}"


def _agree(first: int | None, second: int | None) -> bool:
    return first is None or second is None or abs(first - second) <= LENGTH_TOLERANCE * max(first, second)


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """What became of every record of an export; `read` is the sum of the others but `malformed`."""

    read: int = 0
    used: int = 0
    warmup: int = 0  # the tool itself marked them as warm-up
    failed: int = 0
    cancelled: int = 0
    partial: int = 0  # ended without error, but a figure that ITL needs is missing
    single_token: int = 0  # one output token: no inter-token latency exists
    malformed: int = 0  # lines that are no record

    def __add__(self, other: RequestCounts) -> RequestCounts:
        return RequestCounts(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """The used requests, one row each, in order of start."""

    itl_ms: NDArray[np.float64]  # (latency − TTFT)/(tokens − 1)
    ttft_ms: NDArray[np.float64]
    tokens: NDArray[np.int64]  # output tokens
    start_ns: NDArray[np.int64] | None  # None: the export has no times; rows are in order of submission
    end_ns: NDArray[np.int64] | None


@dataclass(frozen=True, slots=True)
class Summary:
    """What an export without per-request rows says. `std_itl_ms` is over requests, ddof = 0."""

    mean_itl_ms: float
    std_itl_ms: float | None
    requests: int
    per_user_tok_s: float | None = None  # mean over requests of 1000/ITL, where the tool prints it
    # Our own runs have an interval over batches of steps instead of a spread over requests.
    lo_itl_ms: float | None = None
    hi_itl_ms: float | None = None
    batches: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """One load point of one run of a benchmark."""

    key: CellKey
    source: str  # file or folder, as messages name it
    format: Format
    summary: Summary
    counts: RequestCounts = field(default_factory=RequestCounts)
    requests: Requests | None = None
    chunks: ChunkStats | None = None
    session_ns: int | None = None  # start of the run, Unix time; None when the export does not say
    model: str | None = None
    concurrency_provenance: Provenance = Provenance.MEASURED
    ops_per_step: float | None = None  # operations per rank and step, where a run measured them
    warnings: tuple[str, ...] = ()

    def warned(self, *messages: str) -> Cell:
        """The same cell with further warnings."""
        return replace(self, warnings=(*self.warnings, *messages))
