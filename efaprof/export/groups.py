"""The frame of the picture: processes, their threads, and per process an "efaprof" group in the order of the path.

rank 0 · fi_pingpong                      process
  fi_pingpong                             threads, with the program's own spans; NVTX domains below
  efaprof                                 group, its lines in this order
    outstanding operations, …             counters
    libfabric                             calls: one line a posting thread
    libfabric (tcp under rxm)             calls of a provider on the one below it
    completion queue reads                those that returned entries
    nic                                   doorbell → done, in lanes
    rx: arrivals, posted receives         what came in, what waits for it
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from efaprof.export.board import Board, LaneTrack
from efaprof.export.timeline import ProcessFacts, ThreadFacts
from efaprof.trace.layers import Layer

if TYPE_CHECKING:
    from collections.abc import Hashable

    import polars as pl

    from efaprof.export.batch import CallKey

# Kinds of lines within a process, from top to bottom. Levels stand first: below the lanes of the NIC they would be a
# screen away from what they explain.
_KINDS = (
    "level", "steps", Layer.COMPUTE, Layer.KERNEL, Layer.RING, Layer.PROXY, "fence", "told", Layer.LIBFABRIC,
    "completion queue", Layer.NIC, Layer.RX, "waits", "sampled",
)  # fmt: skip
_PLACE: dict[str, int] = {name: 100_000 * place for place, name in enumerate(_KINDS)}  # lines of one kind in between
HOST_STRIDE = 10_000_000  # above every pid that Linux gives


@dataclass(slots=True)
class Groups:
    """Opens the tracks of processes and threads when something is drawn on them."""

    board: Board
    processes: pl.DataFrame
    threads: pl.DataFrame
    keys: list[CallKey] = field(default_factory=list)
    dispatching: frozenset[int] = frozenset()  # processes with a dispatch path of ours, which has lines of those names
    _pids: dict[int, Hashable] = field(default_factory=dict)
    _tids: dict[int, Hashable] = field(default_factory=dict)
    _process_tracks: dict[int, int] = field(default_factory=dict)
    _thread_tracks: dict[int, int] = field(default_factory=dict)
    _group_tracks: dict[int, int] = field(default_factory=dict)
    _host_tracks: dict[str, int] = field(default_factory=dict)
    _counters: Counter[int] = field(default_factory=Counter)
    _processes: dict[int, dict[str, Any]] = field(init=False)
    _threads: dict[int, dict[str, Any]] = field(init=False)
    _hosts: list[str] = field(init=False)
    _uppers: dict[tuple[int, int], set[str]] = field(init=False)
    _posters: dict[tuple[int, int, str], int] = field(init=False)

    def __post_init__(self) -> None:
        self._processes = {row["process"]: row for row in self.processes.to_dicts()}
        self._threads = {row["thread"]: row for row in self.threads.to_dicts()}
        self._hosts = sorted({row["host"] or "" for row in self._processes.values()})
        self._uppers = defaultdict(set)
        self._posters = Counter()
        for key in self.keys:
            self._uppers[key.process, key.nest].add(key.provider)
            self._posters[key.process, key.nest, key.provider] += 1

    def process(self, process: int) -> int:
        """Track of a process."""
        track = self._process_tracks.get(process)
        if track is None:
            row = self._processes.get(process, {})
            facts = ProcessFacts(self._pid(process), (row["host"],) if row.get("host") else ())
            track = self._process_tracks[process] = self.board.track(self.process_name(process), process=facts)
        return track

    def process_name(self, process: int) -> str:
        """What the process is called; viewers put the pid behind it."""
        row = self._processes.get(process, {})
        rank, comm, pid = row.get("rank"), row.get("comm") or "process", row.get("pid")
        parts = (
            "" if rank is None else f"rank {rank}",
            comm,
            f"pid {pid}" if pid and pid != self._pid(process) else "",
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
            tid = (
                self._pid(process) if is_main else self._unique(row.get("tid"), process, self._tids, ("thread", thread))
            )
            track = self._thread_tracks[thread] = self.board.track(
                row.get("comm") or "thread", parent=parent, thread=ThreadFacts(self._pid(process), tid)
            )
        return track

    def domain_line(self, thread: int, domain: str) -> int:
        """Track for what a thread did in an NVTX domain."""
        return self.board.track(f"NVTX {domain}", parent=self.thread(thread))

    def thread_name(self, thread: int) -> str:
        """Name and real tid, for lines that belong to a thread and for messages."""
        row = self._threads.get(thread, {})
        return f"{row.get('comm') or 'thread'} {row.get('tid', thread)}"

    def _pid(self, process: int) -> int:
        return self._unique(self._processes.get(process, {}).get("pid"), process, self._pids, process)

    def _unique(self, number: int | None, process: int, taken: dict[int, Hashable], owner: Hashable) -> int:
        """The real pid or tid where it is the only one in the file, else raised by whole HOST_STRIDEs.

        Those of several hosts collide, in containers as a rule, and a viewer would merge the two.
        """
        host = self._processes.get(process, {}).get("host") or ""
        unique = (number or 0) + HOST_STRIDE * (self._hosts.index(host) if host in self._hosts else 0)
        while unique == 0 or taken.setdefault(unique, owner) != owner:
            unique += HOST_STRIDE
        return unique

    def group(self, process: int) -> int:
        """The process's "efaprof" track, which orders what is below it."""
        track = self._group_tracks.get(process)
        if track is None:
            parent = self.process(process)
            track = self._group_tracks[process] = self.board.track("efaprof", parent=parent, orders_children=True)
        return track

    def call_line(self, key: CallKey) -> LaneTrack:
        """Line for the calls of one thread at one level."""
        name = f"{Layer.LIBFABRIC}{self._calls(key)}{self._level(key)}"
        if self._posters[key.process, key.nest, key.provider] > 1:
            name += f" · {self.thread_name(key.thread)}"
        place = 1 + self.keys.index(key)
        return self._line(key.process, Layer.LIBFABRIC, place, name, "from the first attempt of a call to its return")

    def flight_line(self, key: CallKey, layer: Layer) -> LaneTrack:
        """Lanes for operations between doorbell and completion, or for posted receives."""
        level = self._level(key)
        if layer is Layer.RX:
            name, description = f"rx: posted receives{level}", "from the post to the completion that was read"
        else:
            name, description = f"{layer}{self._calls(key)}{level}", "from the doorbell to the completion that was read"
        return self._line(key.process, layer, 2 + key.flight, name, description)

    def counter_of_level(self, key: CallKey, name: str, unit: str, description: str) -> int:
        """Counter track of one level of a process."""
        return self.counter(key.process, f"{name}{self._level(key)}", unit, description=description)

    def stage_line(self, process: int, layer: str, description: str, *, proxy: int = 0) -> LaneTrack:
        """Line for one layer of a dispatch path of ours; each of a rank's further proxies has lines of its own."""
        return self._line(process, layer, proxy, f"{layer} {proxy}" if proxy else layer, description)

    def arrival_line(self, process: int) -> LaneTrack:
        """Line for completions that met no post."""
        return self._line(
            process, Layer.RX, 1, "rx: arrivals", "completions at a target that belong to no post of its own"
        )

    def read_line(self, process: int, thread: int) -> LaneTrack:
        """Line for the completion-queue reads of one thread that returned something."""
        name = f"completion queue reads · {self.thread_name(thread)}"
        return self._line(process, "completion queue", thread, name, "reads that returned entries")

    def counter(self, process: int, name: str, unit: str, *, description: str = "", is_sampled: bool = False) -> int:
        """Counter track in the process's group, below those of its kind that were opened before.

        What was sampled stands last: there may be dozens.
        """
        self._counters[process] += 1
        order = _PLACE["sampled" if is_sampled else "level"] + self._counters[process]
        return self.board.track(name, parent=self.group(process), order=order, unit=unit, description=description)

    def stream_line(self, process: int, device: int, stream: int) -> LaneTrack:
        """Line for what one stream of a GPU did, beside the threads of its process."""
        name = f"GPU {device} · stream {stream}"
        where = f"{name} of {self.process_name(process)}"
        return LaneTrack(self.board, name, self.process(process), 0, where, "kernels, graphs and copies, by CUPTI")

    def stack_line(self, process: int, name: str, description: str) -> int:
        """Track for the sampled stacks of one thread, beside the threads of its process."""
        return self.board.track(name, parent=self.process(process), description=description)

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

    def _calls(self, key: CallKey) -> str:
        """What sets recorded calls apart from the stages of a dispatch path."""
        return " calls" if key.process in self.dispatching else ""

    def _level(self, key: CallKey) -> str:
        if key.nest == 0:
            return ""
        uppers = self._uppers.get((key.process, key.nest - 1), set())
        if len(uppers) != 1:
            return f" ({key.provider or 'provider'}, level {key.nest})"
        upper = next(iter(uppers)).rpartition(";")[2].removeprefix("ofi_")
        return f" ({key.provider or 'provider'} under {upper or 'another'})"
