"""Python stacks that py-spy sampled while a run was recorded, as frames in time on CLOCK_MONOTONIC.

py-spy writes a begin and an end for each stretch of samples with the same frame, in microseconds since its own start,
which it does not tell. It lies a moment after the recorder had started it, and is bounded from both sides by its last
stamp: that is made while it writes its file, after the file was made and before it was closed. A sample stands for the
stretch from half a period before it to half a period after it, so all times lie half a period earlier than py-spy says.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from efaprof.trace.rundir import PYTHON_INDEX, RAW_DIR

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from efaprof.trace.rundir import Run

_THREAD = r"^thread \((?P<tid>\d+)\)(?:: (?P<thread>.*))?$"
_START_UP_NS = 2_000_000  # from its execution to its own start (measured: 1 to 3 ms)
_ALIVE_NS = 1_000_000_000  # a thread that was last seen this long before the end had ended

# One row per stretch of samples in which a frame stayed on a thread's stack, in the order (pid, tid, begin, depth).
FRAMES: dict[str, pl.DataType] = {
    "pid": pl.UInt32(),
    "tid": pl.UInt32(),  # 0: py-spy could not tell
    "thread": pl.String(),  # Python's name of it
    "function": pl.String(),
    "file": pl.String(),
    "line": pl.Int64(),  # where it stood at the first of the samples
    "depth": pl.Int64(),  # 0: the outermost frame
    "begin_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "parent": pl.Int64(),  # row of the frame that called it, -1 for none
}


@dataclass(frozen=True, slots=True)
class Stacks:
    """Every frame that was sampled."""

    frames: pl.DataFrame  # FRAMES
    rate_hz: float
    is_native: bool
    samples: int
    cpu_s: float  # that py-spy took
    length_s: float  # during which it ran, summed over processes
    clock_error_ns: int
    warnings: tuple[str, ...]


def has_stacks(run: Run) -> bool:
    """Python was sampled in this run, or was to be."""
    return (run.path / RAW_DIR / PYTHON_INDEX).is_file()


def read_stacks(run: Run) -> Stacks | None:
    """The run's Python stacks; None when none were sampled. Files that are missing or damaged are named in warnings."""
    raw = run.path / RAW_DIR
    try:
        index = json.loads((raw / PYTHON_INDEX).read_text(encoding="utf-8"))
        samplings, rate_hz = index["samplings"], float(index["rate_hz"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        return _nothing(f"raw/{PYTHON_INDEX} cannot be read: {error}")
    parts, warnings = [], []
    for one in samplings:
        if one.get("problem"):
            continue  # the recorder has said so
        try:
            parts.append(_frames(raw / one["file"], one, round(1e9 / rate_hz)))
        except (OSError, ValueError, KeyError, pl.exceptions.PolarsError) as error:
            warnings.append(f"raw/{one.get('file')}: Python stacks not read: {error}")
    frames = pl.concat(parts) if parts else pl.DataFrame(schema=FRAMES)
    return Stacks(
        frames=_with_parents(frames),
        rate_hz=rate_hz,
        is_native=bool(index.get("native")),
        samples=sum(int(one.get("samples") or 0) for one in samplings),
        cpu_s=sum(float(one.get("cpu_s") or 0.0) for one in samplings),
        length_s=sum(max((one.get("ended_ns") or 0) - one["spawned_ns"], 0) for one in samplings) / 1e9,
        clock_error_ns=int(index.get("tick_ns", 0)) + round(0.5e9 / rate_hz),
        warnings=tuple(warnings),
    )


def _nothing(warning: str) -> Stacks:
    return Stacks(
        frames=_with_parents(pl.DataFrame(schema=FRAMES)), rate_hz=0.0, is_native=False, samples=0, cpu_s=0.0,
        length_s=0.0, clock_error_ns=0, warnings=(warning,),
    )  # fmt: skip


def _frames(path: Path, sampling: dict[str, Any], period_ns: int) -> pl.DataFrame:
    """Frames of one file of py-spy."""
    events = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    if not events:
        return pl.DataFrame(schema=FRAMES)
    table = pl.DataFrame(
        {
            "key": [event["tid"] for event in events],
            "name": [event["name"] for event in events],
            "file": [event["args"]["filename"] for event in events],
            "line": [event["args"]["line"] for event in events],
            "is_begin": [event["ph"] == "B" for event in events],
            "ts": [event["ts"] for event in events],
        },
        schema={"key": pl.UInt64(), "name": pl.String(), "file": pl.String(), "line": pl.Int64(),
                "is_begin": pl.Boolean(), "ts": pl.Int64()},
    )  # fmt: skip
    begins, ends = _matched(table)
    origin_ns = _origin_ns(sampling, int(table["ts"].max())) - period_ns // 2  # type: ignore[arg-type]
    frames = begins.with_columns(
        begin_ns=pl.col("ts") * 1000 + origin_ns, end_ns=pl.Series(ends["ts"]) * 1000 + origin_ns
    )
    frames = _on_threads(frames).with_columns(pl.lit(int(sampling["pid"]), pl.UInt32()).alias("pid"))
    return _cut(frames, sampling).select(
        pl.col(name).cast(kind) if name != "parent" else pl.lit(-1, pl.Int64()).alias(name)
        for name, kind in FRAMES.items()
    )


def _matched(events: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Begins and their ends, row by row. py-spy writes both in order and closes what is open at the end."""
    by_thread = events.with_row_index("at").sort("key", "at")
    change = np.where(by_thread["is_begin"].to_numpy(), 1, -1)
    # Every thread's begins and ends cancel out, so that one running sum serves all of them.
    depth = np.cumsum(change) - (change > 0)
    by_thread = by_thread.with_columns(depth=pl.Series(depth))
    if int(change.sum()) != 0 or int(depth.min()) < 0:
        raise ValueError("begins and ends do not match")
    paired = by_thread.sort("key", "depth", "at")
    begins, ends = paired.gather_every(2), paired.gather_every(2, 1)
    if not begins["is_begin"].all() or ends["is_begin"].any() or not begins["name"].equals(ends["name"]):
        raise ValueError("begins and ends do not match")
    return begins, ends


def _on_threads(frames: pl.DataFrame) -> pl.DataFrame:
    """Frames without the outermost ones, which name the thread; `tid` and `thread` of each."""
    named = pl.col("name").str.extract_groups(_THREAD)
    roots = (
        frames.filter(pl.col("depth") == 0)
        .select("key", "at", tid=named.struct.field("tid").cast(pl.UInt32), thread=named.struct.field("thread"))
        .sort("at")
    )
    inner = frames.filter(pl.col("depth") > 0).sort("at")
    return inner.join_asof(roots, on="at", by="key", check_sortedness=False).with_columns(
        pl.col("tid").fill_null(0),
        pl.col("thread").fill_null(""),
        pl.col("depth") - 1,
        function=pl.col("name"),
    )


def _origin_ns(sampling: dict[str, Any], last_us: int) -> int:
    """CLOCK_MONOTONIC at py-spy's zero: not before it was started, and its last stamp not after it had ended."""
    last_ns = last_us * 1000
    expected = int(sampling.get("running_ns") or sampling["spawned_ns"]) + _START_UP_NS
    latest = [int(sampling[name]) - last_ns for name in ("closed_ns", "ended_ns") if sampling.get(name)]
    earliest = [int(sampling["born_ns"]) - last_ns] if sampling.get("born_ns") else []
    return max(min([expected, *latest]), *earliest, int(sampling["spawned_ns"]))


def _cut(frames: pl.DataFrame, sampling: dict[str, Any]) -> pl.DataFrame:
    """Frames end with their thread: py-spy lets the last stack of one that has ended stand until its own end."""
    seen = {int(tid): int(time) for tid, time in (sampling.get("threads") or {}).items()}
    if not seen:
        return frames
    last = max(seen.values())
    ended = pl.DataFrame(
        [(tid, time + _ALIVE_NS // 4) for tid, time in seen.items() if time < last - _ALIVE_NS],
        schema={"tid": pl.UInt32(), "until_ns": pl.Int64()}, orient="row",
    )  # fmt: skip
    until = pl.col("until_ns").fill_null(2**62)
    return (
        frames.join(ended, on="tid", how="left")
        .with_columns(end_ns=pl.min_horizontal("end_ns", until))
        .filter(pl.col("begin_ns") < pl.col("end_ns"))
    )


def _with_parents(frames: pl.DataFrame) -> pl.DataFrame:
    """The frames in order, each with the row of its caller."""
    frames = frames.sort("pid", "tid", "begin_ns", "depth", maintain_order=True)
    depth = frames["depth"].to_numpy()
    parent = np.full(len(depth), -1, np.int64)
    above: NDArray[np.intp] = np.flatnonzero(depth == 0)
    for level in range(1, int(depth.max(initial=0)) + 1):
        rows = np.flatnonzero(depth == level)
        # The last one above that came before is on the stack: begins are in order, callers first.
        found = np.searchsorted(above, rows, side="left") - 1
        parent[rows[found >= 0]] = above[found[found >= 0]]
        above = rows
    return frames.with_columns(parent=pl.Series(parent))
