"""The native trace core as typed Python: writing a few records, draining rings, indexing raw slots.

Every call releases the GIL while it runs in native code.
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from cffi import FFI

from efaprof import env
from efaprof.errors import EfaprofError
from efaprof.libraries import ABI_VERSION
from efaprof.libraries import lib_path as lib_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    import numpy as np
    import numpy.typing as npt

FORMAT_VERSION = 1
_SLOT_BYTES = 32
_PAUSE_WARM_UP, _PAUSE_OVER = 2, 3  # enum efaprof_pause_state

_CDEF = """
uint32_t efaprof_abi(void);
uint64_t efaprof_now(void);
uint32_t efaprof_clock_id(void);
void efaprof_set_producer(const char *producer);
uint64_t efaprof_name(const char *text, uint64_t bytes);
int efaprof_recording(void);
void efaprof_pause(int paused);
uint32_t efaprof_paused(void);
uint32_t efaprof_steps_begun(void);
void efaprof_stop(int stopped);
void efaprof_restart(void);
void efaprof_sample_clock(void);
double efaprof_event_cost_ns(void);
void efaprof_counter(const char *name, uint64_t bytes, int64_t value, uint32_t what);
struct efaprof_drain_stats {
    uint64_t rings, live_rings, slots, dropped, discarded, write_errors, bad_rings, fullest;
    int32_t last_errno, reserved;
};
struct efaprof_drain *efaprof_drain_open(const char *ring_dir, const char *spill_dir, const char *raw_dir,
                                         uint64_t max_bytes);
int efaprof_drain_poll(struct efaprof_drain *drain, int all, struct efaprof_drain_stats *stats);
int efaprof_drain_close(struct efaprof_drain *drain, struct efaprof_drain_stats *stats);
struct efaprof_index_result { uint64_t records, next, bad_slots, pads; };
void efaprof_index(const void *slots, uint64_t n, uint32_t *starts, uint64_t max, struct efaprof_index_result *result);
struct efaprof_heads_result { int64_t least_step, first, last, begin, before_end, end; uint64_t shapes[256]; };
void efaprof_heads(const void *slots, uint64_t n, int64_t *places, uint16_t *kinds, int64_t *t_end,
                   struct efaprof_index_result *index, struct efaprof_heads_result *result);
struct efaprof_graph {
    uint64_t nodes, operations, stages, gates, gate_base;
    const int64_t *time;
    int32_t *before, *also;
    const int32_t *gate_first;
    int32_t *gate_also;
    const uint8_t *label;
    const int16_t *lane;
    const int64_t *compute_first, *compute_begin, *compute_end, *compute_before;
    const uint8_t *starts_ring;
    const int64_t *service_ns;
    int32_t *sent_before;
    int32_t seen_stage, return_stage, done_stage;
    uint8_t compute_label, late_label, idle_label, missing_label;
};
struct efaprof_scenario { double scale[16]; int32_t free_stage, servers; };
struct efaprof_order { uint32_t *order, *place; uint8_t *is_far; };
uint64_t efaprof_graph_order(struct efaprof_graph *graph, const struct efaprof_order *result);
void efaprof_graph_walk(const struct efaprof_graph *graph, const void *windows, uint64_t n, void *results,
                        uint8_t *visited);
int efaprof_graph_replays(const struct efaprof_graph *graph, const struct efaprof_order *order, const uint8_t *frozen,
                          const struct efaprof_scenario *scenarios, uint64_t n, const int64_t *asked, uint64_t asked_n,
                          int64_t *times);
void efaprof_keep_memory(void);
void efaprof_give_back_memory(void);
struct efaprof_clock_map { const int64_t *ticks, *base_ns; const double *slope; uint64_t n; };
struct efaprof_wide {
    uint64_t chunks, done;
    const int32_t *ring_row;
    const int64_t *cuts;
    const uint64_t *first_row;
    void *const *columns;
    uint64_t *completed;
};
struct efaprof_arrivals { int64_t *source, *channel, *seq, *seen_ns, *end_ns, *x; uint64_t n; };
struct efaprof_beside { uint32_t *waits, *computes; uint64_t waits_n, computes_n; };
uint64_t efaprof_wide_take(const struct efaprof_wide *wide, const struct efaprof_clock_map *clock, const void *slots,
                           const int64_t *starts, uint64_t low, uint64_t high, struct efaprof_arrivals *arrivals,
                           struct efaprof_beside *beside, uint64_t *chunk);
