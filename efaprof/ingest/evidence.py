"""`evidence.json` (schema efaprof.evidence/1), and the summary of a native campaign as such evidence.

    {"schema": "efaprof.evidence/1",
     "interventions": [{lever, target_layer, op, before_us, after_us, reps, valid, config_hash, removed?}],
     "waits":         [{op, wait, body, config_hash}],
     "readings":      [{op, path, us, config_hash, load?}]}

Each intervention is one A/B pair. A bare list is taken as interventions.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from efaprof.analyzers.interventions import LABELS, Evidence, Intervention, Reading, WaitShare
from efaprof.errors import NothingToAnalyse, TraceError
from efaprof.ingest.fields import number, positive, table, text, whole
from efaprof.ingest.lines import document
from efaprof.trace.layers import Layer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA = "efaprof.evidence/1"
_BANKED, _REBANKED = "banked_", "rebank_"
_PATH_OF = {"native": "gdaki", "proxy": "proxy"}
_BANKED_TIME = re.compile(r"(native|proxy)_(\w+?)_p50_us")
# "73% doorbell+fence event reduction moved combine p50 ~0 us (valid pairs -7.2/+6.1): …"
_PAIRS = re.compile(r"(\d+(?:\.\d+)?)% ([\w+]+) event reduction moved (\w+) p50 .*?\(valid pairs ([-+\d./]+)\)")
# "…: 89.96% wait share, 8.96x wait/body, …", under a name like r4_cached_dispatch
_WAIT = re.compile(r"(\d+(?:\.\d+)?)% wait share, (\d+(?:\.\d+)?)x wait/body")
_WAIT_NAME = re.compile(r"r\d+_(\w+)")


def read_evidence(path: Path) -> Evidence:
    """Evidence of a file, a campaign summary's too; TraceError names the first row that is none."""
    value = document(path)
    if isinstance(value, dict) and "campaign" in value:
        return from_campaign(value, str(path))
    if isinstance(value, list):
        value = {"schema": SCHEMA, "interventions": value}
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        found = value.get("schema") if isinstance(value, dict) else type(value).__name__
        raise TraceError(f"{path} has schema {found!r}, this efaprof reads {SCHEMA!r}", hint="see docs/evidence.md")
    found = Evidence(
        tuple(
            _intervention(row, f"{path}: interventions[{at}]") for at, row in enumerate(_rows(value, "interventions"))
        ),
        tuple(_wait(row, f"{path}: waits[{at}]") for at, row in enumerate(_rows(value, "waits"))),
        tuple(_reading(row, f"{path}: readings[{at}]") for at, row in enumerate(_rows(value, "readings"))),
    )
    if not found.operations:
        raise NothingToAnalyse(f"{path} has no evidence", hint="interventions, waits or readings are what it can hold")
    return found


def _rows(value: Mapping[str, Any], name: str) -> list[Any]:
    found = value.get(name, [])
    if not isinstance(found, list):
        raise TraceError(f"{name} is no list", hint="see docs/evidence.md")
    return found


def _intervention(row: Any, where: str) -> Intervention:
    fields = _fields(row, where, ("lever", "target_layer", "op", "config_hash"))
    target = fields["target_layer"]
    if target not in LABELS:
        raise _bad(where, f"target_layer {target!r} is none of {', '.join(LABELS)}")
    if not isinstance(row.get("valid"), bool):
        raise _bad(where, "valid is neither true nor false")
    reps = whole(row.get("reps"))
    if reps is None or reps < 1:
        raise _bad(where, "reps is no count")
    removed = row.get("removed")
    if removed is not None and not 0 < (number(removed) or 0) <= 1:
        raise _bad(where, "removed is no part between 0 and 1")
    return Intervention(
        lever=fields["lever"], target_layer=target, op=fields["op"],
        before_us=_time(row, "before_us", where), after_us=_time(row, "after_us", where),
        reps=reps, valid=row["valid"], config_hash=fields["config_hash"], removed=number(removed),
    )  # fmt: skip


