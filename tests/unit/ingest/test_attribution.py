from __future__ import annotations

import pytest

from efaprof.errors import NothingToAnalyse, TraceError
from efaprof.ingest import synth
from efaprof.ingest.attribution import read_attribution, read_cell, read_costs
from efaprof.trace.layers import DispatchPath, Layer


def attribution(**changes):
    document = {
        "schema": "efaprof.attribution/1",
        "run": {
            "fingerprint": {"model": "a-model", "load": 8, "isl": 120, "osl": 128},
            "emulated": ["kernel", "nic"],
            "started_realtime_ns": 5,
        },
        "steps": 300,
        "tokens_per_step": {"value": 2.0, "provenance": "measured"},
        "wall_us": {"value": 24000.0, "lo": 23000.0, "hi": 25000.0},
        "clusters": {"unit": "batch", "n": 12, "batch": 25, "lag1": 0.1},
        "layers": [
            {"layer": "compute", "us": {"value": 9000.0, "lo": 1, "hi": 2}},
            {"layer": "ring", "us": {"value": 1000.0, "lo": 1, "hi": 2}, "recoverable_us": {"value": 600.0}},
            {"layer": "proxy", "us": {"value": 3000.0, "lo": 1, "hi": 2}},
            {"layer": "a-later-one", "us": {"value": 1.0}},
        ],
        "groups": {"host": {"recoverable_us": {"value": 3500.0, "lo": 1, "hi": 2}}, "fence": {}},
        "operations": {"count": 600000, "per_step": 2000.0},
    }
    return {**document, **changes}


def test_costs_are_read_by_layer(tmp_path):
    path = synth.write_document(tmp_path / "attribution.json", attribution())
    costs = read_costs(path)
    assert costs.layers_us == {Layer.COMPUTE: 9000.0, Layer.RING: 1000.0, Layer.PROXY: 3000.0}
    assert (costs.recoverable_us, costs.groups_us) == ({Layer.RING: 600.0}, {"host": 3500.0})
    assert (costs.operations_per_step, costs.tokens_per_step, costs.path) == (2000.0, 2.0, DispatchPath.PROXY)
    assert costs.emulated == ("kernel", "nic")


def test_a_run_directory_stands_for_its_attribution(tmp_path):
    synth.write_document(tmp_path / "attribution.json", attribution())
    assert read_costs(tmp_path).operations_per_step == 2000.0


def test_operations_per_step_follow_from_the_count(tmp_path):
    path = synth.write_document(tmp_path / "a.json", attribution(operations={"count": 600000}))
    assert read_costs(path).operations_per_step == 2000.0


def test_a_run_without_steps_has_mean_operations(tmp_path):
    rows = [{"layer": "libfabric", "n": 200, "sum_us": 80.0}, {"layer": "nic", "n": 200, "sum_us": 600.0}]
    operations = {"count": 200, "per_step": None, "layers": rows}
    path = synth.write_document(tmp_path / "a.json", attribution(layers=[], steps=0, operations=operations))
    costs = read_costs(path)
    assert costs.operations_per_step is None
    assert costs.layers_us == pytest.approx({Layer.LIBFABRIC: 0.4, Layer.NIC: 3.0})
    synth.write_document(path, attribution(layers=[], steps=0, operations={"count": 0, "layers": []}))
    with pytest.raises(NothingToAnalyse, match="no operation with a time"):
        read_costs(path)


def test_a_path_without_host_stages_is_kernel_posted(tmp_path):
    layers = [{"layer": "kernel", "us": 5.0}, {"layer": "nic", "us": 7.0}]
    path = synth.write_document(tmp_path / "a.json", attribution(layers=layers))
    assert read_costs(path).path is DispatchPath.GDAKI


def test_a_run_that_was_not_attributed_says_what_to_type(tmp_path):
    with pytest.raises(NothingToAnalyse, match=r"no attribution\.json") as error:
        read_costs(tmp_path)
    assert "efaprof attribute" in error.value.hint


def test_another_schema_is_refused(tmp_path):
    path = synth.write_document(tmp_path / "a.json", attribution(schema="efaprof.attribution/9"))
    with pytest.raises(TraceError, match=r"efaprof\.attribution/9"):
        read_attribution(path)


def test_a_run_is_a_load_point_per_token(tmp_path):
    cell = read_cell(tmp_path / "a.json", attribution())
    assert (cell.summary.mean_itl_ms, cell.summary.lo_itl_ms, cell.summary.hi_itl_ms) == (12.0, 11.5, 12.5)
    assert (cell.summary.batches, cell.key.concurrency, cell.ops_per_step, cell.session_ns) == (12, 8, 2000.0, 5)
    assert "emulated" in cell.warnings[0]


def test_load_follows_from_tokens_and_ranks(tmp_path):
    run = {"fingerprint": {"tokens": 2, "ranks": 16}}
    assert read_cell(tmp_path / "a.json", attribution(run=run)).key.concurrency == 32
    with pytest.raises(NothingToAnalyse, match="names no load"):
        read_cell(tmp_path / "a.json", attribution(run={}))
