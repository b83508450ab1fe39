"""NIC counters of a recorded run: a tree like /sys whose counters the program itself moves, resets and wraps."""

from __future__ import annotations

import itertools
import json
import sys

import polars as pl
import pytest
from recording import efaprof, the_run
from softefa_runs import need_softefa, on_softefa, wheel_folder
from trace_processor import load

from efaprof.analyzers.nic import devices_of
from efaprof.instrument.dispatch import DispatchOptions
from efaprof.trace.reader import open_tables
from efaprof.trace.rundir import open_run

# Moves a counter by 10 MB every 10 ms: 40 times up, then as `then` says, and up again.
PROGRAM = """
import os, sys, time
counter = os.open(sys.argv[1], os.O_WRONLY)
value, then = int(sys.argv[2]), int(sys.argv[3])
def show():
    os.pwrite(counter, f"{value:<24}".encode(), 0)
for number in range(80):
    time.sleep(0.01)
    value = then if number == 40 and then >= 0 else (value + 10_000_000) % int(sys.argv[4])
    show()
    print(value)
"""


@pytest.fixture
def sysfs(tmp_path):
    port = tmp_path / "sys" / "class" / "infiniband" / "efa_0" / "ports" / "1"
    (port / "hw_counters").mkdir(parents=True)
    (port / "counters").mkdir()
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
    for name in ("hw_counters/rx_bytes", "hw_counters/rx_drops", "counters/port_xmit_wait"):
        (port / name).write_text("3\n")
    return tmp_path / "sys"


def recorded(tmp_path, sysfs, *, start, then=-1, width=2**64, interval_ms="5"):
    counter = sysfs / "class/infiniband/efa_0/ports/1/hw_counters/tx_bytes"
    counter.write_text(f"{start:<24}")
    done = efaprof(
        "record", "--nic-interval", interval_ms, "--", sys.executable, "-c", PROGRAM, counter, str(start), str(then),
        str(width), cwd=tmp_path, env={"EFAPROF_SYSFS": str(sysfs)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = [start, *map(int, done.stdout.split())]
    run = open_run(the_run(tmp_path))
    tables = open_tables(run)
    device = next(one for one in devices_of(tables.counters) if one.name == "efa_0")
    return run, tables, device, shown


def samples(tables, name):
    return tables.counters.filter(pl.col("name").cast(pl.String) == name).sort("time_ns").collect()["value"].to_list()


def test_every_change_is_followed_and_the_end_is_exact(tmp_path, sysfs):
    _, tables, device, shown = recorded(tmp_path, sysfs, start=5)
    seen = samples(tables, "nic.efa_0.tx_bytes")
    assert set(seen) <= set(shown)
    assert seen == sorted(seen)
    assert len(set(seen)) > 20  # of 81 values, on a machine that may be busy
    assert device.sent_bytes == 800_000_000
    assert device.line_rate_bytes_s == 25_000_000_000
    for name in ("rx_drops", "port_xmit_wait", "rate_bytes_s"):
        assert samples(tables, f"nic.efa_0.{name}"), name


def test_a_counter_that_wraps_loses_nothing_and_its_rate_goes_on(tmp_path, sysfs):
    run, _, device, _ = recorded(tmp_path, sysfs, start=2**32 - 400_000_000, width=2**32)
    assert (device.sent_bytes, device.wraps, device.resets) == (800_000_000, 1, 0)
    assert efaprof("export", run.path, cwd=tmp_path).returncode == 0
    engine = load((run.path / "trace.pftrace").read_bytes())
    rows = engine.rows(
        "select c.ts, c.value from counter c join counter_track t on t.id = c.track_id"
        " where t.name = 'efa_0.tx_bytes' order by c.ts"
    )
    moved = sum(row["value"] * (after["ts"] - row["ts"]) / 1e9 for row, after in itertools.pairwise(rows))
    assert moved == pytest.approx(800_000_000, rel=1e-6)


def test_a_counter_that_is_set_back_counts_from_there(tmp_path, sysfs):
    _, _, device, shown = recorded(tmp_path, sysfs, start=1_000_000_000, then=0)
    assert (device.resets, device.wraps) == (1, 0)
    # What was counted between the last sample before the reset and the reset itself is lost: a few intervals at most.
    whole = 800_000_000 - 10_000_000
    assert shown[-1] <= device.sent_bytes <= whole
    assert device.sent_bytes > whole - 300_000_000


@pytest.mark.slow
def test_the_payload_that_an_efa_device_counts_is_what_the_operations_asked_for_to_the_byte(tmp_path):
    need_softefa()
    wheel_folder()
    options = DispatchOptions(provider="efa-direct", layers=2, tokens=4, hidden=256, steps=10, warmup=2, compute_us=0)
    argv = [sys.executable, "-m", "efaprof", "bench", "dispatch", *options.arguments(), "-o", tmp_path / "run"]
    done = on_softefa(*argv, emulate="latency=20us")
    assert done.returncode == 0, done.stderr
    shown = efaprof("attribute", tmp_path / "run", "--json", "a.json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    nic = json.loads((tmp_path / "a.json").read_text())["delivery"]["nic"]
    assert nic["agrees"] is True
    assert nic["payload_bytes"] == nic["asked_sent_bytes"] > 10_000
    assert nic["payload_difference_bytes"] == 0
    assert 0 <= nic["sent_difference_bytes"] < 0.1 * nic["asked_sent_bytes"]
    assert "nic  " in shown.stdout
