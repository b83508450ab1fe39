"""`efaprof model` as a process: the published arithmetic, its inverse, and a recorded run as input."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources

import jsonschema
import pytest
from synth_runs import traffic_run

from efaprof.ingest import synth
from efaprof.trace.traffic import Traffic

ATTRIBUTION = {
    "schema": "efaprof.attribution/1",
    "run": {"fingerprint": {"load": 8}, "emulated": ["kernel", "nic"], "path": "proxy"},
    "steps": 300,
    "tokens_per_step": 1.0,
    "wall_us": {"value": 12000.0, "lo": 11500.0, "hi": 12500.0},
    "layers": [
        {"layer": "compute", "us": {"value": 5000.0}},
        {"layer": "ring", "us": {"value": 1000.0}},
        {"layer": "proxy", "us": {"value": 3000.0}, "recoverable_us": {"value": 2500.0}},
        {"layer": "nic", "us": {"value": 3000.0}},
    ],
    "groups": {"host": {"recoverable_us": {"value": 3200.0}}},
    "operations": {"count": 600000, "per_step": 2000.0},
}


def model(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "efaprof", "model", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def document(*arguments):
    done = model(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    schema = resources.files("efaprof.report").joinpath("schemas", "efaprof.model.1.json").read_text(encoding="utf-8")
    jsonschema.validate(value, json.loads(schema))
    return value, {path["path"]: path for path in value["paths"]}


def test_the_published_arithmetic_and_what_its_inputs_really_give():
    text = model().stdout
    assert "1000/19.6 − 1000/27.6 = 51.020 − 36.232 = 14.789 ms/token" in text
    assert "14.59–14.98" in text
    assert "The page prints 14.7, which is not what its two inputs give" in text


def test_other_rates_are_not_held_against_the_published_page():
    value, _ = document("--rates", "19.268,28.064")
    assert value["published"]["printed_tax_ms"] is None
    assert value["published"]["tax_ms"]["value"] == pytest.approx(16.27, abs=0.01)


@pytest.mark.parametrize(("preset", "step"), [("qwen3-30b-a3b", 2016), ("deepseek-v3", 2436)])
def test_presets_count_the_operations_of_a_step(preset, step):
    _, paths = document("--preset", preset, "--channels", 16)
    assert round(paths["proxy"]["ops_per_step"]["value"]) == step


def test_solving_t_op_from_the_tax():
    _, paths = document("--solve", "t_op", "--tax", 14.7)
    assert paths["proxy"]["t_op_us"]["value"] == pytest.approx(2.889, abs=1e-3)
    assert paths["proxy"]["tax_per_layer_us"]["value"] == pytest.approx(306.25)
    assert paths["proxy"]["utilisation"]["value"] < 0.001


def test_explicit_numbers_multiply():
    _, paths = document("--ops-per-layer", 100, "--layers", 10, "--t-op", "3us", "--dense-itl", 30, "--path", "proxy")
    assert list(paths) == ["proxy"]
    assert paths["proxy"]["tax_ms"]["value"] == pytest.approx(3.0)
    assert paths["proxy"]["itl_ms"]["value"] == pytest.approx(33.0)


def test_stages_say_what_removing_one_buys():
    _, paths = document("--stage", "proxy=2us", "--stage", "nic=1us", "--ops-per-layer", 100, "--dense-itl", 36)
    bought = {one["without"]: one["saves_ms"]["value"] for one in paths["proxy"]["removals"]}
    assert bought == pytest.approx({"proxy": 9.6, "nic": 4.8})
    assert [stage["stage"] for stage in paths["gdaki"]["stages"]] == ["nic"]


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_recorded_run_gives_measured_stages(tmp_path, is_folder):
    file = synth.write_document(tmp_path / "attribution.json", ATTRIBUTION)
    value, paths = document("--from", tmp_path if is_folder else file)
    proxy = paths["proxy"]
    assert proxy["tax_ms"]["value"] == pytest.approx(7.0)
    assert {stage["stage"]: stage["t_us"]["value"] for stage in proxy["stages"]} == {
        "ring": 0.5,
        "proxy": 1.5,
        "nic": 1.5,
    }
    assert {stage["t_us"]["provenance"] for stage in proxy["stages"]} == {"measured"}
    assert {stage["t_us"]["provenance"] for stage in paths["gdaki"]["stages"]} == {"assumed"}
    bought = {one["without"]: one["saves_ms"]["value"] for one in proxy["removals"]}
    assert (bought["proxy"], bought["host together"]) == pytest.approx((2.5, 3.2))
    assert any("emulated" in warning for warning in value["warnings"])


def test_a_run_that_was_not_attributed_yet_is_attributed_on_the_way(tmp_path):
    traffic = Traffic(batches=50, lag=2)
    run = traffic_run(tmp_path / "efaprof-traffic", traffic)
    value, paths = document("--from", run.path)
    stages = {stage["stage"]: stage["t_us"]["value"] for stage in paths["proxy"]["stages"]}
    assert stages["libfabric"] == pytest.approx(traffic.libfabric_sum_ns / traffic.operations / 1e3)
    assert stages["nic"] == pytest.approx(traffic.nic_sum_ns / traffic.completed / 1e3)
    assert any("no steps" in warning for warning in value["warnings"])


def test_json_and_markdown_can_go_to_files(tmp_path):
    done = model("--json", tmp_path / "m.json", "--markdown", tmp_path / "m.md")
    assert done.returncode == 0
    assert done.stdout.startswith("efaprof model")
    assert json.loads((tmp_path / "m.json").read_text())["schema"] == "efaprof.model/1"
    assert (tmp_path / "m.md").read_text().startswith("### efaprof model")


def test_every_number_of_the_text_is_tagged():
    rows = [line for line in model().stdout.splitlines() if line.startswith(("proxy ", "gdaki ", "ibgda "))]
    for row in rows[:3]:
        assert sum(row.count(mark) for mark in "●○△") == 9


def test_markdown_is_printed():
    assert model("--markdown").stdout.startswith("### efaprof model · qwen3-30b-a3b")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--preset", "gpt"), 2, "no preset"),
        (("--solve", "t_op"), 2, "belong together"),
        (("--tax", "14.7"), 2, "belong together"),
        (("--solve", "everything", "--tax", "14.7"), 2, "belong together"),
        (("--t-op", "3us", "--stage", "proxy=1us"), 2, "give one of them"),
        (("--stage", "proxy"), 2, "LAYER=TIME"),
        (("--stage", "gpu=1us"), 2, "unknown"),
        (("--stage", "proxy=1us"), 2, "no stage of gdaki has a time"),
        (("--rates", "19.6"), 2, "ARM,DENSE"),
        (("--rates", "0,27.6"), 2, "no rate above 0"),
        (("--mode", "direct", "--ranks", "32"), 2, "16 ranks"),
        (("--experts", "4"), 2, "cannot be"),
        (("--ops-per-layer", "0"), 2, "above 0"),
        (("--line-rate", "fast"), 2, "no rate"),
        (("--from", "{missing}"), 2, "cannot be read"),
        (("--from", "{folder}"), 3, "not an efaprof run directory"),
        (("--from", "{alien}"), 3, "schema"),
    ],
)
def test_errors_are_one_line_and_a_hint(tmp_path, arguments, code, words):
    (tmp_path / "run").mkdir()
    (tmp_path / "alien.json").write_text("[]")
    places = {"missing": tmp_path / "nothing", "folder": tmp_path / "run", "alien": tmp_path / "alien.json"}
    done = model(*(text.format(**places) for text in arguments))
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
