"""Our own runs, read back from `attribution.json` (schema efaprof.attribution/1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from efaprof.analyzers.op_time import RecordedCosts
from efaprof.analyzers.serving import Cell, CellKey, Format, RequestCounts, Summary
from efaprof.errors import NothingToAnalyse, TraceError
from efaprof.ingest.fields import count, duration_ms, number, positive, step_ms, table, text, whole
from efaprof.ingest.lines import document
from efaprof.trace.layers import DispatchPath, Layer, Provenance
from efaprof.trace.manifest import FILE_NAME as MANIFEST_NAME
from efaprof.trace.manifest import read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

SCHEMA = "efaprof.attribution/1"
FILE_NAME = "attribution.json"


def is_attribution(value: Any) -> bool:
    """Whether a parsed document is an attribution of ours, of any version."""
    return isinstance(value, dict) and str(value.get("schema", "")).startswith("efaprof.attribution/")


def attribution_file(path: Path) -> Path:
    """The attribution of a run directory, or the file itself; NothingToAnalyse when a run was not attributed yet."""
    if not path.is_dir():
        return path
    found = path / FILE_NAME
    if not found.is_file():
        raise NothingToAnalyse(f"{path} has no {FILE_NAME}", hint=f"efaprof attribute {path} writes it")
    return found


def read_attribution(path: Path) -> dict[str, Any]:
    """The parsed attribution of a file or run directory; TraceError when it is none that this efaprof reads."""
    file = attribution_file(path)
    value = document(file)
    found = value.get("schema") if isinstance(value, dict) else type(value).__name__
    if found != SCHEMA:
        raise TraceError(
            f"{file} has schema {found!r}, this efaprof reads {SCHEMA!r}", hint="efaprof attribute RUN --json FILE"
        )
    assert isinstance(value, dict)
    return value


def read_costs(path: Path) -> RecordedCosts:
    """Costs by layer of the run at `path`; see `costs_of`."""
    return costs_of(str(path), read_attribution(path))


def costs_of(source: str, value: Mapping[str, Any]) -> RecordedCosts:
    """Costs by layer of an attribution; NothingToAnalyse when it has no layer with a time."""
    run, operations = table(value, "run"), table(value, "operations")
    per_step = positive(operations.get("per_step"))
    if per_step is None:
        steps, posted = positive(value.get("steps")), positive(operations.get("count"))
        per_step = posted / steps if steps and posted else None
    layers, recoverable = (
        _layers_of_a_step(value) if per_step is not None else (_layers_of_an_operation(operations), {})
    )
    if not any(layers.values()):
        raise NothingToAnalyse(f"{source} has no operation with a time", hint="efaprof attribute RUN shows what it has")
    groups = {
        name: saved
        for name, group in table(value, "groups").items()
        if isinstance(group, dict) and (saved := _value(group.get("recoverable_us"))) is not None
    }
    return RecordedCosts(
        source=source,
        path=_dispatch_path(run, layers),
        layers_us=layers,
        recoverable_us=recoverable,
        groups_us=groups if per_step is not None else {},
        operations_per_step=per_step,
        tokens_per_step=positive(_value(value.get("tokens_per_step"))) or 1.0,
        emulated=_emulated(run),
    )


def _rows(value: Mapping[str, Any]) -> Iterator[tuple[Layer, Mapping[str, Any]]]:
    rows = value.get("layers")
    for row in rows if isinstance(rows, list) else []:
        name = text(row.get("layer")) if isinstance(row, dict) else None
        if name in set(Layer):
            yield Layer(name), row


def _layers_of_a_step(value: Mapping[str, Any]) -> tuple[dict[Layer, float], dict[Layer, float]]:
    """Contribution and recoverable time per step, µs."""
    rows = dict(_rows(value))
    costs = {layer: _value(row.get("us")) or 0.0 for layer, row in rows.items()}
    replayed = {layer: _value(row.get("recoverable_us")) for layer, row in rows.items()}
    return costs, {layer: saved for layer, saved in replayed.items() if saved is not None}


def _layers_of_an_operation(operations: Mapping[str, Any]) -> dict[Layer, float]:
    """Mean duration of an operation in each layer, µs: what a run without steps has."""
    found = {}
    for layer, row in _rows(operations):
        total, count = duration_ms(row.get("sum_us"), 1e-3), positive(row.get("n"))
        if total is not None and count is not None:
            found[layer] = total * 1e3 / count
    return found


def read_cell(path: Path, value: Mapping[str, Any]) -> Cell:
    """One recorded run as a load point: step wall per token, with the run's own interval over batches of steps."""
    run = table(value, "run")
    fingerprint = table(run, "fingerprint")
    wall = value.get("wall_us")
    scale = 1e-3 / (positive(_value(value.get("tokens_per_step"))) or 1.0)
    mean = step_ms(_value(wall), scale)
    if mean is None:
        raise NothingToAnalyse(f"{path} has no step time", hint="efaprof attribute RUN says why")
    bounds = [duration_ms(wall.get(name), scale) if isinstance(wall, dict) else None for name in ("lo", "hi")]
    steps = whole(value.get("steps")) or 0
    operations = table(value, "operations")
    emulated = _emulated(run)
    return Cell(
        key=CellKey(_load(path, fingerprint), count(fingerprint.get("isl")), count(fingerprint.get("osl"))),
        source=str(path),
        format=Format.EFAPROF,
        summary=Summary(
            mean_itl_ms=mean,
            std_itl_ms=None,
            requests=steps,
            lo_itl_ms=bounds[0],
            hi_itl_ms=bounds[1],
            batches=whole(table(value, "clusters").get("n")) or 0,
        ),
        counts=RequestCounts(),
        session_ns=_session(path, run),
        model=text(fingerprint.get("model")),
        concurrency_provenance=Provenance.MEASURED,
        ops_per_step=positive(operations.get("per_step")),
        warnings=tuple([f"{path}: emulated: {', '.join(emulated)}"] if emulated else []),
    )


