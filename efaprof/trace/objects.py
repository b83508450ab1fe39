"""libfabric objects in time: which object a pointer meant when, and how endpoints are bound to completion queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from efaprof.trace import fabric
from efaprof.trace.layout import CLOSED, ObjectKind
from efaprof.trace.schema import OBJECTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

NONE = -1
POSTED_TO = (ObjectKind.EP, ObjectKind.SRX, ObjectKind.STX, ObjectKind.PEP)
MAX_DEPTH = 4  # endpoint → domain → fabric, and one to spare


@dataclass(frozen=True, slots=True)
class Timed:
    """Control records of one shape of a whole run, in order of time."""

    process: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    body: NDArray[np.void]

    def where(self, mask: NDArray[Any]) -> Timed:
        """The chosen ones."""
        return Timed(self.process[mask], self.time_ns[mask], self.body[mask])


class _Pointers:
    """(pointer, time) → row, within one process. A pointer means the object that was opened last."""

    def __init__(self, fid: NDArray[np.uint64], opened_ns: NDArray[np.int64], row: NDArray[np.int64]) -> None:
        self._times = np.unique(opened_ns)
        self._fids, rank = np.unique(fid, return_inverse=True)
        key = rank * (len(self._times) + 1) + np.searchsorted(self._times, opened_ns, side="right")
        order = np.argsort(key, kind="stable")
        self._keys, self._rows = key[order], row[order]
        self._is_reused = len(self._fids) < len(fid)
        self._row_of_fid = self._rows[np.searchsorted(self._keys, np.arange(len(self._fids)) * (len(self._times) + 1))]

    def find(self, fid: NDArray[np.uint64], time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        rank = np.minimum(np.searchsorted(self._fids, fid), len(self._fids) - 1)
        found = self._row_of_fid[rank]
        if self._is_reused:
            key = rank * (len(self._times) + 1) + np.searchsorted(self._times, time_ns, side="right")
            at = np.searchsorted(self._keys, key, side="right") - 1
            # Used before its first open was written down: it can only be the first one.
            is_same = (at >= 0) & (self._keys[np.maximum(at, 0)] // (len(self._times) + 1) == rank)
            found = np.where(is_same, self._rows[np.maximum(at, 0)], found)
        return np.where(self._fids[rank] == fid, found, NONE)


class PointerMap:
    """(process, pointer, time) → row of the objects table, for some kinds of objects."""

    def __init__(self, opens: Timed, rows: NDArray[np.int64], kinds: tuple[ObjectKind, ...]) -> None:
        of_kind = np.isin(opens.body["kind"] & 0x7F, kinds)
        self._of: dict[int, _Pointers] = {}
        for process in np.unique(opens.process[of_kind]):
            mine = of_kind & (opens.process == process)
            self._of[int(process)] = _Pointers(opens.body["fid"][mine], opens.time_ns[mine], rows[mine])

    def find(self, process: int, fid: NDArray[np.uint64], time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of the objects; NONE where the process never opened that pointer."""
        pointers = self._of.get(process)
        return pointers.find(fid, time_ns) if pointers else np.full(len(fid), NONE)

    def find_all(
        self, process: NDArray[np.int64], fid: NDArray[np.uint64], time_ns: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The same, each with its own process."""
        found = np.full(len(fid), NONE)
        for one in np.unique(process):
            mine = process == one
            found[mine] = self.find(int(one), fid[mine], time_ns[mine])
        return found


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of a run; arrays are indexed by object."""

    endpoints: PointerMap
    queues: PointerMap
    kind: NDArray[np.uint8]
    process: NDArray[np.int64]
    provider: NDArray[np.uint64]  # NAME ids
    closed_ns: NDArray[np.int64]  # max of int64 while open
    tx_cq: NDArray[np.int64]
    rx_cq: NDArray[np.int64]
    is_tx_selective: NDArray[np.bool_]
    is_rx_selective: NDArray[np.bool_]
    is_connected: NDArray[np.bool_]
    skips_null_context: NDArray[np.bool_]  # efa-direct: an operation without a context gets no completion
    has_tx: NDArray[np.bool_]  # CQ: some endpoint's sends complete on it
    uses_receives: NDArray[np.bool_]  # CQ: a remote write with data uses up a posted receive
    tx_group: NDArray[np.int64]  # CQ: which queue of waiting operations its entries are for
    rx_group: NDArray[np.int64]
    table: pl.DataFrame

    def __len__(self) -> int:
        return len(self.kind)


STILL_OPEN = np.iinfo(np.int64).max


def build(records: Timed, binds: Timed, names: Mapping[int, str]) -> Objects:
    """Objects from OBJECT and BIND records."""
    is_close = (records.body["kind"] & CLOSED) != 0
    opens, closes = _once(records.where(~is_close)), records.where(is_close)
    rows = np.arange(len(opens.process))
    kind = (opens.body["kind"] & 0x7F).astype(np.uint8)
    anything = PointerMap(opens, rows, tuple(ObjectKind))
    closed_ns = np.full(len(rows), STILL_OPEN)
    closed = anything.find_all(closes.process, closes.body["fid"], closes.time_ns)
    closed_ns[closed[closed != NONE]] = closes.time_ns[closed != NONE]
    parent = anything.find_all(opens.process, opens.body["parent"], opens.time_ns)
    provider = _inherited(opens.body["name"], parent)
    endpoints, queues = PointerMap(opens, rows, POSTED_TO), PointerMap(opens, rows, (ObjectKind.CQ,))
    wires = _Wires(len(rows))
    wires.bind(binds, endpoints, queues)
    is_cq = kind == ObjectKind.CQ
    has_flags = is_cq & (opens.body["caps"] >= fabric.CqFormat.MSG)
    uses = np.zeros(len(rows), np.bool_)
    with_mode = (wires.rx_cq != NONE) & ((opens.body["mode"] & np.uint64(fabric.FI_RX_CQ_DATA)) != 0)
    uses[wires.rx_cq[with_mode]] = True
    return Objects(
        endpoints=endpoints, queues=queues, kind=kind, process=opens.process, provider=provider, closed_ns=closed_ns,
        tx_cq=wires.tx_cq, rx_cq=wires.rx_cq, is_tx_selective=wires.is_tx_selective,
        is_rx_selective=wires.is_rx_selective, is_connected=opens.body["ep_type"] == fabric.EpType.MSG,
        skips_null_context=_is_efa_direct(opens, kind, parent, names), has_tx=wires.has_tx, uses_receives=uses,
        tx_group=wires.tx_group(has_flags), rx_group=wires.rx_group(),
        table=_table(opens, kind, parent, provider, closed_ns, names),
    )  # fmt: skip


def _once(opens: Timed) -> Timed:
    """Each open once: the recorder may have kept a record twice when it gave up the front of a file."""
    what = np.stack([
        opens.process, opens.time_ns, opens.body["fid"].astype(np.int64), opens.body["kind"].astype(np.int64)
    ])  # fmt: skip
    _, first = np.unique(what, axis=1, return_index=True)
    return opens if len(first) == len(opens.process) else opens.where(np.sort(first))


class _Wires:
    """Which CQ an endpoint's completions go to."""

    def __init__(self, count: int) -> None:
        self.tx_cq = np.full(count, NONE)
        self.rx_cq = np.full(count, NONE)
        self.is_tx_selective = np.zeros(count, np.bool_)
        self.is_rx_selective = np.zeros(count, np.bool_)
        self._alias = np.arange(count)

    def bind(self, binds: Timed, endpoints: PointerMap, queues: PointerMap) -> None:
        kind, flags = binds.body["kind"] & 0xFF, binds.body["flags"]
        ep = endpoints.find_all(binds.process, binds.body["fid"], binds.time_ns)
        cq = queues.find_all(binds.process, binds.body["bound"], binds.time_ns)
        is_cq = (kind == ObjectKind.CQ) & (ep != NONE) & (cq != NONE)
        is_selective = (flags & np.uint64(fabric.FI_SELECTIVE_COMPLETION)) != 0
        for flag, cqs, selective in (
            (fabric.FI_TRANSMIT, self.tx_cq, self.is_tx_selective),
            (fabric.FI_RECV, self.rx_cq, self.is_rx_selective),
        ):
            mine = is_cq & ((flags & np.uint64(flag)) != 0)
            cqs[ep[mine]] = cq[mine]
            selective[ep[mine]] = is_selective[mine]
        # Receives posted to a shared context complete on the CQ of an endpoint that uses it.
        shared = endpoints.find_all(binds.process, binds.body["bound"], binds.time_ns)
        mine = (kind == ObjectKind.SRX) & (ep != NONE) & (shared != NONE)
        ep, shared = ep[mine], shared[mine]
        served = self.rx_cq[ep] != NONE
        self.rx_cq[shared[served][::-1]] = self.rx_cq[ep[served]][::-1]  # the first endpoint's
        self._alias[self.rx_cq[ep[served]]] = self.rx_cq[shared[served]]

    @property
    def has_tx(self) -> NDArray[np.bool_]:
        found = np.zeros(len(self._alias), np.bool_)
        found[self.tx_cq[self.tx_cq != NONE]] = True
        return found

    def rx_group(self) -> NDArray[np.int64]:
        return 2 * self._alias + 1

    def tx_group(self, has_flags: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Entries without flags do not say their direction: a CQ of both directions has one queue then."""
        both = np.zeros(len(self._alias), np.int64)
        both[self.tx_cq[self.tx_cq != NONE]] |= 1
        both[self.rx_cq[self.rx_cq != NONE]] |= 2
        own = 2 * np.arange(len(self._alias))
        return np.where((both == 3) & ~has_flags, self.rx_group(), own)


def _inherited(name: NDArray[np.uint64], parent: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Each object's name, or the nearest ancestor's."""
    found, above = name.copy(), parent.copy()
    for _ in range(MAX_DEPTH):
        ask = (found == 0) & (above != NONE)
        found[ask] = name[above[ask]]
        above[ask] = parent[above[ask]]
    return found


def _is_efa_direct(
    opens: Timed, kind: NDArray[np.uint8], parent: NDArray[np.int64], names: Mapping[int, str]
) -> NDArray[np.bool_]:
    wanted = np.array([key for key, text in names.items() if text == "efa-direct"], np.uint64)
    is_fabric = (kind == ObjectKind.FABRIC) & np.isin(opens.body["detail"], wanted)
    found, above = is_fabric.copy(), parent.copy()
    for _ in range(MAX_DEPTH):
        has = above != NONE
        found[has] |= is_fabric[above[has]]
        above[has] = parent[above[has]]
    return np.asarray(found, np.bool_)


def _table(
    opens: Timed, kind: NDArray[np.uint8], parent: NDArray[np.int64], provider: NDArray[np.uint64],
    closed_ns: NDArray[np.int64], names: Mapping[int, str],
) -> pl.DataFrame:  # fmt: skip
    body = opens.body
    kinds = {int(k): k.name.lower() for k in ObjectKind}
    columns: dict[str, list[str | None] | NDArray[Any] | pl.Series] = {
        "object": np.arange(len(body)), "process": opens.process, "kind": [kinds.get(int(k), "unknown") for k in kind],
        "fid": body["fid"], "provider": [names.get(int(n)) for n in provider],
        "detail": [names.get(int(n)) for n in body["detail"]],
        "parent": pl.Series(parent).replace(NONE, None), "opened_ns": opens.time_ns,
        "closed_ns": pl.Series(closed_ns).replace(STILL_OPEN, None), "nest": body["x"],
    }  # fmt: skip
    copied = ("caps", "mode", "msg_order", "ep_type", "inject", "max_msg", "extra")
    columns |= {name: np.ascontiguousarray(body[name]) for name in copied}
    return pl.DataFrame({name: columns[name] for name in OBJECTS}, schema_overrides=dict(OBJECTS), strict=False)