def _wait(row: Any, where: str) -> WaitShare:
    fields = _fields(row, where, ("op", "config_hash"))
    shares = [number(row.get(name)) for name in ("wait", "body")]
    if any(share is None or not 0 <= share <= 1 for share in shares):
        raise _bad(where, "wait and body are parts between 0 and 1")
    return WaitShare(fields["op"], shares[0] or 0.0, shares[1] or 0.0, fields["config_hash"])


def _reading(row: Any, where: str) -> Reading:
    fields = _fields(row, where, ("op", "path", "config_hash"))
    load = row.get("load")
    if load is not None and positive(load) is None:
        raise _bad(where, "load is not above 0")
    return Reading(fields["op"], fields["path"], _time(row, "us", where), fields["config_hash"], positive(load))


def _fields(row: Any, where: str, names: tuple[str, ...]) -> dict[str, str]:
    if not isinstance(row, dict):
        raise _bad(where, "it is no object")
    found = {name: text(row.get(name)) for name in names}
    missing = [name for name, value in found.items() if not value]
    if missing:
        raise _bad(where, f"{missing[0]} is missing")
    return {name: value for name, value in found.items() if value}


def _time(row: Mapping[str, Any], name: str, where: str) -> float:
    found = positive(row.get(name))
    if found is None:
        raise _bad(where, f"{name} is no time above 0")
    return found


def _bad(where: str, reason: str) -> TraceError:
    return TraceError(f"{where}: {reason}", hint="see docs/evidence.md")


def from_campaign(value: Mapping[str, Any], source: str) -> Evidence:
    """Evidence of a campaign summary: banked times, valid pairs of the event reduction, wait shares.

    Steps of its ladder are left out: they name neither the layer nor, mostly, the time before. The native path issues
    from the kernel, so doorbells and fences that went away went away there.
    """
    config = hashlib.sha256(f"{value.get('campaign')}|{value.get('hardware')}".encode()).hexdigest()[:16]
    banked = {name: entry for name, entry in value.items() if name.startswith(_BANKED) and isinstance(entry, dict)}
    times = {
        (match[1], match[2]): us
        for entry in banked.values()
        for name, raw in entry.items()
        if (match := _BANKED_TIME.fullmatch(name)) and (us := positive(raw)) is not None
    }
    readings = tuple(Reading(op, _PATH_OF[arm], us, config) for (arm, op), us in times.items())
    interventions: list[Intervention] = []
    waits: list[WaitShare] = []
    for name in value:
        if name.startswith(_REBANKED):
            for key, words in table(value, name).items():
                interventions += _pairs(str(words), times, config)
                waits += _waits(key, str(words), config)
    found = Evidence(tuple(interventions), tuple(waits), readings)
    if not found.operations:
        raise NothingToAnalyse(f"{source} is a campaign summary without a time", hint="banked_*/native_*_p50_us")
    return found


def _pairs(words: str, times: Mapping[tuple[str, str], float], config: str) -> list[Intervention]:
    match = _PAIRS.search(words)
    before = times.get(("native", match[3])) if match else None
    if match is None or before is None:
        return []
    changes = [number_of for raw in match[4].split("/") if (number_of := _signed(raw)) is not None]
    return [
        Intervention(
            lever=f"fewer {match[2]} events", target_layer=Layer.KERNEL, op=match[3], before_us=before,
            after_us=before + change, reps=1, valid=True, config_hash=config, removed=float(match[1]) / 100,
        )
        for change in changes
    ]  # fmt: skip


def _signed(raw: str) -> float | None:
    return float(raw) if re.fullmatch(r"[-+]\d+(?:\.\d+)?", raw) else None


def _waits(key: str, words: str, config: str) -> list[WaitShare]:
    match, name = _WAIT.search(words), _WAIT_NAME.fullmatch(key)
    if match is None or name is None:
        return []
    return [WaitShare(name[1], float(match[1]) / 100, 1 / (1 + float(match[2])), config)]
