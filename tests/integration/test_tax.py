"""`efaprof tax` as a process, on synthetic exports whose answers are known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from efaprof import report
from efaprof.ingest import synth

START = "2026-05-28T20:26:40"


def efaprof(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "efaprof", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
        check=False,
    )


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports")
    for arm, base in (("deepep", 52.0), ("dense", 36.0)):
        for load in (4, 32):
            steps = [base + 0.02 * (wave % 3) for wave in range(6)]
            requests = synth.waves(steps, concurrency=load, tokens=32)
            synth.write_cell(folder / arm / f"c{load}", requests, concurrency=load, start_time=START)
    late = synth.EPOCH_NS + 14 * 24 * 3600 * 10**9
    requests = synth.waves([36.0] * 6, concurrency=4, tokens=32, start_ns=late)
    synth.write_cell(folder / "dense-later" / "c4", requests, concurrency=4, start_time="2026-06-11T20:26:40")
    return folder


def test_the_tax_is_printed_and_stderr_is_quiet(exports):
    done = efaprof("tax", "--arm", f"deepep={exports}/deepep", "--arm", f"dense={exports}/dense", "--moe-layers", 48)
    assert (done.returncode, done.stderr) == (0, "")
    assert "16.00 [" in done.stdout
    assert "333 [" in done.stdout


def test_json_goes_to_stdout_alone(exports):
    done = efaprof("tax", "--arm", f"a={exports}/deepep", "--arm", f"b={exports}/dense", "--baseline", "b", "--json")
    document = json.loads(done.stdout)
    assert (document["schema"], document["baseline"]) == ("efaprof.tax/1", "b")
    assert document["cells"][0]["tax_ms"]["value"] == pytest.approx(16.0)


def test_one_arm_of_several_paths(exports):
    arms = [part for load in (4, 32) for part in ("--arm", f"deepep={exports}/deepep/c{load}/profile_export.jsonl")]
    document = json.loads(efaprof("tax", *arms, "--json").stdout)
    assert document["invariance"]["deepep"]["loads"] == [4, 32]


def test_another_session_and_a_missing_load_end_with_5_unless_asked(exports):
    arms = ("--arm", f"deepep={exports}/deepep", "--arm", f"dense={exports}/dense-later")
    refused = efaprof("tax", *arms)
    assert (refused.returncode, refused.stdout) == (5, "")
    assert "14.0 days apart" in refused.stderr
    assert "no cell at conc 32" in refused.stderr
    assert "--extrapolate" in refused.stderr
    allowed = efaprof("tax", *arms, "--extrapolate")
    assert allowed.returncode == 0
    assert "extrapolated" in allowed.stdout


def test_the_plot_is_written(exports, tmp_path):
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    done = efaprof("tax", "--arm", f"deepep={exports}/deepep", "--plot", tmp_path / "x.svg", MPLCONFIGDIR=str(tmp_path))
    assert done.returncode == 0
    assert "<svg" in (tmp_path / "x.svg").read_text()


def arms(exports):
    return ("--arm", f"deepep={exports}/deepep", "--arm", f"dense={exports}/dense")


def test_a_tax_above_its_limit_is_red_in_every_file_that_a_job_reads(exports, tmp_path):
    files = {name: tmp_path / name for name in ("tax.json", "gates.xml", "bench.json", "summary.md")}
    done = efaprof(
        "tax", *arms(exports), "--fail-above", "deepep=10ms", "--json", files["tax.json"],
        "--junit", files["gates.xml"], "--bench", files["bench.json"], GITHUB_STEP_SUMMARY=str(files["summary.md"]),
    )  # fmt: skip
    assert done.returncode == 4
    assert "gate failed: tax of deepep at conc 4 at most 10 ms: 16" in done.stderr
    made = json.loads(files["tax.json"].read_text())
    schema = json.loads((Path(report.__file__).parent / "schemas" / "efaprof.tax.1.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(made)
    assert {gate["status"] for gate in made["gates"]} == {"failed"}
    assert files["gates.xml"].read_text().count("<failure") == len(made["gates"])
    rows = json.loads(files["bench.json"].read_text())
    assert rows[0]["name"] == "tax deepep conc 4"
    assert rows[0]["value"] == pytest.approx(made["cells"][0]["tax_ms"]["value"] * 1000)
    assert "tax of deepep" in files["summary.md"].read_text()


def test_a_tax_within_its_limit_is_green(exports):
    done = efaprof("tax", *arms(exports), "--fail-above", "60ms", "--expect", "!deepep=load-sensitive", "--quiet")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fail-above", "nobody=1ms"], "no tax to look at for nobody"),
        (["--fail-above", "deepep=1"], "is no time"),
        (["--expect", "deepep=bumpy"], "outcomes are flat"),
        (["--expect", "nobody=flat"], "nobody is no arm"),
    ],
)
def test_gates_that_cannot_be_are_refused(exports, words, said):
    done = efaprof("tax", *arms(exports), *words)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--arm", "deepep"), 2, "is not NAME=PATH"),
        (("--arm", "deepep=/nowhere/at/all"), 2, "does not exist"),
        (("--arm", "a={file}"), 3, "no benchmark export that efaprof knows"),
        (("--arm", "a={empty}"), 5, "is empty"),
        (("--arm", "a={good}", "--baseline", "b"), 2, "is no arm"),
        (("--arm", "a={good}", "--session-window", "soon"), 2, "no time"),
        (("--arm", "a={good}", "--ops-per-step", "many"), 2, "CONC=N"),
        (("--arm", "a={good}", "--json", "--markdown"), 2, "cannot both go to stdout"),
        (("--arm", "a={good}", "--plot", "x.pdf"), 2, "neither .svg nor .png"),
    ],
)
def test_errors_are_one_line_and_a_hint(exports, tmp_path, arguments, code, words):
    (tmp_path / "alien").write_text("hello\n")
    (tmp_path / "empty").touch()
    places = {"file": tmp_path / "alien", "empty": tmp_path / "empty", "good": exports / "deepep"}
    done = efaprof("tax", *(text.format(**places) for text in arguments))
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "hint:" in done.stderr
