"""The example server under record: what its steps cost, and what is left of a run whatever ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from recording import EFAPROF, efaprof, manifest, wait_until
from serve_runs import Server, record
from trace_processor import load

from efaprof.report.attribution_json import attribution_document
from efaprof.report.attribution_report import report_on
from efaprof.trace.reader import open_tables
from efaprof.trace.rundir import open_run

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("torch", reason="torch is not installed")
LOAD = ("--concurrency", "3", "--requests", "6", "--isl", "12", "--osl", "12")
LEAST_STEPS = 20


@dataclass(frozen=True)
class Served:
    """A run that ended."""

    run: Path
    exit_code: int
    exports: Path

    @property
    def answers(self) -> list[str]:
        lines = (self.exports / "answers.txt").read_text().splitlines()
        return [json.loads(line)["text"] for line in lines]


def serve(folder: Path, arm: str, number: int, *more: str, below: tuple[str, ...] = ()) -> Served:
    """Serve under record and load, until a signal comes."""
    run, exports = folder / f"run-{arm}", folder / arm
    with Server("--arm", arm, prefix=(*below, *record(run, *more))) as server:
        done = server.load(*LOAD, "-o", str(exports))
        assert done.returncode == 0, done.stderr
        code = server.stop(number, server.server())
    return Served(run, code, exports)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("serve")


@pytest.fixture(scope="module")
def proxy(folder) -> Served:
    return serve(folder, "proxy", signal.SIGINT, "--python")


@pytest.fixture(scope="module")
def dense(folder) -> Served:
    return serve(folder, "dense", signal.SIGTERM)


@pytest.fixture(scope="module")
def gdaki(folder) -> Served:
    return serve(folder, "gdaki", signal.SIGTERM, below=(*EFAPROF, "softefa", "-q", "--"))


def attributed(run: Path) -> dict[str, Any]:
    opened = open_run(run)
    document: dict[str, Any] = attribution_document(report_on([(opened, open_tables(opened))]))
    return document


def layers(document: dict[str, Any]) -> dict[str, float]:
    return {one["layer"]: one["us"]["value"] for one in document["layers"]}


def test_decode_steps_of_a_served_model_are_split_and_prefill_is_counted_apart(proxy):
    document = attributed(proxy.run)
    assert document["run"]["path"] == "proxy"
    assert document["steps"] >= LEAST_STEPS
    # Six prompts, three at a time at most; and a pause before, and after.
    assert 2 <= document["steps_excluded"]["prefill"] <= 12
    assert document["steps_excluded"]["warm-up"] >= 1
    assert document["conservation_error_ns"] == 0
    found = layers(document)
    assert sum(found.values()) == pytest.approx(document["wall_us"]["value"])
    assert all(found[layer] > 0 for layer in ("compute", "kernel", "ring", "proxy", "libfabric", "nic"))
    options = {"ranks": 2, "hidden": 32, "topk": 2, "experts": 4, "channels": 4, "path": "proxy", "provider": "tcp"}
    assert options.items() <= document["run"]["fingerprint"].items()
    assert document["drops"] == 0
    assert document["unmatched"] == {}
    assert {"kernel: a CPU thread", "nic: provider tcp on one host"} <= set(document["run"]["emulated"])


def test_each_decode_step_is_annotated_with_its_tokens(proxy):
    spans = open_tables(open_run(proxy.run)).spans.filter(pl.col("is_step")).collect()
    assert len(spans) >= 2 * LEAST_STEPS  # of two ranks


def test_sampled_stacks_say_what_the_ranks_did(proxy):
    host = attributed(proxy.run)["host"]
    functions = {one["function"] for one in host["functions"]}
    assert host["samples"] > 0
    assert functions & {"Engine.dispatch", "Engine.combine", "Connection._recv"}


def test_the_timeline_of_a_served_model_has_every_track(proxy):
    done = efaprof("export", proxy.run, cwd=proxy.exports)
    assert done.returncode == 0, done.stderr
    with load(proxy.run / "trace.pftrace") as engine:
        assert engine.bad_stats() == []
        tracks = engine.rows("select t.name, count() as n from slice s join track t on t.id = s.track_id group by 1")
        counters = {row["name"] for row in engine.rows("select distinct name from counter_track")}
    slices = {row["name"]: row["n"] for row in tracks}
    stages = ("kernel", "ring", "proxy", "libfabric", "nic", "rx")
    assert len({slices[stage] for stage in stages}) == 1  # every operation in each
    assert {"steps", "waits", "compute"} <= slices.keys()
    assert any(str(name).startswith("Python (sampled") for name in slices)
    assert {"outstanding operations", "lo.tx_bytes"} <= counters


def test_the_dense_arm_has_neither_ring_nor_proxy(dense):
    document = attributed(dense.run)
    assert document["run"]["path"] == "dense"
    assert document["steps"] >= LEAST_STEPS
    assert document["steps_excluded"]["prefill"] >= 2
    found = layers(document)
    assert not found.keys() & {"kernel", "ring", "proxy", "libfabric", "rx", "launch"}
    assert found["compute"] > 0
    assert found["nic"] > 0
    assert found["skew"] > 0  # now one rank is late, now the other
    assert sum(found.values()) == pytest.approx(document["wall_us"]["value"])
    assert document["run"]["emulated"] == ["nic: gloo on one host"]
    assert document["run"]["fingerprint"]["path"] == "dense"
    assert document["run"]["fingerprint"]["hidden"] == 32


def test_the_gdaki_arm_has_no_host_stage(gdaki):
    document = attributed(gdaki.run)
    assert document["run"]["path"] == "gdaki"
    assert document["steps"] >= LEAST_STEPS
    found = layers(document)
    assert not found.keys() & {"ring", "proxy", "libfabric"}
    assert all(found[layer] > 0 for layer in ("compute", "kernel", "nic"))
    assert sum(found.values()) == pytest.approx(document["wall_us"]["value"])
    assert set(document["run"]["emulated"]) == {"device: softefa", "kernel: a CPU thread"}


def test_all_arms_answer_alike(proxy, dense, gdaki):
    assert proxy.answers == dense.answers == gdaki.answers
    assert len(set(proxy.answers)) == 6
    assert all(len(answer) == 12 for answer in proxy.answers)


def test_what_the_load_exports_is_read_as_an_arm(proxy, dense):
    words = [*EFAPROF, "tax", "--arm", f"proxy={proxy.exports}", "--arm", f"dense={dense.exports}", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "not read" not in done.stderr
    (cell,) = json.loads(done.stdout)["cells"]
    assert cell["concurrency"] == 3
    assert {"proxy", "dense"} == set(cell["arms"])


@pytest.mark.parametrize(
    ("arm", "code"), [("proxy", 128 + signal.SIGINT), ("dense", 128 + signal.SIGTERM), ("gdaki", 128 + signal.SIGTERM)]
)
def test_a_server_that_a_signal_ends_passes_it_on(arm, code, request):
    served = request.getfixturevalue(arm)
    assert served.exit_code == code
    assert manifest(served.run)["signal"] == code - 128


@pytest.fixture
def busy(tmp_path) -> Iterator[tuple[Server, Any]]:
    """A recorded server in the middle of an answer."""
    with Server("--arm", "proxy", "--timeout", "30", prefix=record(tmp_path / "run")) as server:
        for prompt in ("one", "two"):
            server.complete(prompt, 16)
        body = json.dumps({"prompt": "three", "max_tokens": 55, "stream": True}).encode()
        answer = urllib.request.urlopen(f"{server.url}/v1/completions", body, timeout=60)
        for _ in range(6):
            assert answer.readline()
        yield server, answer
        answer.close()


def check_readable(run: Path) -> None:
    document = attributed(run)
    assert document["steps"] >= LEAST_STEPS
    assert document["steps_excluded"]["prefill"] == 3
    assert document["conservation_error_ns"] == 0


def test_a_rank_that_is_killed_ends_the_server_which_names_it(busy, tmp_path):
    server, _ = busy
    victim = server.ranks()[1]
    os.kill(victim, signal.SIGKILL)
    assert server.wait() == 1
    assert any(f"rank1 (pid {victim}) was killed by SIGKILL; the others were stopped" in line for line in server.said)
    # The rank that lived on was told by its engine, not by a timeout.
    assert any(("rank 1" in line and "has ended" in line) or "to rank 1 failed" in line for line in server.said)
    check_readable(tmp_path / "run")


def test_a_server_that_is_killed_leaves_its_run_and_no_ranks(busy, tmp_path):
    server, _ = busy
    ranks = server.ranks()
    os.kill(server.server(), signal.SIGKILL)
    assert server.wait() == 128 + signal.SIGKILL
    wait_until(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks))
    check_readable(tmp_path / "run")
