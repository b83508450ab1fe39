"""Evidence files are read row by row; a campaign summary becomes the rows that METHOD §3 names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from efaprof import env
from efaprof.analyzers.interventions import judge
from efaprof.errors import NothingToAnalyse, TraceError
from efaprof.ingest.evidence import read_evidence

ROW = {
    "lever": "fewer doorbells", "target_layer": "kernel", "op": "combine", "before_us": 480.7, "after_us": 473.5,
    "reps": 1, "valid": True, "config_hash": "c0ffee",
}  # fmt: skip
# Same form as a real summary, other numbers.
TWIN = {
    "campaign": "native against proxy",
    "hardware": "two hosts",
    "banked_2030_01_01": {"native_combine_p50_us": 500.0, "proxy_combine_p50_us": 610.5, "correctness": "equal"},
    "ab_matrix_2029_12_31": {"type5_combine_us": 1000.0},
    "rebank_2030_01_02": {
        "overlap_datapoint": (
            "60% doorbell+fence event reduction moved combine p50 ~0 us (valid pairs -5.0/+4.5/+1): overlapped"
        ),
        "r7_cached_dispatch": "ATTRIBUTED: 85.00% wait share, 5.67x wait/body, 90 median polls",
        "r8_other": "nothing measured",
    },
}


def written(folder, value):
    path = folder / "evidence.json"
    path.write_text(json.dumps(value))
    return path


def test_rows_come_back_and_a_bare_list_is_interventions(tmp_path):
    whole = {
        "schema": "efaprof.evidence/1",
        "interventions": [ROW | {"removed": 0.5}],
        "waits": [{"op": "dispatch", "wait": 0.9, "body": 0.1, "config_hash": "a"}],
        "readings": [{"op": "dispatch", "path": "proxy", "us": 391.6, "config_hash": "a", "load": 16}],
    }
    found = read_evidence(written(tmp_path, whole))
    assert found.operations == ("combine", "dispatch")
    assert (found.interventions[0].removed, found.waits[0].body, found.readings[0].load) == (0.5, 0.1, 16)
    (bare,) = read_evidence(written(tmp_path, [ROW])).interventions
    assert (bare.after_us, bare.removed) == (473.5, None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"target_layer": "gpu"}, "target_layer 'gpu' is none of kernel"),
        ({"before_us": 0}, "before_us is no time"),
        ({"after_us": "fast"}, "after_us is no time"),
        ({"valid": 1}, "valid is neither"),
        ({"reps": 0}, "reps is no count"),
        ({"removed": 1.2}, "removed is no part"),
        ({"config_hash": ""}, "config_hash is missing"),
    ],
)
def test_a_row_that_is_no_evidence_is_named(tmp_path, change, reason):
    with pytest.raises(TraceError, match=r"interventions\[1\]") as caught:
        read_evidence(written(tmp_path, [ROW, ROW | change]))
    assert reason in caught.value.message


@pytest.mark.parametrize("value", [{"schema": "efaprof.evidence/9"}, {"schema": "efaprof.evidence/1", "waits": 3}, 7])
def test_another_document_is_refused(tmp_path, value):
    with pytest.raises(TraceError):
        read_evidence(written(tmp_path, value))


@pytest.mark.parametrize("value", [[], {"campaign": "empty"}])
def test_nothing_in_it_is_said(tmp_path, value):
    with pytest.raises(NothingToAnalyse):
        read_evidence(written(tmp_path, value))


def test_a_campaign_summary_gives_its_pairs_waits_and_times(tmp_path):
    found = read_evidence(written(tmp_path, TWIN))
    assert [round(one.after_us - one.before_us, 6) for one in found.interventions] == [-5.0, 4.5, 1.0]
    assert {(one.op, one.before_us, one.removed) for one in found.interventions} == {("combine", 500.0, 0.6)}
    (wait,) = found.waits
    assert (wait.op, wait.wait) == ("cached_dispatch", 0.85)
    assert wait.body == pytest.approx(0.15, abs=1e-3)
    assert [(one.path, one.op, one.us) for one in found.readings] == [
        ("gdaki", "combine", 500.0), ("proxy", "combine", 610.5),
    ]  # fmt: skip
    combine = judge("combine", interventions=found.interventions, waits=found.waits, readings=found.readings)
    assert (combine.path, combine.grade) == ("refuted: issue-bound", "E3")


FOLDER = os.environ.get(env.REAL_DATA)
SUMMARY = Path(FOLDER or "") / "native-campaign" / "campaign-summary.json"


@pytest.mark.skipif(
    not FOLDER or not SUMMARY.is_file(), reason=f"{env.REAL_DATA} names no folder with native-campaign/"
)
def test_the_real_campaign_refutes_issue_bound_for_combine_and_leaves_cached_dispatch_to_its_receiver():
    found = read_evidence(SUMMARY)
    assert [round(one.after_us - one.before_us, 6) for one in found.interventions] == [-7.2, 6.1]
    combine = judge("combine", interventions=found.interventions, waits=found.waits, readings=found.readings)
    assert (combine.path, combine.grade) == ("refuted: issue-bound", "E3")
    cached = judge("cached_dispatch", interventions=found.interventions, waits=found.waits, readings=found.readings)
    assert (cached.path, cached.grade) == ("receiver-bound", "E1")
