"""`efaprof dump` as a user meets it."""

from __future__ import annotations

from operation_runs import every_outcome
from recording import efaprof

from efaprof.trace.synth import SynthRun


def test_a_run_and_its_file_print_the_same(tmp_path):
    run = every_outcome(tmp_path / "efaprof-client")
    whole = efaprof("dump", run.path, cwd=tmp_path)
    assert whole.returncode == 0
    assert whole.stdout.startswith("# synth.")
    assert efaprof("dump", run.raw_files[0], cwd=tmp_path).stdout == whole.stdout
    assert efaprof("dump", cwd=tmp_path).stdout == whole.stdout


def test_kinds_and_limit_narrow_it(tmp_path):
    run = every_outcome(tmp_path / "run")
    done = efaprof("dump", run.path, "--kind", "op", "--kind", "cq", "--limit", 2, cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert [line.split()[3] for line in lines[1:]] == ["op", "op"]


def test_bad_arguments_are_usage_errors(tmp_path):
    run = every_outcome(tmp_path / "run")
    assert efaprof("dump", run.path, "--kind", "foo", cwd=tmp_path).returncode == 2
    assert efaprof("dump", run.path, "--limit", "-1", cwd=tmp_path).returncode == 2


def test_a_file_that_is_no_trace_is_refused(tmp_path):
    (tmp_path / "x.efr").write_bytes(b"x" * 5000)
    done = efaprof("dump", "x.efr", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith("error: x.efr is not a raw trace file")


def test_a_run_without_records_has_nothing_to_print(tmp_path):
    SynthRun(tmp_path / "run").finish()
    done = efaprof("dump", "run", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (5, "")
