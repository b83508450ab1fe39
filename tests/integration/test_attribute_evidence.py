"""`efaprof attribute --evidence`: a verdict per operation, with what each experiment showed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from efaprof import report

SCHEMA = json.loads((Path(report.__file__).parent / "schemas" / "efaprof.judgement.1.json").read_text())


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


def test_evidence_beside_runs_is_refused(file):
    done = attribute("somewhere", "--evidence", file)
    assert done.returncode == 2
    assert "--evidence is read without RUNs" in done.stderr