struct efaprof_described { int32_t *kind, *peer, *channel; int64_t *bytes, *flow; uint8_t *is_fenced, *is_posted; };
void efaprof_wide_describe(const uint64_t *head, const uint64_t *tail, const int64_t *rank, uint64_t n, int32_t kinds,
                           const struct efaprof_described *result);
uint64_t efaprof_union(const int64_t *begin, const int64_t *end, uint64_t n, int64_t *union_begin, int64_t *union_end,
                       int64_t *covered_before);
void efaprof_covered(const int64_t *begin, const int64_t *end, const int64_t *covered_before, uint64_t n,
                     const int64_t *from, const int64_t *until, uint64_t asked, int64_t *covered);
void efaprof_count_until(const int64_t *sorted, uint64_t n, const int64_t *times, uint64_t asked, int64_t *counts);
struct efaprof_spread { int64_t *n, *sum, *max; };
void efaprof_spread_add(const struct efaprof_spread *spread, const int64_t *begin, const int64_t *end, uint64_t n);
struct efaprof_flows *efaprof_flows_open(void);
void efaprof_flows_close(struct efaprof_flows *flows);
int efaprof_flows_number(struct efaprof_flows *flows, const int64_t *key, uint64_t n, int64_t *number);
void efaprof_flows_arrive(const struct efaprof_flows *flows, const int64_t *key,
                          const struct efaprof_arrivals *arrivals, int64_t *arrival_ns, int64_t *signal_ns,
                          int8_t *is_held, uint8_t *is_later);
"""


@dataclass(frozen=True, slots=True)
class DrainStats:
    """What a drain has done so far; every field but `fullest`, `live_rings` and `bad_rings` only grows."""

    rings: int  # rings ever seen
    live_rings: int  # rings whose process still runs
    slots: int  # 32-byte slots written to raw files
    dropped: int  # records that producers could not write: full ring, nested, failed
    discarded: int  # slots given up to stay under max_bytes, oldest first
    write_errors: int  # failed writes; their slots stay in the ring and are tried again
    bad_rings: int  # files in the ring directories that cannot be trusted
    fullest: int  # per mille: fill of the fullest ring at the last poll, before copying
    last_errno: int  # of the last write error, 0 = none


@dataclass(frozen=True, slots=True)
class IndexResult:
    """Where the records of a stretch of slots start."""

    starts: npt.NDArray[np.uint32]  # slot index of each record, pads left out
    next: int  # slot where to go on: the first that belongs to no whole record
    bad_slots: int  # 0, or the slots from the first one that starts no record to the end
    pads: int  # slots in PAD records


def _one_at_a_time(make: Callable[[], Any]) -> Callable[[], Any]:
    """The same function, never run by two threads at once: a cache alone may make two, and cffi cannot mix them."""
    lock = threading.Lock()

    def alone() -> Any:
        with lock:
            return make()

    return alone


# Made here and not at first use: threads that use it first at the same time must not get two.
_FFI = FFI()
_FFI.cdef(_CDEF)


def _ffi() -> FFI:
    return _FFI


def ffi() -> FFI:
    """Types and casts of the native interface, for the module that hands whole graphs over."""
    return _FFI


def library() -> Any:
    """The native library as a cffi handle."""
    return _lib()


def load(path: Path) -> Any:
    """The library at `path` as a cffi handle; EfaprofError when it is none, or of another version."""
    try:
        lib = _ffi().dlopen(str(path))
    except OSError as error:
        raise EfaprofError(
            f"{path} cannot be loaded: {error}", hint="build it again on this machine: pip install --force-reinstall ."
        ) from error
    try:
        found = int(lib.efaprof_abi())
    except AttributeError:
        found = 0
    if found != ABI_VERSION << 16 | FORMAT_VERSION:
        raise EfaprofError(
            f"{path} has interface {found >> 16} and trace format {found & 0xFFFF};"
            f" this efaprof needs {ABI_VERSION} and {FORMAT_VERSION}",
            hint=f"build it again from this version's source, or unset {env.LIB_DIR}",
        )
    return lib


@_one_at_a_time
@cache
def _lib() -> Any:
    return load(lib_path())


def now_ticks() -> int:
    """Now, in ticks of the clock that records carry."""
    return int(_lib().efaprof_now())


def clock_id() -> int:
    """Which clock the ticks are of: 1 TSC, 2 CLOCK_MONOTONIC nanoseconds (`efaprof.trace.layout.Clock`)."""
    return int(_lib().efaprof_clock_id())


def sample_clock() -> None:
    """Record one (ticks, MONOTONIC, REALTIME) sample in this thread's ring."""
    _lib().efaprof_sample_clock()


