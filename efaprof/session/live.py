"""`record --live`: what a recording has seen so far, drawn on the terminal about once a second.

All of it comes from records that are on disk already, so it is a second or two behind, and none of it is an analysis:
operations are not joined, steps are not split. Times of stages are summed over operations that overlap.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.text import Text

from efaprof.session.bottom_lines import BottomLines
from efaprof.session.following import LAYERS, Follower
from efaprof.session.size import format_size
from efaprof.trace.layout import SLOT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from efaprof.native import DrainStats
    from efaprof.session.sample import Emit

_INTERVAL_S = 1.0
_BAR = 16
LINES = 6
_SENT = {"tx_bytes": 1, "port_xmit_data": 4}
_RATE = "rate_bytes_s"
_MOST_NICS = 4
_BUSY, _IDLE = 0.7, 0.3  # of a NIC's line rate: the bounds of the rules (docs/verdict.md)
_MOST_TIME = 0.5  # of operations
_HOST = ("ring", "proxy", "libfabric")
_LEAST_OPERATIONS = 1000
DECIDES = "efaprof attribute decides"


@dataclass(slots=True)
class NicUse:
    """Latest values of a NIC's counters as they are emitted."""

    sent: tuple[float, int] | None = None  # when, bytes
    bytes_s: float = 0.0
    line_rate: int | None = None

    def saw(self, now: float, sent_bytes: int) -> None:
        """Take a sample of the bytes sent."""
        if self.sent is None:
            self.sent = (now, sent_bytes)
        elif now - self.sent[0] >= _INTERVAL_S / 2:
            grown = max(sent_bytes - self.sent[1], 0)  # a reset: this interval says nothing
            self.bytes_s, self.sent = grown / (now - self.sent[0]), (now, sent_bytes)


@dataclass(slots=True)
class LiveView:
    """A sampler that draws; `watch` goes between the other samplers and the ring."""

    run: Path
    stats: Callable[[], DrainStats | None]
    area: BottomLines = field(default_factory=lambda: BottomLines(LINES))
    interval_s: float = _INTERVAL_S
    nics: dict[str, NicUse] = field(default_factory=dict)
    _follower: Follower = field(init=False)
    _is_closed: bool = False
    _start: float = field(default_factory=time.monotonic)
    _last: tuple[float, float, float] | None = None  # when, operations and steps by then

    def __post_init__(self) -> None:
        self._follower = Follower(self.run)

    @property
    def complaint(self) -> str:
        """Nothing: what is drawn here is not kept."""
        return ""

    def watch(self, emit: Emit) -> Emit:
        """An `emit` that looks at NIC counters on their way."""

        def watching(name: str, value: int, *, monotone: bool = True) -> None:
            emit(name, value, monotone=monotone)
            if name.startswith("nic."):
                device, _, counter = name.removeprefix("nic.").rpartition(".")
                if counter in _SENT:
                    self.nics.setdefault(device, NicUse()).saw(time.monotonic(), value * _SENT[counter])
                elif counter == _RATE:
                    self.nics.setdefault(device, NicUse()).line_rate = value

        return watching

    def sample(self, emit: Emit) -> None:
        """Read on and draw; a terminal that went away ends the drawing, never the recording."""
        if self._is_closed:
            return
        self._follower.turn()
        try:
            self.area.show(self.lines(time.monotonic()))
        except OSError:
            self._is_closed = True

    def close(self) -> None:
        """Give the terminal back."""
        self._is_closed = True
        try:
            self.area.close()
        except OSError:
            return

    def lines(self, now: float) -> list[Text]:
        """What was seen so far, LINES of them."""
        seen = self._follower.seen
        before = self._last or (self._start, 0.0, 0.0)
        length_s = max(now - before[0], 1e-9)
        rate, step_rate = (seen.operations - before[1]) / length_s, (seen.steps - before[2]) / length_s
        self._last = (now, seen.operations, seen.steps)
        stats = self.stats()
        dropped = stats.dropped if stats else 0
        size = format_size(SLOT_BYTES * stats.slots) if stats else "0 B"
        what = "operations" if seen.issued else "libfabric calls"
        return [
            Text(f"efaprof · {self.run.name} · {now - self._start:.0f} s · {size} of records", style="reverse"),
            Text(f"{what} {seen.operations:,.0f}, now {rate:,.0f}/s · steps {seen.steps:,.0f}, now {step_rate:,.1f}/s"),
            self._shares(),
            self._nic_line(),
            Text(f"dropped {dropped:,}", style="bold red" if dropped else ""),
            Text(self.verdict()),
        ]

    def _shares(self) -> Text:
        ticks = self._follower.seen.ticks
        total = sum(ticks.values())
        if not total:
            return Text("layers: none on record so far (they need a dispatch path that writes its stages)")
        line = Text("time of operations, summed (they overlap): ")
        for layer in LAYERS:
            if share := ticks[layer] / total:
                line.append(f" {layer} {share:.1%} ").append("█" * round(share * _BAR), style="cyan")
        return line

    def _nic_line(self) -> Text:
        shown = [(name, nic) for name, nic in sorted(self.nics.items()) if name != "lo"] or list(self.nics.items())
        parts = []
        for name, nic in shown[:_MOST_NICS]:
            use = self._share(nic)
            of = "line rate unknown" if use is None else f"{use:.1%} of {(nic.line_rate or 0) * 8 / 1e9:g} Gb/s"
            parts.append(f"{name} sends {nic.bytes_s / 1e6:,.1f} MB/s ({of})")
        return Text(" · ".join(parts) or "no NIC counters")

    @staticmethod
    def _share(nic: NicUse) -> float | None:
        return nic.bytes_s / nic.line_rate if nic.line_rate else None

    def verdict(self) -> str:
        """Where these sums point, in the words of the verdict, or why nowhere."""
        seen = self._follower.seen
        path = {layer: seen.ticks[layer] for layer in ("kernel", *_HOST, "nic")}
        total = sum(path.values())
        if not total or seen.issued < _LEAST_OPERATIONS:
            return f"so far: no verdict, too little of a dispatch path on record; {DECIDES}"
        top = max(path, key=lambda layer: path[layer])
        use = max((share for nic in self.nics.values() if (share := self._share(nic)) is not None), default=None)
        if use is not None and use >= _BUSY:
            return f"so far: points to wire-bound/bandwidth (a NIC sends at {use:.0%} of its line rate); {DECIDES}"
        issue = (total - path["nic"]) / total
        if issue >= _MOST_TIME and (use is None or use < _IDLE):
            wire = "" if use is None else f", the NIC at {use:.0%}"
            # Where is not said: time in the ring is mostly waiting for what comes after it.
            return f"so far: points to issue-bound ({issue:.0%} before the doorbell, most in {top}{wire}); {DECIDES}"
        return f"so far: points nowhere yet (most time in {top}); {DECIDES}"
