"""Profiles come back as they were stored; anything else is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from efaprof import report
from efaprof.analyzers.profile import LoopRow, profile_of
from efaprof.errors import TraceError
from efaprof.ingest.profile import profile_document, read_profile, write_profile

SCHEMA = json.loads((Path(report.__file__).parent / "schemas" / "efaprof.profile.1.json").read_text())
ROWS = [LoopRow(64, 1, 1000, 50_000_000, 40_000_000), LoopRow(4096, 64, 9000, 50_000_000, 1_000_000)]


def test_a_profile_comes_back_and_fits_its_schema(tmp_path):
    profile = profile_of(ROWS, {"provider": "tcp", "host": "here"}, ["device: softefa ops=2M"])
    write_profile(tmp_path / "profile.json", profile)
    assert read_profile(tmp_path / "profile.json") == profile
    jsonschema.Draft202012Validator(SCHEMA).validate(profile_document(profile))


def test_rows_of_before_there_were_threads_are_of_one(tmp_path):
    document = profile_document(profile_of(ROWS, {}))
    for row in document["rows"]:
        del row["threads"]
    (tmp_path / "profile.json").write_text(json.dumps(document))
    assert read_profile(tmp_path / "profile.json") == profile_of(ROWS, {})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema": "efaprof.profile/9"}, "reads 'efaprof.profile/1'"),
        ({"rows": 3}, "no rows"),
        ({"rows": [{"size_bytes": 64}]}, "is no loop"),
        ({"rows": [{"size_bytes": 64, "window": 1, "completed": 1, "elapsed_ns": 0, "idle_ns": 0}]}, "is no loop"),
        (
            {"rows": [{"size_bytes": 64, "window": 1, "completed": 1, "elapsed_ns": 1, "idle_ns": 0, "threads": 0}]},
            "is no loop",
        ),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path, change, reason):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile_document(profile_of(ROWS, {})) | change))
    with pytest.raises(TraceError) as caught:
        read_profile(path)
    assert reason in caught.value.message
