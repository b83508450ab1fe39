"""Kernel-posted dispatch on the emulated device: the proxy path's results without its stages, and devices that fail."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from softefa_runs import need_softefa, on_softefa, wheel_folder

from efaprof import native, report
from efaprof.errors import EfaprofError
from efaprof.report.diff_json import SCHEMA

TIMEOUT_S = 150
SMALL = ["--layers", "2", "--tokens", "6", "--hidden", "64", "--compute-us", "0", "--seed", "3"]
HOST = {"ring", "proxy", "libfabric"}
SLOWED = ["--allow", "inject"]  # only the proxy path has what was slowed down


@pytest.fixture(scope="module", autouse=True)
def needs() -> None:
    need_softefa()
    try:
        native.lib_path("efaprof-dispatch")
    except EfaprofError as error:
        pytest.skip(error.message)


def efaprof(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "efaprof", *map(str, words)], capture_output=True, text=True, timeout=TIMEOUT_S,
        check=False, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip


def bench(*words: str | Path, emulate: str = "") -> subprocess.CompletedProcess[str]:
    return efaprof("bench", "dispatch", *SMALL, "--emulate", emulate, *words)


def gdaki(*words: str | Path, emulate: str = "") -> subprocess.CompletedProcess[str]:
    return bench("--path", "gdaki", *words, emulate=emulate)


def posted(*words: str, emulate: str = "") -> subprocess.CompletedProcess[str]:
    """The program alone, on the device."""
    program = native.lib_path("efaprof-dispatch")
    path = ["--path", "gdaki", "--provider", "efa-direct", "--queues", "verbs"]
    return on_softefa(program, *path, *SMALL, *words, emulate=emulate)


def summary(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Fenced runs of both paths, the proxy slowed down so that what it costs does not depend on this machine."""
    folder = tmp_path_factory.mktemp("paths")
    wheel_folder()  # efa-direct needs it
    slow = ["--inject", "proxy=150us", "--provider", "efa-direct"]
    arguments = {
        "proxy": slow, "gdaki": ["--path", "gdaki"], "unfenced": [*slow, "--signal", "imm"],
    }  # fmt: skip
    for name, more in arguments.items():
        done = bench("--signal", "fence", "--steps", "30", "--warmup", "5", *more, "-o", folder / name)
        assert done.returncode == 0, done.stderr
    return {name: folder / name for name in arguments}


@functools.cache
def attribution(run: Path) -> dict:
    return json.loads(efaprof("attribute", run, "--json").stdout)


@pytest.fixture(scope="module")
def proxied() -> dict:
    """The same steps through a ring, a proxy and libfabric."""
    words = [native.lib_path("efaprof-dispatch"), *SMALL, "--json", "--steps", "15", "--warmup", "0"]
    return summary(subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False))


# ---- the same answers -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "emulate"),
    [
        ([], ""), (["--batch", "1"], "latency=5us,reorder=0.5"), (["--send-queue", "8", "--batch", "4"], "reorder=0.3"),
        (["--signal", "fence"], "reorder=0.5"), (["--signal", "fence-batch", "--window", "8"], "loss=0.01,rto=20us"),
        (["--signal", "fence", "--completion", "counter"], "counters=on,reorder=0.5"),
    ],
    ids=["plain", "one a doorbell", "small send queue", "fenced", "lossy", "counted"],
)  # fmt: skip
def test_both_paths_give_the_same_results(proxied, words, emulate):
    found = summary(posted("--json", "--steps", "15", "--warmup", "0", *words, emulate=emulate))
    assert found["checksum"] == proxied["checksum"]
    assert found["operations"] == proxied["operations"]
    assert found["threads"] == 1


def test_three_ranks_meet_at_every_barrier():
    done = posted("--json", "--ranks", "3", "--experts", "12", "--steps", "10", "--warmup", "0", emulate="reorder=0.4")
    assert summary(done)["verified_tokens"] == 3 * 6 * 2 * 10


