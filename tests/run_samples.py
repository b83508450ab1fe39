"""Runs as tables, whose contents are known: what export tests draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from efaprof.export.perfetto.tracks import ClockReading
from efaprof.export.source import RunTables
from efaprof.trace import schema
from efaprof.trace.layers import Match

START_NS = 312_000_000_000_000  # an uptime of 86 hours: times need more than 48 bits

OP_DEFAULTS: dict[str, Any] = {
    "process": 0,
    "thread": 0,
    "kind": "rma.write",
    "direction": "tx",
    "provider": "efa",
    "nest": 0,
    "endpoint": 1,
    "cq": 0,
    "peer": None,
    "context": 0x7F00_0000_0000,
    "bytes": 4096,
    "remote": None,
    "immediate": None,
    "flags": 0,
    "eagain": 0,
    "ret": 0,
    "match": Match.EXACT.value,
    "error": None,
}


def operation(post: int, returned: int, done: int | None, **fields: Any) -> dict[str, Any]:
    """Row of the ops table, times in ns after START_NS; `doorbell` and the columns can be given by name."""
    doorbell = fields.pop("doorbell", returned)
    row = OP_DEFAULTS | fields
    row["post_ns"], row["return_ns"] = START_NS + post, START_NS + returned
    row["doorbell_ns"] = None if doorbell is None else START_NS + doorbell
    row["done_ns"] = None if done is None else START_NS + done
    if done is not None and row["error"] is None:
        row["error"] = 0
    return row


def ops_frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Rows in order of post_ns, numbered."""
    rows = sorted(rows, key=lambda row: row["post_ns"])
    return pl.DataFrame([{"op": number, **row} for number, row in enumerate(rows)], schema=schema.OPS)


def steady_ops(
    count: int, *, processes: int = 2, threads: int = 2, flight_ns: int = 9_000, seed: int = 1
) -> pl.DataFrame:
    """Many operations: every thread posts at its own pace, completions come after about `flight_ns`."""
    rng = np.random.default_rng(seed)
    caller = rng.integers(0, processes * threads, count)
    call_ns = rng.integers(60, 180, count)
    order = np.arange(count)
    post = START_NS + order * 200 + rng.integers(0, 10, count)
    returned = post + call_ns
    done = returned + rng.integers(flight_ns // 2, flight_ns * 2, count)
    match = np.where(order % 97 == 0, Match.EXPECTED_NONE.value, Match.EXACT.value)
    frame = pl.DataFrame(
        {
            "op": order,
            "process": caller // threads,
            "thread": caller,
            "kind": np.array(["rma.write", "rma.writedata", "msg.send"])[order % 3],
            "bytes": (order % 7) * 1000,
            "peer": order % 5,
            "eagain": np.where(order % 50 == 0, 3, 0),
            "post_ns": post,
            "return_ns": returned,
            "doorbell_ns": returned,
            "done_ns": done,
            "match": match,
        }
    ).with_columns(pl.when(pl.col("match") == Match.EXACT.value).then("done_ns").alias("done_ns"))
    missing = {name: pl.lit(value) for name, value in OP_DEFAULTS.items() if name not in frame.columns}
    return (
        frame.with_columns(**missing)
        .select(pl.col(name).cast(dtype) for name, dtype in schema.OPS.items())
        .sort("post_ns")
    )


def processes_frame(count: int = 2, *, hosts: tuple[str, ...] = ("node-a", "node-b")) -> pl.DataFrame:
    """Ranks 0… , one pid for all: as in containers on several hosts."""
    return pl.DataFrame(
        [
            {
                "process": n,
                "host": hosts[n % len(hosts)],
                "pid": 4242,
                "rank": n,
                "comm": "worker",
                "producer": "libefaprof-fi",
            }
            for n in range(count)
        ],
        schema=schema.PROCESSES,
    )


def threads_frame(count: int = 4, *, per_process: int = 2) -> pl.DataFrame:
    """Threads; the first of each process is its main thread."""
    return pl.DataFrame(
        [
            {
                "thread": n,
                "process": n // per_process,
                "tid": 4242 + n % per_process,
                "comm": f"worker-{n % per_process}",
            }
            for n in range(count)
        ],
        schema=schema.THREADS,
    )


def rows_frame(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Any other table, from rows; what is not given is null."""
    return pl.DataFrame(rows, schema=getattr(schema, name))


def run_tables(ops: pl.DataFrame | None = None, **tables: Any) -> RunTables:
    """A run; tables that are not given are empty."""
    frames = {name: tables.pop(name, None) for name in ("arrivals", "reads", "counters", "spans")}
    empty = {name: pl.DataFrame(schema=getattr(schema, name.upper())) for name in frames}
    lazy = {name: (empty[name] if frame is None else frame).lazy() for name, frame in frames.items()}
    return RunTables(
        ops=(pl.DataFrame(schema=schema.OPS) if ops is None else ops).lazy(),
        **lazy,
        processes=tables.pop("processes", processes_frame()),
        threads=tables.pop("threads", threads_frame()),
        objects=pl.DataFrame(schema=schema.OBJECTS),
        clocks=ClockReading(START_NS, 1_790_000_000_000_000_000, START_NS + 5),
        identity=tables.pop("identity", "efaprof-test-20260101-000000-1"),
        **tables,
    )
