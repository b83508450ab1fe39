"""`efaprof attribute --baseline`: the report on a run, what changed since others, and gates on both."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from ci_runs import BASE, changed, interleaved
from recording import efaprof

from efaprof import report
from efaprof.trace.steady import write_steady

SCHEMAS = Path(report.__file__).parent / "schemas"


@pytest.fixture(autouse=True)
def no_summary(monkeypatch):
    """These jobs are not the one that runs the tests."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def against(first, second, *options, cwd, **more):
    words = [word for run in first for word in ("--baseline", run.path)]
    return efaprof("attribute", *(run.path for run in second), *words, *options, cwd=cwd, **more)


@pytest.fixture(scope="module")
def slow_proxy(tmp_path_factory):
    return interleaved(tmp_path_factory.mktemp("slow"), proxy_ns=9_000, seed=2)


def test_a_regression_is_red_and_its_layer_named_beside_the_runs_own_gates(slow_proxy, tmp_path):
    first, second = slow_proxy
    done = against(
        first, second, "--fail-regression", "5%", "--fail-above", "proxy=1ms", "--json", "a.json", "--junit", "g.xml",
        cwd=tmp_path, env={"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")},
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    assert "gate failed: layer proxy within 10.0 %: +28.6 %" in done.stderr
    made = json.loads((tmp_path / "a.json").read_text())
    for name, document in (("attribution", made), ("diff", made["baseline"])):
        schema = json.loads((SCHEMAS / f"efaprof.{name}.1.json").read_text())
        jsonschema.Draft202012Validator(schema).validate(document)
    assert made["run"]["runs"] == ["B1"]
    assert (made["baseline"]["outcome"], made["baseline"]["order"]) == ("regression", "ABBAAB")
    status = {gate["name"]: gate["status"] for gate in made["gates"]}
    assert (status["proxy at most 1000 µs"], status["step within 5.0 %"]) == ("passed", "failed")
    assert list(status).count("coverage") == 1
    assert "gate failed" not in (tmp_path / "g.xml").read_text()
    assert 'name="layer proxy within 10.0 %"' in (tmp_path / "g.xml").read_text()
    assert "step within 5.0 %" in (tmp_path / "summary.md").read_text()


def test_without_a_gate_the_change_is_only_reported(slow_proxy, tmp_path):
    done = against(*slow_proxy, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("efaprof attribute · B1 ")
    assert "baseline  regression · step +13." in done.stdout


def test_one_run_a_side_shows_the_change_and_passes_unless_strict(slow_proxy, tmp_path):
    first, second = slow_proxy
    done = against(first[:1], second[:1], "--fail-regression", "5%", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 run on a side: the noise between runs is not known" in done.stdout
    assert "gate inconclusive, passes: step within 5.0 %" in done.stderr
    assert against(first[:1], second[:1], "--strict", cwd=tmp_path).returncode == 4


def test_a_kept_report_is_a_baseline_too(slow_proxy, tmp_path):
    first, second = slow_proxy
    efaprof("attribute", first[0].path, "--json", "kept.json", cwd=tmp_path)
    done = efaprof("attribute", second[0].path, "--baseline", "kept.json", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["baseline"]["first"]["runs"][0]["run"] == "kept.json"


def test_runs_with_another_fingerprint_are_not_comparable_until_allowed(slow_proxy, tmp_path):
    other = changed(write_steady(tmp_path / "other", BASE), fingerprint={"ranks": 2, "commands": 9, "late": 1})
    done = against(slow_proxy[0], [other], cwd=tmp_path)
    assert done.returncode == 5
    assert "they differ in late" in done.stderr
    assert against(slow_proxy[0], [other], "--allow", "late", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fail-regression", "5%"], "--fail-regression needs a --baseline"),
        (["--baseline", "x", "--lever", "channels"], "leave out --lever"),
    ],
)
def test_what_makes_no_comparison_is_refused(slow_proxy, tmp_path, words, said):
    done = efaprof("attribute", slow_proxy[0][0].path, *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
