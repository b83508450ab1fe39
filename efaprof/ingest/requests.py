"""Collects requests row by row into columns: about 50 bytes a request, whatever a record weighs."""

from __future__ import annotations

from array import array

import numpy as np

from efaprof.analyzers.chunks import ChunkLog, ChunkStats
from efaprof.analyzers.serving import RequestCounts, Requests, Summary
from efaprof.ingest.fields import SMALLEST_MS

# An own ITL further than this from (latency − TTFT)/(tokens − 1) says that the fields mean something else.
ITL_TOLERANCE = 0.01


class RequestLog:
    """One cell's requests, in any order; `finish` sorts them by start."""

    def __init__(self) -> None:
        self._counted = dict.fromkeys(RequestCounts.__dataclass_fields__, 0)
        self.itl_mismatches = 0
        self._itl, self._ttft = array("d"), array("d")
        self._tokens, self._prompt = array("q"), array("q")
        self._start, self._end = array("q"), array("q")
        self._chunks = ChunkLog()

    def count(self, kind: str) -> None:
        """One more record that is not used: a field of RequestCounts."""
        self._counted[kind] += 1
        self._counted["read"] += 1

    @property
    def counts(self) -> RequestCounts:
        """What became of the records so far."""
        return RequestCounts(**self._counted)

    def add(
        self,
        *,
        ttft_ms: float | None,
        latency_ms: float | None,
        tokens: int | None,
        prompt: int | None,
        start_ns: int | None,
        gaps_ms: list[float] | None,
        own_itl_ms: float | None = None,
    ) -> None:
        """One request that ended without error; what its ITL needs and lacks makes it partial."""
        if ttft_ms is None or latency_ms is None or tokens is None or tokens < 1:
            return self.count("partial")
        if tokens == 1:
            return self.count("single_token")
        itl_ms = (latency_ms - ttft_ms) / (tokens - 1)
        if itl_ms <= SMALLEST_MS:
            return self.count("partial")
        if own_itl_ms is not None and abs(own_itl_ms - itl_ms) > ITL_TOLERANCE * itl_ms:
            self.itl_mismatches += 1
        row = len(self._itl)
        self._itl.append(itl_ms)
        self._ttft.append(ttft_ms)
        self._tokens.append(tokens)
        self._prompt.append(-1 if prompt is None else prompt)
        if start_ns is not None:
            self._start.append(start_ns)
            self._end.append(start_ns + round(latency_ms * 1e6))
        if gaps_ms:
            first_ns = None if start_ns is None else start_ns + round(ttft_ms * 1e6)
            self._chunks.add(
                request=row, first_token_ns=first_ns, gaps_ms=np.array(gaps_ms), tokens=tokens, itl_ms=itl_ms
            )
        self.count("used")
        return None

    def requests(self) -> Requests:
        """The used requests in order of start (of arrival here, when any of them has no start)."""
        itl, ttft = np.array(self._itl), np.array(self._ttft)
        tokens = np.array(self._tokens, np.int64)
        if len(self._start) != len(self._itl):
            return Requests(itl, ttft, tokens, None, None)
        start, end = np.array(self._start, np.int64), np.array(self._end, np.int64)
        order = np.argsort(start, kind="stable")
        return Requests(itl[order], ttft[order], tokens[order], start[order], end[order])

    def chunks(self) -> ChunkStats | None:
        """What the gaps between chunks show."""
        return self._chunks.finish()

    def summary(self) -> Summary:
        """Mean and spread of the used requests; call it only when there are some."""
        itl = np.array(self._itl)
        return Summary(float(itl.mean()), float(itl.std()), len(itl), float((1000.0 / itl).mean()))

    def mean_prompt(self) -> int | None:
        """Mean prompt tokens, rounded; None where no record says."""
        known = [length for length in self._prompt if length >= 0]
        return round(sum(known) / len(known)) if known else None

    def mean_tokens(self) -> int:
        """Mean output tokens, rounded."""
        return round(sum(self._tokens) / len(self._tokens))

    def first_start_ns(self) -> int | None:
        """Start of the earliest used request."""
        return min(self._start) if self._start else None

    def most_in_flight(self) -> int | None:
        """The most requests that ran at once: the concurrency of a closed loop."""
        if not self._start or len(self._start) != len(self._itl):
            return None
        times = np.concatenate((np.array(self._start, np.int64), np.array(self._end, np.int64)))
        step = np.concatenate((np.ones(len(self._start), np.int64), -np.ones(len(self._end), np.int64)))
        order = np.lexsort((step, times))  # an end at the same instant frees its slot before the start takes it
        return int(np.cumsum(step[order]).max())

    def warnings(self, source: str) -> list[str]:
        """What a reader of the report must know about these records."""
        if not self.itl_mismatches:
            return []
        text = (
            f"{source}: in {self.itl_mismatches} requests the export's own ITL differs by more than "
            f"{ITL_TOLERANCE:.0%} from (latency − TTFT)/(tokens − 1), which is used"
        )
        return [text]
