"""`efaprof diff` and the gates of `efaprof attribute` as a CI job meets them: colours, files, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
from ci_runs import BASE, changed, interleaved
from operation_runs import every_outcome
from recording import efaprof

from efaprof import report
from efaprof.report.attribution_json import attribution_document
from efaprof.report.attribution_report import report_on
from efaprof.trace.reader import open_tables
from efaprof.trace.steady import write_steady

SCHEMAS = Path(report.__file__).parent / "schemas"


@pytest.fixture(autouse=True)
def no_summary(monkeypatch):
    """These jobs are not the one that runs the tests."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def checked(text: str, name: str):
    document = json.loads(text)
    schema = json.loads((SCHEMAS / f"efaprof.{name}.1.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(document)
    return document


def paths(runs):
    return [run.path for run in runs]


@pytest.fixture(scope="module")
def noise_only(tmp_path_factory):
    return interleaved(tmp_path_factory.mktemp("noise"))


@pytest.fixture(scope="module")
def slow_proxy(tmp_path_factory):
    return interleaved(tmp_path_factory.mktemp("slow"), proxy_ns=9_000, seed=2)


def test_noise_alone_is_green(noise_only, tmp_path):
    first, second = noise_only
    done = efaprof("diff", *paths(first), "--", *paths(second), "--fail-regression", "5%", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = checked(done.stdout, "diff")
    assert made["outcome"] == "unchanged"
    assert (made["order"], made["is_interleaved"]) == ("ABBAAB", True)
    assert made["warnings"] == []
    assert 0 < made["noise"] < 0.02
    assert made["recommended"]["runs"] >= 3


def test_a_slower_proxy_is_red_and_named(slow_proxy, tmp_path):
    first, second = slow_proxy
    done = efaprof(
        "diff", *paths(first), "--", *paths(second), "--fail-regression", "5%", "--json", "d.json",
        "--markdown", "d.md", "--junit", "gates.xml", "--bench", "bench.json",
        cwd=tmp_path, env={"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")},
    )  # fmt: skip
    assert done.returncode == 4
    assert "gate failed: layer proxy within 10.0 %: +28.6 %" in done.stderr
    assert "Traceback" not in done.stderr
    made = checked((tmp_path / "d.json").read_text(), "diff")
    assert made["outcome"] == "regression"
    red = {one["name"] for one in made["measures"] if one["outcome"] == "regression"}
    assert red == {"step", "step p50", "proxy", "host recoverable"}
    failed = [gate["name"] for gate in made["gates"] if gate["status"] == "failed"]
    (suite,) = ElementTree.parse(tmp_path / "gates.xml").getroot()
    assert [case.get("name") for case in suite if case.find("failure") is not None] == failed
    assert int(suite.get("tests", 0)) == len(suite) == len(made["gates"])
    rows = {row["name"]: row for row in json.loads((tmp_path / "bench.json").read_text())}
    assert rows["proxy"]["value"] == pytest.approx(9 * 9.0)
    assert rows["proxy"]["unit"] == "µs/token"
    markdown = (tmp_path / "d.md").read_text()
    assert markdown.startswith("### efaprof diff · 3 A, 3 B runs · regression")
    assert (tmp_path / "summary.md").read_text() == markdown + "\n"


def test_without_a_gate_a_regression_is_only_reported(slow_proxy, tmp_path):
    first, second = slow_proxy
    done = efaprof("diff", *paths(first), "--", *paths(second), cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("efaprof diff · 3 A, 3 B runs · regression · step +13.")


def test_a_baseline_and_options_on_either_side_mean_the_same(slow_proxy, tmp_path):
    first, second = slow_proxy
    plain = efaprof("diff", *paths(first), "--json", "--", *paths(second), cwd=tmp_path)
    named = [word for path in paths(first) for word in ("--baseline", path)]
    with_baseline = efaprof("diff", "--json", *paths(second), *named, cwd=tmp_path)
    assert json.loads(plain.stdout) == json.loads(with_baseline.stdout)


def test_kept_reports_stand_for_their_runs(slow_proxy, tmp_path):
    files = []
    for run in [*slow_proxy[0], *slow_proxy[1]]:
        files.append(f"{run.path.name}.json")
        document = attribution_document(report_on([(run, open_tables(run))]))
        (tmp_path / files[-1]).write_text(json.dumps(document))
    done = efaprof("diff", *files[:3], "--", *files[3:], "--json", cwd=tmp_path)
    made = checked(done.stdout, "diff")
    assert made["outcome"] == "regression"
    assert "step p50" not in [one["name"] for one in made["measures"]]


def test_runs_with_another_fingerprint_are_not_comparable_until_allowed(noise_only, tmp_path):
    first, _ = noise_only
    other = changed(write_steady(tmp_path / "other", BASE), fingerprint={"ranks": 2, "commands": 9, "inject": 1})
    done = efaprof("diff", *paths(first), "--", other.path, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (5, "")
    assert "not comparable, they differ in inject: None / 1" in done.stderr
    assert "--allow inject" in done.stderr
    allowed = efaprof("diff", *paths(first), "--", other.path, "--allow", "inject", cwd=tmp_path)
    assert allowed.returncode == 0, allowed.stderr
    assert "inject differs, as allowed: None / 1" in allowed.stdout


def test_too_few_runs_pass_and_say_so_and_fail_when_strict(slow_proxy, tmp_path):
    (one, *_), (other, *_) = slow_proxy
    command = ("diff", one.path, "--", other.path, "--fail-regression", "5%")
    done = efaprof(*command, cwd=tmp_path)
    assert done.returncode == 0
    assert "1 run on a side: the noise between runs is not known" in done.stdout
    assert "gate inconclusive, passes: step within 5.0 %" in done.stderr
    assert efaprof(*command, "--strict", cwd=tmp_path).returncode == 4


def test_runs_that_are_not_interleaved_are_warned_of(tmp_path):
    first, second = interleaved(tmp_path, order="AAABBB")
    done = efaprof("diff", *paths(first), "--", *paths(second), cwd=tmp_path)
    assert "the runs are not interleaved (AAABBB)" in done.stdout


def test_quiet_says_only_what_failed(slow_proxy, tmp_path):
    first, second = slow_proxy
    done = efaprof("diff", "-q", *paths(first), "--", *paths(second), "--fail-regression", "5", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("error: gate failed: step within 5.0 %")


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["a", "b"], 2, "two sides"),
        (["--", "b"], 2, "two sides"),
        (["a", "--", "b", "--", "c"], 2, "more than two sides"),
        (["a", "--", "b", "--baseline", "c"], 2, "more than two sides"),
        (["a", "--", "b", "c", "b"], 2, "b stands twice on one side"),
        (["a", "--", "b", "--margin", "much"], 2, "is no percentage"),
        (["a", "--", "b"], 3, "a does not exist"),
        (["bad.json", "--", "b"], 3, "bad.json has schema 'x'"),
    ],
)
def test_bad_input_is_a_line_a_hint_and_an_exit_code(tmp_path, words, code, line):
    (tmp_path / "bad.json").write_text('{"schema": "x"}')
    done = efaprof("diff", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert line in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_runs_without_steps_have_nothing_to_compare(noise_only, tmp_path):
    other = every_outcome(tmp_path / "efaprof-client")
    done = efaprof("diff", noise_only[0][0].path, "--", other.path, cwd=tmp_path)
    assert done.returncode == 5
    assert "has no decode steps" in done.stderr


# ---- gates on one run ------------------------------------------------------------------------


def test_gates_of_one_run_pass_and_are_in_every_form(noise_only, tmp_path):
    summary = tmp_path / "summary.md"
    done = efaprof(
        "attribute", noise_only[0][0].path, "--fail-above", "proxy=70us", "--fail-above", "step=1ms", "--expect",
        "!wire-bound", "--json", "a.json", "--junit", "a.xml", "--bench", "b.json",
        cwd=tmp_path, env={"GITHUB_STEP_SUMMARY": str(summary)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "✓ proxy at most 70 µs" in done.stdout
    made = checked((tmp_path / "a.json").read_text(), "attribution")
    names = [gate["name"] for gate in made["gates"]]
    assert names[:4] == ["coverage", "drops", "conservation", "clock clip"]
    assert names[-3:] == ["proxy at most 70 µs", "step at most 1000 µs", "verdict !wire-bound"]
    (suite,) = ElementTree.parse(tmp_path / "a.xml").getroot()
    assert [case.get("name") for case in suite] == names
    rows = {row["name"]: row for row in json.loads((tmp_path / "b.json").read_text())}
    assert rows["layer proxy"]["value"] == pytest.approx(9 * 7.0)
    assert rows["layer proxy"]["range"].startswith("± ")
    assert summary.read_text().startswith("### efaprof attribute")
    assert "✓ proxy at most 70 µs" in summary.read_text()


def test_a_layer_above_its_limit_ends_with_four(noise_only, tmp_path):
    done = efaprof("attribute", noise_only[0][0].path, "--fail-above", "proxy=62us", "-q", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("error: gate failed: proxy at most 62 µs: 63 µs per token, limit 62 µs")
    assert efaprof("attribute", noise_only[0][0].path, "--fail-above", "proxy=64us", "-q", cwd=tmp_path).returncode == 0


def test_an_unexpected_verdict_ends_with_four(noise_only, tmp_path):
    run = noise_only[0][0].path
    path = checked(efaprof("attribute", run, "--json", cwd=tmp_path).stdout, "attribution")["verdict"]["path"]
    assert efaprof("attribute", run, "--expect", path, "-q", cwd=tmp_path).returncode == 0
    assert efaprof("attribute", run, "--expect", "skew-bound", "-q", cwd=tmp_path).returncode == 4


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["--expect", "slow"], 2, "names no verdict"),
        (["--fail-above", "proxi=3us"], 2, "names no layer"),
        (["--fail-above", "proxy"], 2, "is no time"),
    ],
)
def test_a_gate_that_cannot_be_is_refused(noise_only, tmp_path, words, code, line):
    done = efaprof("attribute", noise_only[0][0].path, *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert line in done.stderr


def test_a_gate_on_a_run_without_steps_has_nothing_to_look_at(tmp_path):
    run = every_outcome(tmp_path / "efaprof-client")
    done = efaprof("attribute", run.path, "--fail-above", "proxy=1us", cwd=tmp_path)
    assert done.returncode == 5
    assert "no split per decoded token" in done.stderr
