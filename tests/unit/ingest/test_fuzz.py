"""Whatever a field holds, reading ends in a cell or in one of our errors, never in a traceback."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from efaprof.analyzers.load_points import load_points
from efaprof.errors import EfaprofError
from efaprof.ingest import synth
from efaprof.ingest.attribution import read_cell, read_costs
from efaprof.ingest.exports import read_arm

REQUESTS = synth.waves([50.0, 52.0], concurrency=2, tokens=5)
ATTRIBUTION = {
    "schema": "efaprof.attribution/1",
    "run": {"fingerprint": {"load": 8, "isl": 1, "osl": 2, "model": "m"}, "emulated": ["nic"], "path": "proxy"},
    "steps": 3,
    "tokens_per_step": 1.0,
    "wall_us": {"value": 12000.0, "lo": 11000.0, "hi": 13000.0},
    "clusters": {"n": 10},
    "layers": [{"layer": "proxy", "us": {"value": 3000.0}, "recoverable_us": {"value": 3.0}}],
    "groups": {"host": {"recoverable_us": {"value": 3.0}}},
    "operations": {"count": 30, "per_step": 10.0},
}
odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**40), 10**40),
    st.sampled_from(
        [0, -1, 1e308, -1e308, 1e-320, float("nan"), float("inf"), "", "x", "1", [], {}, [[]], {"value": []}]
    ),
)


def places(value, path=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield (*path, index)
            yield from places(inner, (*path, index))


def changed(value, where, replacement):
    value = copy.deepcopy(value)
    inner = value
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = replacement
    return value


DOCUMENTS = {
    "record": synth.aiperf_record(REQUESTS[0]),
    "summary": synth.aiperf_summary(REQUESTS, concurrency=2, start_time="2026-06-23T00:30:37"),
    "vllm": synth.vllm_result(REQUESTS, concurrency=2, date="20260623-003200"),
    "sglang": synth.sglang_result(REQUESTS, concurrency=None),
    "attribution": ATTRIBUTION,
}


@pytest.mark.parametrize("name", DOCUMENTS)
@settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, derandomize=True
)
@given(data=st.data())
def test_an_odd_field_is_no_traceback(tmp_path, name, data):
    document = DOCUMENTS[name]
    where = data.draw(st.sampled_from(list(places(document))))
    text = json.dumps(changed(document, where, data.draw(odd)))
    path = Path(tmp_path) / "x.json"
    path.write_text(text + "\n" + (json.dumps(document) + "\n" if name == "record" else ""))
    try:
        for point in load_points(read_arm([path]).cells):
            assert np.isfinite(point.mean.value)
            assert point.mean.value > 0
    except EfaprofError as error:
        assert str(path) in error.message


@settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, derandomize=True
)
@given(data=st.data())
def test_an_odd_attribution_is_no_traceback(tmp_path, data):
    value = changed(ATTRIBUTION, data.draw(st.sampled_from(list(places(ATTRIBUTION)))), data.draw(odd))
    path = Path(tmp_path) / "a.json"
    path.write_text(json.dumps(value))
    for read in (lambda: read_costs(path), lambda: read_cell(path, value)):
        try:
            read()
        except EfaprofError as error:
            assert str(path) in error.message
