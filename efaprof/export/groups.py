"""The frame of the picture: processes, their threads, and per process an "efaprof" group in the order of the path.

rank 0 · fi_pingpong · pid 4242           process
  fi_pingpong 4242                        threads, with the program's own spans
  efaprof                                 group, its lines in this order
    libfabric                             calls: one line a posting thread
    libfabric (tcp under rxm)             calls of a provider on the one below it
    nic                                   doorbell → done, in lanes
    rx: posted receives                   posted → arrived, in lanes
    …
    outstanding operations                counters
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from efaprof.export.board import Board, LaneTrack
from efaprof.export.timeline import ProcessFacts, ThreadFacts
from efaprof.trace.layers import Layer

if TYPE_CHECKING:
    import polars as pl

    from efaprof.export.batch import CallKey

# Place of each kind of line within its process; lines of one kind follow each other.
_STEP = 100_000
_PLACE: dict[str, int] = {
    name: _STEP * place
    for place, name in enumerate(
        (Layer.KERNEL, Layer.RING, Layer.PROXY, Layer.LIBFABRIC, Layer.NIC, Layer.RX, "completion queue", "counter")
    )
}
_FIRST_OTHER_TID = 1_000_000  # tids of threads that are not the main one; above all pids of the file


@dataclass(slots=True)
class Groups:
    """Opens the tracks of processes and threads when something is drawn on them."""

    board: Board
    processes: pl.DataFrame
    threads: pl.DataFrame
    keys: list[CallKey] = field(default_factory=list)
    _process_tracks: dict[int, int] = field(default_factory=dict)
    _thread_tracks: dict[int, int] = field(default_factory=dict)
    _group_tracks: dict[int, int] = field(default_factory=dict)
    _host_tracks: dict[str, int] = field(default_factory=dict)
    _counters: Counter[int] = field(default_factory=Counter)
    _processes: dict[int, dict[str, Any]] = field(init=False)
    _threads: dict[int, dict[str, Any]] = field(init=False)
    _uppers: dict[tuple[int, int], set[str]] = field(init=False)
    _posters: dict[tuple[int, int, str], int] = field(init=False)

    def __post_init__(self) -> None:
        self._processes = {row["process"]: row for row in self.processes.to_dicts()}
        self._threads = {row["thread"]: row for row in self.threads.to_dicts()}
        self._uppers = defaultdict(set)
        self._posters = Counter()
        for key in self.keys:
            self._uppers[key.process, key.nest].add(key.provider)
            self._posters[key.process, key.nest, key.provider] += 1

    def process(self, process: int) -> int:
        """Track of a process. Its pid in the file is its number + 1: real ones of several hosts may collide."""
        track = self._process_tracks.get(process)
        if track is None:
            row = self._processes.get(process, {})
            host, pid = row.get("host") or "", row.get("pid") or 0
            labels = tuple(text for text in (f"pid {pid}" if pid else "", host) if text)
            track = self._process_tracks[process] = self.board.track(
                self.process_name(process), process=ProcessFacts(process + 1, labels)
            )
        return track

    def process_name(self, process: int) -> str:
        """What the process is called in tracks and messages."""
        row = self._processes.get(process, {})
        hosts = {other.get("host") for other in self._processes.values()}
        rank, host, pid = row.get("rank"), row.get("host"), row.get("pid")
        parts = (
            "" if rank is None else f"rank {rank}",
            row.get("comm") or "process",
            f"pid {pid}" if pid else "",
            host if host and len(hosts) > 1 else "",
        )
        return " · ".join(part for part in parts if part)

    def thread(self, thread: int) -> int:
        """Track of a thread."""
        track = self._thread_tracks.get(thread)
        if track is None:
            row = self._threads.get(thread, {})
            process = int(row.get("process") or 0)
            parent = self.process(process)
            is_main = row.get("tid") is not None and row.get("tid") == self._processes.get(process, {}).get("pid")
            tid = process + 1 if is_main else _FIRST_OTHER_TID + thread
            track = self._thread_tracks[thread] = self.board.track(
                self.thread_name(thread), parent=parent, thread=ThreadFacts(process + 1, tid)
            )
        return track

    def thread_name(self, thread: int) -> str:
        """Name and real tid."""
        row = self._threads.get(thread, {})
        return f"{row.get('comm') or 'thread'} {row.get('tid', thread)}"

    def group(self, process: int) -> int:
        """The process's "efaprof" track, which orders what is below it."""
        track = self._group_tracks.get(process)
        if track is None:
            parent = self.process(process)
            track = self._group_tracks[process] = self.board.track("efaprof", parent=parent, orders_children=True)
        return track

    def call_line(self, key: CallKey) -> LaneTrack:
        """Line for the calls of one thread at one level."""
        name = f"{Layer.LIBFABRIC}{self._level(key)}"
        if self._posters[key.process, key.nest, key.provider] > 1:
            name += f" · {self.thread_name(key.thread)}"
        place = self.keys.index(key)
        return self._line(key.process, Layer.LIBFABRIC, place, name, "from the first attempt of a call to its return")

    def flight_line(self, key: CallKey, layer: Layer) -> LaneTrack:
        """Lanes for operations between doorbell and completion, or for posted receives."""
        level = self._level(key)
        if layer is Layer.RX:
            name, description = f"rx: posted receives{level}", "from the post to the completion that was read"
        else:
            name, description = f"{layer}{level}", "from the doorbell to the completion that was read"
        return self._line(key.process, layer, 1 + key.flight, name, description)

    def arrival_line(self, process: int) -> LaneTrack:
        """Line for completions that met no post."""
        return self._line(
            process, Layer.RX, 0, "rx: arrivals", "completions at a target that belong to no post of its own"
        )

    def read_line(self, process: int, thread: int) -> LaneTrack:
        """Line for the completion-queue reads of one thread that returned something."""
        name = f"completion queue reads · {self.thread_name(thread)}"
        return self._line(process, "completion queue", thread, name, "reads that returned entries")

    def counter(self, process: int, name: str, unit: str, description: str = "") -> int:
        """Counter track in the process's group, below those that were opened before."""
        self._counters[process] += 1
        order = _PLACE["counter"] + self._counters[process]
        return self.board.track(name, parent=self.group(process), order=order, unit=unit, description=description)

    def host_counter(self, process: int, name: str, unit: str) -> int:
        """Counter track of the host that a process ran on, beside the processes."""
        host = self._processes.get(process, {}).get("host") or "this host"
        parent = self._host_tracks.get(host)
        if parent is None:
            parent = self._host_tracks[host] = self.board.track(f"NIC counters of {host}")
        return self.board.track(name, parent=parent, unit=unit)

    def _line(self, process: int, kind: str, place: int, name: str, description: str) -> LaneTrack:
        where = f"{name} of {self.process_name(process)}"
        return LaneTrack(self.board, name, self.group(process), _PLACE[kind] + place, where, description)

    def _level(self, key: CallKey) -> str:
        if key.nest == 0:
            return ""
        uppers = self._uppers.get((key.process, key.nest - 1), set())
        if len(uppers) != 1:
            return f" ({key.provider or 'provider'}, level {key.nest})"
        upper = next(iter(uppers)).rpartition(";")[2].removeprefix("ofi_")
        return f" ({key.provider or 'provider'} under {upper or 'another'})"