def _emulated(run: Mapping[str, Any]) -> tuple[str, ...]:
    found = run.get("emulated")
    return tuple(str(one) for one in found) if isinstance(found, list) else ()


def _dispatch_path(run: Mapping[str, Any], layers: Mapping[Layer, float]) -> DispatchPath:
    """The run's own word, else what its layers say: a path without host stages has neither ring nor proxy."""
    named = text(run.get("path"))
    if named in set(DispatchPath):
        return DispatchPath(named)
    if Layer.PROXY in layers or Layer.RING in layers:
        return DispatchPath.PROXY
    return DispatchPath.GDAKI if Layer.KERNEL in layers else DispatchPath.LIBFABRIC


def _load(path: Path, fingerprint: Mapping[str, Any]) -> int:
    for name in ("load", "concurrency"):
        found = count(fingerprint.get(name))
        if found is not None:
            return found
    tokens, ranks = positive(fingerprint.get("tokens")), positive(fingerprint.get("ranks"))
    together = None if tokens is None or ranks is None else count(max(tokens * ranks, 1.0))
    if together is not None:
        return together
    raise NothingToAnalyse(
        f"{path} names no load: its fingerprint has neither load nor tokens and ranks", hint="record it again"
    )


def _session(path: Path, run: Mapping[str, Any]) -> int | None:
    started = whole(run.get("started_realtime_ns"))
    folder = path if path.is_dir() else path.parent
    if started is None and (folder / MANIFEST_NAME).is_file():
        started = read_manifest(folder).started_realtime_ns
    return started


def _value(estimate: Any) -> float | None:
    """The value of `{value, lo, hi}`, or of a plain number."""
    if isinstance(estimate, dict):
        return number(estimate.get("value"))
    return number(estimate)