def event_cost_ns() -> float:
    """What recording one call costs on this machine, measured now in about a millisecond; by one thread at a time."""
    return float(_lib().efaprof_event_cost_ns())


def counter(name: str, value: int, *, monotone: bool = True) -> None:
    """Record one value of a monotone count (or, `monotone=False`, of a gauge) in this thread's ring."""
    text = name.encode()
    _lib().efaprof_counter(text, len(text), value, 1 if monotone else 2)


def name_id(text: bytes) -> int:
    """Id of a name as records carry it; records the name in this thread's ring."""
    return int(_lib().efaprof_name(text, len(text)))


def set_producer(producer: str) -> None:
    """Name what writes this process's records, at most 15 bytes, before the first of them."""
    _lib().efaprof_set_producer(producer.encode())


def is_recording() -> bool:
    """Whether this process's records are wanted: EFAPROF_RING_DIR is set and nobody paused the run."""
    return bool(_lib().efaprof_recording())


def pause(*, paused: bool = True) -> None:
    """Stop (or, `paused=False`, resume) recording in every process of this process's run."""
    _lib().efaprof_pause(int(paused))


def pause_for_steps() -> None:
    """Stop recording in every process of the run until the steps of its warm-up are over."""
    _lib().efaprof_pause(_PAUSE_WARM_UP)


def are_steps_over() -> bool:
    """Whether the run's processes stopped recording because the steps that were asked for have ended."""
    return int(_lib().efaprof_paused()) == _PAUSE_OVER


def steps_begun() -> int:
    """Steps that one process of the run has begun, the most of any."""
    return int(_lib().efaprof_steps_begun())


def restart() -> None:
    """Read the environment again at this process's next record; its rings so far are closed for the drain.

    Call it after setting EFAPROF_RING_DIR for another run, or after unsetting it at the end of one.
    """
    _lib().efaprof_restart()


@dataclass(frozen=True, slots=True)
class Glance:
    """What the heads of some records say of all of them."""

    records: int
    next: int  # slot where to go on: the first that belongs to no whole record
    bad_slots: int  # 0, or the slots from the first one that starts no record to the end
    least_step: int  # smallest difference between consecutive times; the largest number with fewer than two
    first: int  # smallest time, and …
    last: int  # … largest
    begin: int  # time of the first record, …
    before_end: int  # … of the last but one, and …
    end: int  # … of the last
    shapes: npt.NDArray[np.int64]  # records of each of the 256


@dataclass(frozen=True, slots=True)
class Heads:
    """What the heads of records say."""

    glance: Glance
    starts: npt.NDArray[np.int64]  # slot of each
    kinds: npt.NDArray[np.uint16]
    t_end: npt.NDArray[np.int64]


def index_records(slots: npt.NDArray[Any]) -> IndexResult:
    """Starts of the records in contiguous raw slots that begin at a record boundary (below 2³² slots at a time)."""
    import numpy as np

    count = _whole_slots(slots)
    starts = np.empty(count, np.uint32)
    result = _ffi().new("struct efaprof_index_result *")
    _lib().efaprof_index(
        _ffi().cast("void *", slots.ctypes.data), count, _ffi().cast("uint32_t *", starts.ctypes.data), count, result
    )
    return IndexResult(starts[: result.records], int(result.next), int(result.bad_slots), int(result.pads))


