"""Our own runs, read back from `attribution.json` (schema efaprof.attribution/1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from efaprof.analyzers.op_time import RecordedCosts
from efaprof.analyzers.serving import Cell, CellKey, Format, RequestCounts, Summary
from efaprof.errors import NothingToAnalyse, TraceError
from efaprof.ingest.lines import document
from efaprof.trace.layers import DispatchPath, Layer, Provenance
from efaprof.trace.manifest import FILE_NAME as MANIFEST_NAME
from efaprof.trace.manifest import read_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping
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
    """Costs by layer of a recorded run; NothingToAnalyse when it counted no operations."""
    value = read_attribution(path)
    operations = _dict(value, "operations")
    per_step = _number(operations, "per_step")
    if not per_step:
        steps, count = _number(value, "steps"), _number(operations, "count")
        per_step = count / steps if steps and count else None
    if not per_step:
        raise NothingToAnalyse(f"{path} counted no operations, so it has no cost per operation", hint="record a run")
    layers: dict[Layer, float] = {}
    recoverable: dict[Layer, float] = {}
    for row in value.get("layers", []):
        layer = Layer(row["layer"]) if isinstance(row, dict) and row.get("layer") in set(Layer) else None
        if layer is None:
            continue
        layers[layer] = _value(row.get("us")) or 0.0
        saved = _value(row.get("recoverable_us"))
        if saved is not None:
            recoverable[layer] = saved
    groups = {
        name: saved
        for name, group in _dict(value, "groups").items()
        if isinstance(group, dict) and (saved := _value(group.get("recoverable_us"))) is not None
    }
    run = _dict(value, "run")
    return RecordedCosts(
        source=str(path),
        path=_dispatch_path(run, layers),
        layers_us=layers,
        recoverable_us=recoverable,
        groups_us=groups,
        operations_per_step=per_step,
        tokens_per_step=_number(value, "tokens_per_step") or 1.0,
        wall_us=_value(value.get("wall_us")) or sum(layers.values()),
        emulated=tuple(str(one) for one in run.get("emulated", [])),
    )


def read_cell(path: Path, value: Mapping[str, Any]) -> Cell:
    """One recorded run as a load point: step wall per token, with the run's own interval over batches of steps."""
    run = _dict(value, "run")
    fingerprint = _dict(run, "fingerprint")
    wall = value.get("wall_us")
    mean = _value(wall)
    if mean is None or mean <= 0:
        raise NothingToAnalyse(f"{path} has no step time", hint="efaprof attribute RUN says why")
    tokens = _number(value, "tokens_per_step") or 1.0
    scale = 1.0 / (1e3 * tokens)
    bounds = [_number(wall, name) if isinstance(wall, dict) else None for name in ("lo", "hi")]
    steps = int(_number(value, "steps") or 0)
    operations = _dict(value, "operations")
    emulated = [str(one) for one in run.get("emulated", [])]
    return Cell(
        key=CellKey(_load(path, fingerprint), _whole(fingerprint.get("isl")), _whole(fingerprint.get("osl"))),
        source=str(path),
        format=Format.EFAPROF,
        summary=Summary(
            mean_itl_ms=mean * scale,
            std_itl_ms=None,
            requests=steps,
            lo_itl_ms=None if bounds[0] is None else bounds[0] * scale,
            hi_itl_ms=None if bounds[1] is None else bounds[1] * scale,
            batches=int(_number(_dict(value, "clusters"), "n") or 0),
        ),
        counts=RequestCounts(),
        session_ns=_session(path, run),
        model=fingerprint.get("model") if isinstance(fingerprint.get("model"), str) else None,
        concurrency_provenance=Provenance.MEASURED,
        ops_per_step=_number(operations, "per_step"),
        warnings=tuple([f"{path}: emulated: {', '.join(emulated)}"] if emulated else []),
    )


def _dispatch_path(run: Mapping[str, Any], layers: Mapping[Layer, float]) -> DispatchPath:
    """The run's own word, else what its layers say: a path without host stages has neither ring nor proxy."""
    named = run.get("path")
    if named in set(DispatchPath):
        return DispatchPath(str(named))
    if Layer.PROXY in layers or Layer.RING in layers:
        return DispatchPath.PROXY
    return DispatchPath.GDAKI if Layer.KERNEL in layers else DispatchPath.LIBFABRIC


def _load(path: Path, fingerprint: Mapping[str, Any]) -> int:
    for name in ("load", "concurrency"):
        found = _whole(fingerprint.get(name))
        if found:
            return found
    tokens, ranks = _number(fingerprint, "tokens"), _number(fingerprint, "ranks")
    if tokens and ranks:
        return max(round(tokens * ranks), 1)
    raise NothingToAnalyse(
        f"{path} names no load: its fingerprint has neither load nor tokens and ranks", hint="record it again"
    )


def _session(path: Path, run: Mapping[str, Any]) -> int | None:
    started = _whole(run.get("started_realtime_ns"))
    folder = path if path.is_dir() else path.parent
    if started is None and (folder / MANIFEST_NAME).is_file():
        started = read_manifest(folder).started_realtime_ns
    return started


def _dict(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _number(value: Mapping[str, Any], name: str) -> float | None:
    found = value.get(name)
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def _value(estimate: Any) -> float | None:
    """The value of `{value, lo, hi}`, or of a plain number."""
    if isinstance(estimate, dict):
        return _number(estimate, "value")
    return float(estimate) if isinstance(estimate, int | float) and not isinstance(estimate, bool) else None


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
