"""Files as py-spy writes them, from spans: what readers of sampled Python stacks are tested with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

ORIGIN_NS = 1_000_000_000  # of py-spy's stamps, unless a test says otherwise
START_UP_NS = 2_000_000  # what the reader expects between the start of py-spy and its first stamp


def events(
    tid: int, stretches: list[tuple[int, int, str]], *, key: int | None = None, name: str = "MainThread"
) -> list:
    """Begins and ends of one thread, from (begin µs, end µs, "outer;inner;…") in order of time."""
    found: list[dict[str, Any]] = []
    for begin, end, stack in stretches:
        frames = [(f"thread ({tid}): {name}", "", 0), *((word, f"/app/{word}.py", 3) for word in stack.split(";"))]
        for function, file, line in frames:
            found.append(_event(function, file, line, "B", key or tid, begin))
        for function, file, line in reversed(frames):
            found.append(_event(function, file, line, "E", key or tid, end))
    return found


def _event(name: str, file: str, line: int, phase: str, key: int, ts: int) -> dict[str, Any]:
    return {
        "args": {"filename": file, "line": line},
        "cat": "py-spy",
        "name": name,
        "ph": phase,
        "pid": 1,
        "tid": key,
        "ts": ts,
    }


def sampling(pid: int, file: str = "python-1-0.json", **facts: Any) -> dict[str, Any]:
    """What the recorder notes of one py-spy whose stamps begin at ORIGIN_NS."""
    noted = {"pid": pid, "file": file, "spawned_ns": ORIGIN_NS - START_UP_NS, "running_ns": ORIGIN_NS - START_UP_NS,
             "ended_ns": ORIGIN_NS + 10**12, "samples": 10, "cpu_s": 0.5, "threads": {}, "problem": ""}  # fmt: skip
    return noted | facts


def write(run: Path, found: list[dict[str, Any]], *samplings: dict[str, Any], rate_hz: float = 1e6) -> None:
    """Put the first sampling's file and the index into a run; at 1 MHz the half period is 500 ns."""
    (run / "raw" / samplings[0]["file"]).write_text(json.dumps(found))
    index = {"schema": "efaprof.python/1", "rate_hz": rate_hz, "native": False, "tick_ns": 0, "samplings": samplings}
    (run / "raw" / "python.json").write_text(json.dumps(index))
