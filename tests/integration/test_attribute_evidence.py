"""`efaprof attribute --evidence`: a verdict per operation, with what each experiment showed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from ci_runs import changed

from efaprof import report
from efaprof.analyzers.profile import LoopRow, profile_of
from efaprof.ingest.profile import write_profile
from efaprof.trace.steady import Steady, write_steady

SCHEMAS = Path(report.__file__).parent / "schemas"
SCHEMA = json.loads((SCHEMAS / "efaprof.judgement.1.json").read_text())
RUN_SCHEMA = json.loads((SCHEMAS / "efaprof.attribution.1.json").read_text())


@pytest.fixture
def file(tmp_path):
    row = {
        "lever": "fewer doorbells", "target_layer": "kernel", "op": "combine", "before_us": 480.7, "reps": 1,
        "valid": True, "config_hash": "a", "removed": 0.73,
    }  # fmt: skip
    path = tmp_path / "evidence.json"
    path.write_text(
        json.dumps(
            {
                "schema": "efaprof.evidence/1",
                "interventions": [row | {"after_us": after} for after in (473.5, 486.8)],
                "waits": [{"op": "cached_dispatch", "wait": 0.9, "body": 0.1, "config_hash": "a"}],
            }
        )
    )
    return path


def attribute(*arguments):
    argv = [sys.executable, "-m", "efaprof", "attribute", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def test_the_document_fits_its_schema_and_has_a_verdict_per_operation(file):
    done = attribute("--evidence", file, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    found = [(one["op"], one["path"], one["grade"]) for one in document["operations"]]
    assert found == [("combine", "refuted: issue-bound", "E3"), ("cached_dispatch", "receiver-bound", "E1")]


def test_the_text_says_what_would_have_been_saved(file):
    done = attribute("--evidence", file)
    assert "refuted: issue-bound" in done.stdout
    assert "73% of the work was removed, which would have saved 105.3 µs or more" in done.stdout


@pytest.fixture
def run(tmp_path):
    """A run whose proxy is slow, under a calibrated NIC: issue-bound by itself."""
    made = write_steady(tmp_path / "run", Steady(steps=60, commands=16, proxy_ns=9_000))
    changed(made, fingerprint={**made.manifest.fingerprint, "provider": "tcp"})
    rows = [LoopRow(1024, 1, 1000, 10**9, 9 * 10**8), LoopRow(1_000_000, 64, 10**6, 10**9, 5 * 10**8)]
    write_profile(tmp_path / "profile.json", profile_of(rows, {"provider": "tcp"}))
    return made.path


def pairs(path, op, after):
    row = {"lever": "no proxy", "target_layer": "proxy", "op": op, "before_us": 480.0, "reps": 5, "valid": True,
           "config_hash": "a", "removed": 1.0}  # fmt: skip
    rows = [row | {"after_us": one} for one in after]
    path.write_text(json.dumps({"schema": "efaprof.evidence/1", "interventions": rows}))
    return path


def beside(run, file, *more):
    return attribute(run, "--profile", run.parent / "profile.json", "--evidence", file, *more)


def test_an_experiment_on_the_whole_step_overrules_the_run_and_the_contradiction_is_said(run, tmp_path):
    file = pairs(tmp_path / "e.json", "step", (478.0, 481.0, 480.0))
    done = beside(run, file, "--json", "--expect", "!issue-bound")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    jsonschema.Draft202012Validator(RUN_SCHEMA).validate(document)
    assert (document["verdict"]["path"], document["verdict"]["grade"]) == ("refuted: issue-bound", "E3")
    assert document["evidence"][0]["contradictions"] == ["E1 said issue-bound, E3 refutes issue-bound"]
    text = beside(run, file)
    assert "path refuted: issue-bound" in text.stdout
    assert "contradiction: E1 said issue-bound, E3 refutes issue-bound" in text.stdout


def test_an_experiment_on_one_operation_stands_beside_the_runs_verdict(run, tmp_path):
    done = beside(run, pairs(tmp_path / "e.json", "combine", (200.0, 204.0, 199.0)), "--json")
    document = json.loads(done.stdout)
    assert (document["verdict"]["path"], document["verdict"]["grade"]) == ("issue-bound", "E1")
    assert [(one["op"], one["path"], one["grade"]) for one in document["evidence"]] == [
        ("combine", "issue-bound", "E3")
    ]
