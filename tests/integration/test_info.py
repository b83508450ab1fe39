"""`efaprof info` as a user meets it."""

from __future__ import annotations

import json

from operation_runs import every_outcome
from recording import efaprof

from efaprof.trace.synth import SynthRun


def test_the_newest_run_is_described(tmp_path):
    every_outcome(tmp_path / "efaprof-client")
    done = efaprof("info", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == "run: efaprof-client\n"
    assert "operations  15: " in done.stdout
    assert "unmatched: arrival 1" in done.stdout


def test_json_has_its_schema_id(tmp_path):
    run = every_outcome(tmp_path / "run")
    made = json.loads(efaprof("info", run.path, "--json", cwd=tmp_path).stdout)
    assert (made["schema"], made["run"]["program"]) == ("efaprof.info/1", "client")


def test_a_run_without_records_is_described_not_refused(tmp_path):
    SynthRun(tmp_path / "run").finish(exit_code=1)
    done = efaprof("info", "run", cwd=tmp_path)
    assert done.returncode == 0
    assert "nothing was recorded" in done.stdout


def test_losses_fail_when_strict(tmp_path):
    synth = SynthRun(tmp_path / "run")
    synth.ring(dropped=2).counter("a", 1, 1)
    synth.finish()
    assert efaprof("info", "run", cwd=tmp_path).returncode == 0
    done = efaprof("info", "run", "--strict", cwd=tmp_path)
    assert done.returncode == 3
    assert "2 records could not be written" in done.stderr


def test_what_is_no_run_is_said(tmp_path):
    (tmp_path / "file").write_text("x")
    for name in ("file", "gone"):
        done = efaprof("info", name, cwd=tmp_path)
        assert done.returncode == 3
        assert done.stderr.startswith(f"error: {name} ")
