"""From paths to cells: finds the exports below a path, tells their format from their content, reads each once."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from efaprof.errors import NothingToAnalyse, TraceError, UsageError
from efaprof.ingest import aiperf, aiperf_summary, attribution, bench_serving
from efaprof.ingest.lines import MAX_LINE_BYTES, Malformed, Progress, Quiet, document, json_lines, unreadable
from efaprof.trace.manifest import FILE_NAME as MANIFEST_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from efaprof.analyzers.serving import Cell

_SNIFF_LINES = 16
_SNIFF_BYTES = 1 << 20
_SUFFIXES = (".json", ".jsonl", ".csv")
_SUMMARY_SUFFIX = "_aiperf"
_FORMATS_HINT = (
    "give aiperf's profile_export.jsonl, profile_export_aiperf.json or .csv, a `vllm bench serve --save-result` JSON, "
    "an SGLang bench_serving JSONL, or an efaprof run"
)


class _Kind(Enum):
    AIPERF_RECORDS = auto()
    AIPERF_SUMMARY = auto()
    AIPERF_CSV = auto()
    RESULT_LINES = auto()  # vLLM or SGLang, one result a line
    RESULT = auto()  # vLLM, one document
    RUN = auto()


@dataclass(frozen=True, slots=True)
class Found:
    """Cells below the paths of one arm, and the files that were no export."""

    cells: tuple[Cell, ...]
    ignored: tuple[Path, ...]


def read_arm(paths: Iterable[Path], *, progress: Progress | None = None) -> Found:
    """All cells of one arm: every path is an export or a folder of them.

    NothingToAnalyse for a folder without exports and for an empty file, TraceError for a file of another kind.
    """
    watch = progress if progress is not None else Quiet()
    cells: list[Cell] = []
    ignored: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} does not exist", hint="check the path after --arm NAME=")
        if path.is_dir() and not _is_run(path):
            found = _read_folder(path, watch)
            cells += found.cells
            ignored += found.ignored
        else:
            cells += _read_file(path, watch)
    return Found(tuple(cells), tuple(ignored))


def _is_run(path: Path) -> bool:
    return (path / MANIFEST_NAME).is_file() or (path / attribution.FILE_NAME).is_file()


def _read_file(path: Path, progress: Progress) -> list[Cell]:
    """Cells of one file that the user named; here an unknown content is an error."""
    if path.is_dir():
        return [attribution.read_cell(path, attribution.read_attribution(path))]
    if path.stat().st_size == 0:
        raise NothingToAnalyse(f"{path} is empty", hint=_FORMATS_HINT)
    kind = _sniff(path)
    if kind is None:
        raise TraceError(f"{path} is no benchmark export that efaprof knows", hint=_FORMATS_HINT)
    return list(_read(path, kind, progress))


def _read_folder(folder: Path, progress: Progress) -> Found:
    """Cells of all exports below a folder; AIPerf's three files of one run are one cell."""
    cells: list[Cell] = []
    ignored: list[Path] = []
    for place, files in _walk(folder):
        if _is_run(place):
            cells.append(attribution.read_cell(place, attribution.read_attribution(place)))
            continue
        known = {path: _sniff(path) for path in files}
        ignored += [path for path, kind in known.items() if kind is None]
        for path in _without_twins({path: kind for path, kind in known.items() if kind is not None}):
            kind = known[path]
            assert kind is not None
            cells += _read(path, kind, progress)
    if not cells:
        looked = f" ({len(ignored)} other files)" if ignored else ""
        raise NothingToAnalyse(f"{folder} holds no benchmark export{looked}", hint=_FORMATS_HINT)
    return Found(tuple(cells), tuple(ignored))


def _walk(folder: Path) -> Iterator[tuple[Path, list[Path]]]:
    for root, folders, files in os.walk(folder):
        folders.sort()
        place = folder / os.path.relpath(root, folder)
        if _is_run(place):
            folders.clear()
        yield place, sorted(place / name for name in files if name.endswith(_SUFFIXES))


def _without_twins(known: dict[Path, _Kind]) -> list[Path]:
    """One file for each AIPerf run: its records, else its JSON, else its CSV; everything else as it is."""
    order = (_Kind.AIPERF_RECORDS, _Kind.AIPERF_SUMMARY, _Kind.AIPERF_CSV)
    best: dict[str, Path] = {}
    for path in sorted((path for path in known if known[path] in order), key=lambda path: order.index(known[path])):
        best.setdefault(path.stem.removesuffix(_SUMMARY_SUFFIX), path)
    return [path for path in known if known[path] not in order or path in best.values()]


def _read(path: Path, kind: _Kind, progress: Progress) -> Iterator[Cell]:
    if kind is _Kind.AIPERF_RECORDS:
        yield aiperf.read_records(path, _config_beside(path), progress)
    elif kind is _Kind.AIPERF_SUMMARY:
        yield aiperf_summary.read_summary(path, document(path))
    elif kind is _Kind.AIPERF_CSV:
        yield aiperf_summary.read_csv(path)
    elif kind is _Kind.RESULT:
        yield bench_serving.read_result(str(path), document(path))
    elif kind is _Kind.RUN:
        yield attribution.read_cell(path, attribution.read_attribution(path))
    else:
        yield from _read_results(path, progress)


def _read_results(path: Path, progress: Progress) -> list[Cell]:
    malformed = Malformed(path)
    cells: list[Cell] = []
    for line, value in json_lines(path, malformed, progress):
        if bench_serving.is_result(value):
            cells.append(bench_serving.read_result(f"{path}:{line}", value))
        else:
            malformed.add(line, "no benchmark result")
    if not cells:
        raise TraceError(f"{path} holds no benchmark result", hint=_FORMATS_HINT)
    warning = malformed.warning()
    if warning:
        cells[0] = cells[0].warned(warning)
    return cells


def _config_beside(path: Path) -> dict[str, Any] | None:
    """AIPerf's JSON summary of the run whose records these are."""
    beside = path.with_name(f"{path.stem}{_SUMMARY_SUFFIX}.json")
    if not beside.is_file():
        return None
    value = document(beside)
    return value if aiperf_summary.is_summary(value) else None


def _sniff(path: Path) -> _Kind | None:
    """Kind of a file from its first lines, or from all of it when it is one JSON document; None for anything else."""
    try:
        with path.open("rb") as file:
            head = file.read(_SNIFF_BYTES)
    except OSError as error:
        raise unreadable(path, error) from error
    if head.startswith(b"Metric,"):
        return _Kind.AIPERF_CSV
    for value in _first_lines(path):
        kind = _kind_of_line(value)
        if kind is not None:
            return kind
    if head.lstrip()[:1] != b"{":
        return None
    try:
        value = document(path)
    except TraceError:
        return None
    return _kind_of_document(value)


def _first_lines(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        for _ in range(_SNIFF_LINES):
            raw = file.readline(MAX_LINE_BYTES)
            if not raw.startswith(b"{") or not raw.rstrip().endswith(b"}"):
                continue
            try:
                yield json.loads(raw)
            except (ValueError, RecursionError):
                continue


def _kind_of_line(value: Any) -> _Kind | None:
    if aiperf.is_record(value):
        return _Kind.AIPERF_RECORDS
    if bench_serving.is_result(value):
        return _Kind.RESULT_LINES
    return _kind_of_document(value)


def _kind_of_document(value: Any) -> _Kind | None:
    if aiperf_summary.is_summary(value):
        return _Kind.AIPERF_SUMMARY
    if attribution.is_attribution(value):
        return _Kind.RUN
    return _Kind.RESULT if bench_serving.is_result(value) else None
