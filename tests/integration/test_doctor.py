"""`efaprof doctor` as a user runs it."""

from __future__ import annotations

import json
import shutil

import jsonschema
from recording import efaprof

SCHEMA = {
    "type": "object",
    "required": ["schema", "checks"],
    "additionalProperties": False,
    "properties": {
        "schema": {"const": "efaprof.doctor/1"},
        "checks": {
            "type": "array",
            "minItems": 15,
            "items": {
                "type": "object",
                "required": ["check", "state", "detail", "hint"],
                "additionalProperties": False,
                "properties": {
                    "check": {"type": "string", "minLength": 1},
                    "state": {"enum": ["ok", "degraded", "no"]},
                    "detail": {"type": "string", "minLength": 1},
                    "hint": {"type": "string"},
                },
            },
        },
    },
}


def test_the_json_keeps_its_schema_and_the_text_says_the_same(tmp_path):
    asked = efaprof("doctor", "--json", cwd=tmp_path)
    assert (asked.returncode, asked.stderr) == (0, "")
    document = json.loads(asked.stdout)
    jsonschema.validate(document, SCHEMA)
    shown = efaprof("doctor", cwd=tmp_path)
    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout
    for check in document["checks"]:
        assert check["check"] in shown.stdout
        assert check["hint"] in shown.stdout
        assert check["state"] == "ok" or check["hint"], check


def test_the_systems_libfabric_is_found_with_its_providers(tmp_path):
    document = json.loads(efaprof("doctor", "--json", cwd=tmp_path).stdout)
    found = [check for check in document["checks"] if check["check"] == "libfabric"]
    assert found
    if shutil.which("fi_info"):
        assert any("tcp" in check["detail"] for check in found if check["state"] == "ok")


def test_a_missing_trace_core_is_a_row_and_not_an_error(tmp_path):
    document = json.loads(efaprof("doctor", "--json", cwd=tmp_path, env={"EFAPROF_LIB_DIR": str(tmp_path)}).stdout)
    (check,) = [check for check in document["checks"] if check["check"] == "trace core"]
    assert check["state"] == "no"