# ---- the tables ------------------------------------------------------------------------------------
def test_host_stages_are_absent_from_what_a_kernel_posted(runs):
    posted, proxied = attribution(runs["gdaki"]), attribution(runs["proxy"])
    assert (posted["run"]["path"], proxied["run"]["path"]) == ("gdaki", "proxy")
    layers = {row["layer"] for row in posted["layers"]}
    assert not layers & HOST
    assert {"kernel", "nic", "rx", "poll"} <= layers
    assert {row["layer"] for row in proxied["layers"]} >= HOST
    for one in (posted, proxied):
        assert one["conservation_error_ns"] == 0
        assert one["coverage"] > 0.95
        assert one["operations"]["per_step"]["stamped"] == 1.0
        assert one["drops"] == 0
    commands = [one["operations"]["per_step"]["by_command"] for one in (posted, proxied)]
    assert commands[0] == commands[1]
    assert posted["groups"]["host"]["recoverable_us"]["value"] == 0
    assert "kernel: a CPU thread" in posted["run"]["emulated"]


def test_a_kernels_time_is_said_by_part(runs):
    posted = attribution(runs["gdaki"])
    found = posted["kernel_parts"]
    parts = {part["part"]: part["mean_us"] for part in found["parts"]}
    assert list(parts) == ["order", "slot", "space", "build", "turn", "fence", "doorbell"]
    assert found["operations"] == round(posted["operations"]["per_step"]["count"] * posted["steps"] * 2)
    assert 1 <= found["entries_per_doorbell"] <= 16
    assert all(value > 0 for value in parts.values())
    assert parts["order"] > parts["build"]  # a fence waits for the wire
    assert attribution(runs["proxy"])["kernel_parts"] is None
    assert "entry built" in efaprof("attribute", runs["gdaki"]).stdout


def test_dump_says_what_a_posted_operation_spent(runs):
    done = efaprof("dump", runs["gdaki"], "--kind", "post", "--limit", "1")
    assert all(f" {part}=" in done.stdout for part in ("order", "slot", "space", "build", "turn", "fence", "doorbell"))


# ---- is the saving what was predicted ----------------------------------------------------------------
def test_the_proxy_runs_replay_predicts_the_sign_of_the_saving(runs):
    done = efaprof("diff", runs["proxy"], "--unfenced", runs["unfenced"], *SLOWED, "--json", "--", runs["gdaki"])
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == SCHEMA
    schema = Path(report.__file__).parent / "schemas" / "efaprof.diff.1.json"
    jsonschema.Draft202012Validator(json.loads(schema.read_text())).validate(document)
    paths = document["paths"]
    predicted, measured, fence, unfenced = paths["savings"]
    assert paths["is_sign_right"] is True
    assert predicted["us"]["value"] > 150  # at least one operation a step waits for the slow proxy
    assert measured["us"]["value"] > 150
    assert [one["provenance"] for one in (predicted, measured, fence, unfenced)] == [
        "derived", "measured", "derived", "measured",
    ]  # fmt: skip
    assert 0 < paths["posted_us"] < 150
    rows = {row["name"]: row for row in document["measures"]}
    assert rows["proxy"]["second_us"] is None
    assert rows["proxy"]["first_us"] > 0
    assert {"path", "posting"} <= document["allowed"].keys()


def test_the_comparison_says_in_words_what_held(runs):
    done = efaprof("diff", runs["proxy"], *SLOWED, "--", runs["gdaki"])
    assert line_of(done.stdout, "proxy ").split()[-1] == "absent"
    assert "posted by the kernel: replay of A" in done.stdout
    assert "the sign agrees" in done.stdout or "inside the interval" in done.stdout


def line_of(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


def test_a_run_without_fences_stands_only_beside_two_paths(runs):
    done = efaprof("diff", runs["proxy"], "--unfenced", runs["unfenced"], "--", runs["unfenced"], "--allow", "signal")
    assert done.returncode == 2
    assert "--unfenced stands beside a proxy path and a kernel-posted path" in done.stderr


# ---- devices that fail -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("emulate", "said"),
    [
        # A damaged signal is none: then it is waited for in vain.
        ("corrupt=0.2,corrupt_after=60", "data does not verify: |waited 3 s for a "),
        ("loss=0.2,retries=0,rto=1us", "ended with status 1[35] \\(the peer "),
    ],
    ids=["corrupts", "loses"],
)
def test_a_wire_that_fails_ends_the_run_in_one_line(emulate, said):
    done = posted("--steps", "200", "--timeout", "3", emulate=emulate)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("efaprof-dispatch: ")]
    assert len(lines) == 1
    assert re.search(said, lines[0])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_spoiled_entries_end_in_the_right_answer_or_in_one_line(seed):
    words = ["--fuzz", "2", "--steps", "40", "--timeout", "2", "--json"]
    done = posted(*words, "--seed", str(seed), emulate="latency=2us,reorder=0.3")
    if done.returncode == 0:
        assert summary(done)["verified_tokens"] == 2 * 6 * 2 * 60
        return
    assert done.returncode == 1
    assert len([line for line in done.stderr.splitlines() if line.startswith("efaprof-dispatch: rank ")]) == 1


