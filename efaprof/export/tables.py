"""The tables of a run as parquet or CSV files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from efaprof.errors import UsageError
from efaprof.trace.reader import EVENT_TABLES, SMALL_TABLES, open_tables

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from efaprof.export.source import RunTables
    from efaprof.trace.rundir import Run


def kept_tables(run: Run) -> tuple[Path, ...]:
    """Parquet files that the run directory keeps of itself, made when they are not there yet."""
    tables = open_tables(run)
    if tables.folder != run.path:
        raise UsageError(f"nothing can be written in {run.path}", hint="give a folder with -o")
    return tuple(tables.folder / f"{name}.parquet" for name in (*EVENT_TABLES, *SMALL_TABLES))


def write_tables(tables: RunTables, folder: Path, *, suffix: str, force: bool) -> tuple[Path, ...]:
    """One file a table in `folder`, narrowed to the window; `suffix` is "parquet" or "csv". Bounded memory."""
    frames = {name: table for name, table in tables.named().items() if name != "stacks" or tables.stacks_hz} | {
        "processes": tables.processes.lazy(),
        "threads": tables.threads.lazy(),
        "objects": tables.objects.lazy(),
    }
    targets = {name: folder / f"{name}.{suffix}" for name in frames}
    taken = [path for path in targets.values() if path.exists()]
    if taken and not force:
        raise UsageError(f"{taken[0]} exists", hint="write it anew with -f, or choose another -o")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, target in targets.items():
            _write(frames[name], target)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written: {error.strerror or error}", hint="choose another folder with -o"
        ) from error
    return tuple(targets.values())


def _write(frame: pl.LazyFrame, target: Path) -> None:
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if target.suffix == ".csv":
            frame.sink_csv(draft, maintain_order=True)
        else:
            frame.sink_parquet(draft, compression="zstd", maintain_order=True)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
