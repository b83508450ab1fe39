"""`efaprof bench` as a user meets it."""

from __future__ import annotations

import json

import pytest
from recording import efaprof, manifest, the_run, written

from efaprof.instrument.dispatch import DispatchOptions, Injection, Lateness
from efaprof.trace.layers import Layer
from efaprof.trace.layout import Shape

SMALL = ("--layers", "2", "--tokens", "4", "--hidden", "64", "--steps", "5", "--warmup", "1", "--compute-us", "0")


def test_a_recorded_run_holds_both_probes_and_says_what_was_emulated(tmp_path):
    done = efaprof("bench", "dispatch", *SMALL, "--inject", "proxy=20us", "--late", "1=30us", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "all 96 tokens verified" in done.stdout
    run = the_run(tmp_path)
    assert run.name.startswith("efaprof-dispatch-")
    captured, following = done.stderr.splitlines()
    assert "0 dropped" in captured
    assert following.endswith(f" {run.name}")
    said = manifest(run)
    assert said["emulated"] == ["kernel: a CPU thread", "nic: provider tcp on one host"]
    assert said["fingerprint"]["cpus"] >= 1
    options = DispatchOptions.from_fingerprint(said["fingerprint"])
    assert options is not None
    assert options.inject == (Injection(Layer.PROXY, 20_000),)
    assert options.late == (Lateness(1, 30_000),)
    assert (options.layers, options.tokens, options.hidden) == (2, 4, 64)
    assert said["command"][0].endswith("efaprof-dispatch")
    found = written(run)
    assert {Shape.STAGE, Shape.MARK, Shape.WAIT, Shape.RX, Shape.TICK} <= found.kinds["dispatch"]
    assert {Shape.OP, Shape.CQ} <= found.kinds["fi"]
    assert sorted(found.counters["job.rank"]) == [0, 1]


def test_json_is_the_summary_alone(tmp_path):
    done = efaprof("bench", "dispatch", *SMALL, "--json", "--provider", "shm", "-o", "here", cwd=tmp_path)
    assert json.loads(done.stdout)["verified_tokens"] == 96
    assert manifest(tmp_path / "here")["exit_code"] == 0


def test_a_run_that_is_not_recorded_leaves_nothing(tmp_path):
    done = efaprof("bench", "dispatch", *SMALL, "--no-record", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "all 96 tokens verified" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_exit_code_is_that_of_the_program(tmp_path):
    done = efaprof("bench", "dispatch", *SMALL, "--topk", "17", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "efaprof-dispatch: --topk 17 is more than the 16 experts: a token's experts are distinct\n"


def test_a_run_that_is_refused_leaves_nothing(tmp_path):
    done = efaprof("bench", "dispatch", *SMALL, "--provider", "nosuch", "-o", "new/run", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "offers no provider nosuch here" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_refused_replaces_none(tmp_path):
    assert efaprof("bench", "dispatch", *SMALL, "-o", "run", cwd=tmp_path).returncode == 0
    was = manifest(tmp_path / "run")
    done = efaprof("bench", "dispatch", *SMALL, "--topk", "17", "-o", "run", "--force", cwd=tmp_path)
    assert done.returncode == 2
    assert manifest(tmp_path / "run") == was
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--path", "gdaki", "--provider", "tcp"], "--path gdaki posts to an EFA device"),
        (["--batch", "4"], "only a kernel that posts by itself has such queues"),
        (["--path", "libfabric"], "--path libfabric is what any recorded program does"),
        (["--path", "dense", "--provider", "tcp"], "--path dense is torch's collectives, not libfabric's provider tcp"),
        (["--path", "dense", "--channels", "8"], "--path dense has no channels"),
        (["--path", "dense", "--inject", "nic=1us"], "--path dense has no operations of ours to slow"),
        (["--device", "gpu"], "--device gpu is no device"),
        (["--dtype", "bf16"], "--device cpu does not move --dtype bf16"),
        (["--device", "cuda", "--dtype", "f32"], "--device cuda does not move --dtype f32"),
        (["--inject", "wire=1us"], "'wire=1us' names no layer"),
        (["--inject", "proxy=1"], "'1' is no time"),
        (["--inject", "compute=1us"], "nothing can be injected into compute"),
        (["--late", "kernel=1us"], "'kernel=1us' names no rank"),
    ],
)
def test_what_does_not_exist_is_refused_before_anything_runs(words, said, tmp_path):
    done = efaprof("bench", "dispatch", *SMALL, *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "hint: " in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_ring_bench_prints_ratios_to_a_bare_cache_line(tmp_path):
    words = ("bench", "ring", "--commands", "20000", "--trips", "500")
    table = efaprof(*words, cwd=tmp_path)
    assert table.returncode == 0, table.stderr
    assert "× bare cache line" in table.stdout
    assert "20,000 pushed and verified" in table.stdout
    result = json.loads(efaprof(*words, "--json", cwd=tmp_path).stdout)
    assert result["commands"] == 20_000
    assert result["round_trip_ns"]["p50"] <= result["round_trip_ns"]["p99"]
