"""The emulated device's knobs, log and summary, without the device."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from efaprof.cli.softefa import report
from efaprof.errors import RecordError, TraceError, UsageError
from efaprof.session import softefa_truth
from efaprof.session.softefa import Summary, summary_of
from efaprof.session.softefa_spec import Emulation, parse_emulation
from efaprof.session.softefa_truth import HEADER, RECORD, read_truth

SOURCES = Path(__file__).parents[3] / "native" / "softefa"


def test_no_knobs_is_a_wire_without_limits():
    assert parse_emulation("") == Emulation()
    assert not Emulation().is_timed
    assert Emulation().label == "device: softefa"


def test_knobs_are_read_in_the_units_that_people_write():
    text = "rate=100Gbps, ops=2M,pps=1.5M,latency=12us,jitter=300ns,reorder=30%,loss=1e-3,window=64,seed=7,timeout=1s"
    found = parse_emulation(text)
    assert found == Emulation(
        rate_bits_s=100e9, ops_s=2e6, pps=1.5e6, latency_ns=12e3, jitter_ns=300, reorder=0.3, loss=1e-3, window=64,
        seed=7, timeout_ns=1e9,
    )  # fmt: skip
    assert found.is_timed


def test_the_label_holds_what_was_set_and_nothing_else():
    assert parse_emulation("latency=12us,rate=100Gbps,ops=2M,window=8,counters=on").label == (
        "device: softefa rate=100Gbps ops=2M latency=12us window=8 counters=on"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("speed=1", "'speed=1' is not a knob"),
        ("rate", "'rate' is not a knob"),
        ("rate=100", "'100' is no rate"),
        ("rate=100GB/s", "'100GB/s' is no rate"),
        ("latency=12", "'12' is no time"),
        ("latency=-1us", "'-1us' is no time"),
        ("ops=many", "'many' is no number per second"),
        ("ops=1e999", "'1e999' is no number per second"),
        ("reorder=1.5", "'reorder=1.5' is out of range"),
        ("reorder=150%", "'reorder=150%' is out of range"),
        ("window=1.5", "'1.5' is no whole number"),
        ("window=²", "'²' is no whole number"),
        ("counters=1", "'1' is no switch"),
        ("mtu=1", "'mtu=1' is out of range"),
        ("seed=99999999999999999999", "out of range"),
        ("ops=1,ops=2", "ops stands twice"),
    ],
)
def test_a_wrong_knob_is_named_with_what_to_write(text, said):
    with pytest.raises(UsageError, match=re.escape(said)) as error:
        parse_emulation(text)
    assert error.value.hint


@given(
    st.builds(
        Emulation,
        rate_bits_s=st.floats(0, 1e15),
        ops_s=st.floats(0, 1e12),
        latency_ns=st.floats(0, 1e12),
        reorder=st.floats(0, 1),
        window=st.integers(0, 2**20),
        seed=st.integers(0, 2**64 - 1),
        spread_ns=st.none() | st.floats(0, 1e12),
    )
)
def test_the_device_gets_each_knob_once_and_exactly(emulation):
    told = dict(item.split("=") for item in emulation.model.split(","))
    assert len(told) == len(fields(Emulation))
    assert float(told["rate"]) == emulation.rate_bits_s
    assert float(told["latency"]) == emulation.latency_ns
    assert int(told["seed"]) == emulation.seed
    expected = max(emulation.latency_ns, 10e3) if emulation.spread_ns is None else emulation.spread_ns
    assert float(told["spread"]) == expected


def test_the_device_knows_every_knob_that_we_tell_it():
    known = set(re.findall(r'\{"(\w+)", &Model::', (SOURCES / "model.cpp").read_text())) | {"seed"}
    assert {item.split("=")[0] for item in Emulation().model.split(",")} == known


# ---- the truth log ------------------------------------------------------------------------------


def written_log(path: Path, *, records: int = 3, tail: bytes = b"", **header: object) -> Path:
    head = np.zeros(1, HEADER)
    head["magic"], head["version"], head["record_bytes"] = b"EFAFSET1", 1, RECORD.itemsize
    head["config"], head["dropped"] = b"rate=1e9,seed=3", 2
    for name, value in header.items():
        head[name] = value
    rows = np.zeros(records, RECORD)
    rows["seq"] = np.arange(records)
    path.write_bytes(head.tobytes() + rows.tobytes() + tail)
    return path


def test_a_log_is_read_back_whole(tmp_path):
    log = read_truth(written_log(tmp_path / "t"))
    assert log.records["seq"].tolist() == [0, 1, 2]
    assert (log.config, log.dropped) == ({"rate": 1e9, "seed": 3.0}, 2)
    assert log.table()["seq"].to_list() == [0, 1, 2]
    assert not [name for name in log.table().columns if name.startswith("reserved")]


def test_a_log_of_a_killed_device_gives_its_whole_records(tmp_path):
    assert len(read_truth(written_log(tmp_path / "t", tail=b"\1" * 50)).records) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"magic": b"EFR1"}, "no truth log"),
        ({"version": 9}, "version 9"),
        ({"record_bytes": 88}, "records of 88 bytes"),
    ],
)
def test_another_file_is_refused(tmp_path, change, said):
    with pytest.raises(TraceError, match=said):
        read_truth(written_log(tmp_path / "t", **change))


def test_a_missing_or_short_log_is_refused(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        read_truth(tmp_path / "none")
    (tmp_path / "short").write_bytes(b"EFAFSET1")
    with pytest.raises(TraceError, match="no truth log"):
        read_truth(tmp_path / "short")


def fields_of(struct: str, header: str) -> list[str]:
    body = re.search(rf"struct {struct} {{(.*?)\n}};", (SOURCES / header).read_text(), re.DOTALL)
    assert body
    without_comments = re.sub(r"//.*", "", body[1])
    declared = re.findall(r"\b(?:u?int\d+_t|char)\s+([\w\s,\[\]]+);", without_comments)
    return [re.sub(r"\[.*\]", "", name).strip() for names in declared for name in names.split(",")]


def test_the_log_has_the_layout_of_the_device():
    assert fields_of("softefa_truth_header", "truth.h") == list(HEADER.names or ())
    assert fields_of("softefa_truth_record", "truth.h") == list(RECORD.names or ())
    assert HEADER.itemsize == softefa_truth.HEADER_BYTES
    assert RECORD.itemsize == 96  # as truth.h asserts


# ---- the summary --------------------------------------------------------------------------------

GOOD = Summary(
    operations=1000, bytes=64_000, errors=0, corrupted=0, bad_entries=0, peak_devices=2, cq_overruns=0,
    channel_overruns=0, batch_overruns=0, truth_records=1000, truth_dropped=0, delivered=1000, late=10, late_p50_ns=500,
    late_p99_ns=2000, late_max_ns=9000, stalls=1, stall_max_ns=1e5, seconds=1.0,
)  # fmt: skip
TIMED = parse_emulation("ops=2M")


def test_a_good_run_is_told_in_one_line():
    assert report(GOOD, TIMED, quiet=False) == [
        "emulated device: softefa ops=2M · 2 NICs · 1,000 operations · 64,000 bytes · 0 errors"
    ]
    assert report(GOOD, TIMED, quiet=True) == []


def test_lateness_is_told_when_the_wire_has_times_to_keep():
    late = replace(GOOD, late=51)
    assert not GOOD.warnings(TIMED)
    (said,) = late.warnings(TIMED)
    assert said.startswith("this machine did not keep the emulated wire's times: 5% of 1,000 deliveries were late")
    assert not late.warnings(Emulation(reorder=0.5))
    assert report(late, TIMED, quiet=True) == [f"warning: {said}"]


@pytest.mark.parametrize("loss", ["cq_overruns", "channel_overruns", "batch_overruns", "truth_dropped"])
def test_what_was_lost_is_told(loss):
    (said,) = replace(GOOD, **{loss: 3}).warnings(TIMED)
    assert re.search(r"\b3\b", said)


def test_corruption_on_purpose_is_told():
    assert report(replace(GOOD, corrupted=5), TIMED, quiet=False)[-1].endswith("5 corrupted on purpose")


def test_a_device_that_said_nothing_was_killed():
    assert summary_of(json.dumps({**asdict(GOOD), "config": "x"})) == GOOD
    for text in ("", "{}", '{"operations": 1}'):
        with pytest.raises(RecordError, match="without its summary"):
            summary_of(text)