# ---- refusals ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--provider", "tcp"], 2, "--path gdaki posts to an EFA device, not through provider tcp"),
        (["--inject", "proxy=1us"], 2, "nothing can be injected into proxy on path gdaki"),
        (["--completion", "counter"], 2, "--completion counter reads no completion queue"),
        (["--completion", "counter", "--signal", "fence", "--no-record"], 2, "no completion counters"),
        (["--queues", "libfabric", "--no-record"], 2, "queues cannot be had: this libfabric was built against"),
        (
            ["--queues", "libfabric", "--completion", "counter", "--signal", "fence", "--no-record"],
            2,
            "this libfabric was built against an rdma-core older than 59",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(words, code, said):
    if "libfabric" in words:
        wheel_folder()
    done = gdaki("--steps", "2", *words)
    assert done.returncode == code
    assert said in done.stderr


def test_limits_end_with_one_when_nothing_reorders():
    done = efaprof("bench", "limits", "--emulate", "", "--json")
    assert done.returncode == 1
    found = {one["name"]: one for one in json.loads(done.stdout)}
    assert found["put_signal by atomic fetch-add"] | {"said": ""} == {
        "name": "put_signal by atomic fetch-add", "seen": "fails", "status": 3, "said": "",
    }  # fmt: skip
    assert found["RDMA write of two local pieces"]["status"] == 6
    assert found["receiver that expects order"]["seen"] == "works"


def test_a_reordering_wire_stalls_a_receiver_that_expects_order():
    done = efaprof("bench", "limits", "--emulate", "latency=10us,reorder=0.5", "--json")
    assert done.returncode == 0, done.stdout
    said = {one["name"]: one["said"] for one in json.loads(done.stdout)}["receiver that expects order"]
    assert "stalled: rank 0 channel 0 waits for operation " in said
    assert "handed over all 64" in said


# ---- libfabric's queues ------------------------------------------------------------------------------
GDA_LIBFABRIC = "EFAPROF_GDA_LIBFABRIC"


COUNTED = ("--signal", "fence", "--completion", "counter")


def by_libfabric(*words: str | Path, emulate: str = "") -> subprocess.CompletedProcess[str]:
    path = os.environ.get(GDA_LIBFABRIC)
    if path is None:
        pytest.skip(
            f"no libfabric with efa gda ops: build 2.3 or later against rdma-core 59 (2.6 and 65 for counters), name "
            f"it in {GDA_LIBFABRIC}"
        )
    return gdaki("--json", "--steps", "15", "--queues", "libfabric", "--libfabric", path, *words, emulate=emulate)


@pytest.mark.parametrize("emulate", ["", "latency=5us,reorder=0.5"], ids=["bare", "reordering"])
def test_libfabrics_queues_take_the_same_entries(emulate):
    done = by_libfabric("--no-record", emulate=emulate)
    assert summary(done)["provider"] == "libfabric (efa gda ops)"


def test_libfabrics_queue_and_counter_lie_where_a_kernel_can_read_them(tmp_path):
    done = by_libfabric(*COUNTED, "-o", tmp_path / "run", emulate="counters=on,latency=5us,reorder=0.5")
    assert summary(done)["verified_tokens"] == 2 * 6 * 2 * 35
    assert "queues: libfabric (efa gda ops) on softefa0, cq_open_ext (1)" in efaprof("info", tmp_path / "run").stdout


@pytest.mark.parametrize(
    ("environment", "emulate"), [({}, ""), ({"FI_EFA_USE_HW_CNTR": "0"}, "counters=on")], ids=["device", "switch"]
)
def test_libfabrics_counters_are_refused_by_name_where_there_are_none(monkeypatch, environment, emulate):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = by_libfabric(*COUNTED, "--no-record", emulate=emulate)
    assert done.returncode == 2
    assert "this device has no completion counters, or FI_EFA_USE_HW_CNTR=0 (cntr_open_ext)" in done.stderr
