"""Words for the numbers that operations carry: endpoints, threads, peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from efaprof.analyzers.by import By

if TYPE_CHECKING:
    from efaprof.trace.reader import Tables


# Columns that a key is made of.
KEY_COLUMNS: dict[By, tuple[str, ...]] = {
    By.KIND: (), By.PROVIDER: ("provider",), By.THREAD: ("thread",), By.ENDPOINT: ("endpoint",),
    By.PEER: ("process", "peer"),
}  # fmt: skip


def labelled(tables: Tables, by: By) -> pl.Expr | None:
    """The `by` column of a run's operations as text, unlike that of other processes; None where it is text already."""
    if by is By.THREAD:
        return _replaced("thread", _threads(tables))
    if by is By.ENDPOINT:
        return _replaced("endpoint", _endpoints(tables))
    if by is By.PEER:
        # No address: whoever sends (a receive), or the one that the endpoint is connected to.
        nobody = pl.when(pl.col("direction") == "rx").then(pl.lit("any")).otherwise(pl.lit("connected"))
        address = pl.when(pl.col("peer").is_null()).then(nobody).otherwise(pl.col("peer").cast(pl.String))
        process = pl.col("process").replace_strict(_processes(tables), return_dtype=pl.String)
        return pl.format("{} → {}", process, address).alias("peer")
    return None


def _replaced(column: str, words: dict[int, str]) -> pl.Expr:
    return pl.col(column).replace_strict(words, default="unknown", return_dtype=pl.String)


def _processes(tables: Tables) -> dict[int, str]:
    return {row: f"{comm}[{pid}]" for row, comm, pid in tables.processes.select("process", "comm", "pid").iter_rows()}


def _threads(tables: Tables) -> dict[int, str]:
    processes = _processes(tables)
    return {
        row: f"{processes[process]} {comm}/{tid}"
        for row, process, comm, tid in tables.threads.select("thread", "process", "comm", "tid").iter_rows()
    }


def _endpoints(tables: Tables) -> dict[int, str]:
    processes = _processes(tables)
    wanted = tables.objects.filter(pl.col("kind").is_in(["ep", "srx", "stx", "pep"]))
    columns = ("object", "process", "kind", "provider", "detail")
    return {
        row: f"{processes[process]} {kind} {provider or '?'} {detail or ''}".rstrip() + f" #{row}"
        for row, process, kind, provider, detail in wanted.select(columns).iter_rows()
    }