def record_heads(slots: npt.NDArray[Any]) -> Heads:
    """Heads of the records in contiguous raw slots that begin at a record boundary."""
    import numpy as np

    count = _whole_slots(slots)
    places, t_end, kinds = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.uint16)
    glance = _heads(
        slots, count, _ffi().cast("int64_t *", places.ctypes.data), _ffi().cast("uint16_t *", kinds.ctypes.data),
        _ffi().cast("int64_t *", t_end.ctypes.data),
    )  # fmt: skip
    records = glance.records
    return Heads(glance, starts=places[:records], kinds=kinds[:records], t_end=t_end[:records])


def glance_at(slots: npt.NDArray[Any]) -> Glance:
    """What `record_heads` says of all records together, in half its time."""
    null = _ffi().NULL
    return _heads(slots, _whole_slots(slots), null, null, null)


def _heads(slots: npt.NDArray[Any], count: int, places: Any, kinds: Any, t_end: Any) -> Glance:
    import numpy as np

    index, result = _ffi().new("struct efaprof_index_result *"), _ffi().new("struct efaprof_heads_result *")
    _lib().efaprof_heads(_ffi().cast("void *", slots.ctypes.data), count, places, kinds, t_end, index, result)
    return Glance(
        records=int(index.records), next=int(index.next), bad_slots=int(index.bad_slots),
        least_step=int(result.least_step), first=int(result.first), last=int(result.last),
        begin=int(result.begin), before_end=int(result.before_end), end=int(result.end),
        shapes=np.frombuffer(_ffi().buffer(result.shapes), np.int64).copy(),
    )  # fmt: skip


def _whole_slots(slots: npt.NDArray[Any]) -> int:
    if not slots.flags.c_contiguous or slots.nbytes % _SLOT_BYTES:
        raise ValueError(f"{slots.nbytes} bytes are not whole contiguous slots")
    return slots.nbytes // _SLOT_BYTES


def _cannot_open(ring_dir: Path, raw_dir: Path, code: int) -> EfaprofError:
    if code == errno.EWOULDBLOCK:
        return EfaprofError(f"another efaprof is draining {ring_dir}", hint="wait until it has ended")
    return EfaprofError(
        f"cannot drain {ring_dir} into {raw_dir}: {os.strerror(code)}",
        hint="do both directories exist, and may you write there?",
    )


class RingDrain:
    """Moves the rings of one run to raw files; for one thread of the recording parent."""

    def __init__(self, ring_dir: Path, raw_dir: Path, *, spill_dir: Path | None = None, max_bytes: int = 0) -> None:
        """Start draining `ring_dir` (and `spill_dir`) into `raw_dir`, `max_bytes` in all (0: no bound)."""
        self._lib = _lib()
        self._stats = _ffi().new("struct efaprof_drain_stats *")
        spill = os.fsencode(spill_dir) if spill_dir else _ffi().NULL
        self._drain = self._lib.efaprof_drain_open(os.fsencode(ring_dir), spill, os.fsencode(raw_dir), max_bytes)
        if self._drain == _ffi().NULL:
            raise _cannot_open(ring_dir, raw_dir, _ffi().errno)

    def poll(self, *, everything: bool = False) -> DrainStats:
        """Copy rings over a quarter full (or `everything`). Write errors are in the result and are tried again."""
        self._lib.efaprof_drain_poll(self._open_drain(), int(everything), self._stats)
        return self._result()

    def close(self) -> DrainStats:
        """Copy everything, remove the rings of ended processes and, when empty, the directories."""
        drain, self._drain = self._open_drain(), _ffi().NULL
        self._lib.efaprof_drain_close(drain, self._stats)
        return self._result()

    def _open_drain(self) -> Any:
        if self._drain == _ffi().NULL:
            raise ValueError("the drain is closed")
        return self._drain

    def _result(self) -> DrainStats:
        s = self._stats
        return DrainStats(
            rings=s.rings, live_rings=s.live_rings, slots=s.slots, dropped=s.dropped, discarded=s.discarded,
            write_errors=s.write_errors, bad_rings=s.bad_rings, fullest=s.fullest, last_errno=s.last_errno,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drain != _ffi().NULL:
            self.close()
