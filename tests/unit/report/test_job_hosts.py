"""Ranks on hosts of their own: taken together by aligned clocks, with one layer for what these cannot tell apart."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources

import jsonschema
import pytest

from efaprof.analyzers.by import PathBy
from efaprof.analyzers.decode import Host, decode
from efaprof.analyzers.stamps import Limits
from efaprof.report.attribution_json import attribution_document
from efaprof.report.attribution_report import report_on
from efaprof.report.attribution_sections import attribution_heading, attribution_sections
from efaprof.report.job import why_no_job
from efaprof.report.sections import as_terminal
from efaprof.trace import dispatch
from efaprof.trace.layers import Layer
from efaprof.trace.reader import open_tables
from efaprof.trace.steady import HostClock, Steady, write_hosts, write_steady
from efaprof.trace.survey import survey

STEADY = Steady(steps=80, commands=6)
CLOCKS = (HostClock(offset_ns=10**12), HostClock(offset_ns=-4_000_000, drift=9e-6, day_error_ns=2_000_000))
SCHEMA = json.loads((resources.files("efaprof.report.schemas") / "efaprof.attribution.1.json").read_text())


def opened(folder, steady=STEADY, clocks=CLOCKS):
    return [(run, open_tables(run)) for run in write_hosts(folder, steady, clocks)]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return report_on(opened(tmp_path_factory.mktemp("hosts")))


def test_layers_of_one_clock_are_what_they_are_and_the_others_are_one(report):
    split = report.decode.decode.split
    known = {row.layer: row.us.value for row in split.layers}
    assert not {Layer.NIC, Layer.RX, Layer.SKEW} & known.keys()
    assert split.conservation_error_ns == 0
    assert sum(known.values()) == pytest.approx(split.wall_us.value)
    assert split.wall_us.value == pytest.approx(STEADY.wall_ns / 1000, rel=1e-4)
    assert known[Layer.COMPUTE] == pytest.approx(STEADY.compute_ns / 1000, rel=1e-3)
    rest = STEADY.wall_ns - STEADY.compute_ns - STEADY.poll_ns
    across = known[Layer.NIC_SKEW] * 1000
    error = report.decode.clocks.error_ns
    issue = sum(known[layer] for layer in (Layer.KERNEL, Layer.RING, Layer.PROXY, Layer.LIBFABRIC)) * 1000
    assert across + issue == pytest.approx(rest, abs=2 + 1e-4 * rest)
    assert across == pytest.approx(STEADY.nic_ns + STEADY.rx_ns, abs=error)


def test_the_report_says_how_well_the_clocks_agree(report):
    document = json.loads(json.dumps(attribution_document(report)))
    jsonschema.validate(document, SCHEMA)
    clocks = document["host_clocks"]
    assert (clocks["hosts"], clocks["is_merged"]) == (2, True)
    assert document["clock_error_ns"] >= clocks["error_ns"] > 0
    assert abs(clocks["drift_ppm"] - 9) < 1e6 * 2 * clocks["error_ns"] / (STEADY.steps * STEADY.wall_ns)
    text = as_terminal(attribution_heading(report), attribution_sections(report))
    assert "the clocks of 2 hosts were aligned by the messages between them, within ±" in text
    assert "nic, rx and skew stand together" in text
    unknown = set(report.verdict.unknown)
    assert {"skew_share", "nic_share", "receive_wait_share"} <= unknown


@pytest.mark.parametrize(("share", "is_merged"), [(0.09, False), (0.11, True)])
def test_a_tenth_of_the_median_nic_is_what_a_clock_may_be_wrong(share, is_merged, tmp_path):
    run = write_steady(tmp_path / "run", STEADY)
    host = Host(lost=0, unexplained=0, run_delay=None, throttled=None, line_rate_bytes_s=None)
    error = share * STEADY.nic_ns
    found = decode(
        dispatch.chunks(survey(run.raw_files)), host, clock_error_ns=error, path_by=PathBy.PHASE, limits=Limits()
    )
    assert found.is_merged == is_merged
    names = {row.layer for row in found.split.layers}
    assert (Layer.NIC in names, Layer.NIC_SKEW in names) == (not is_merged, is_merged)
    for group in found.groups:
        assert (Layer.NIC_SKEW in group.layers) == is_merged
        assert sum(group.layers.values()) == pytest.approx(group.us)


def test_ranks_with_two_rings_are_no_ranks_twice(tmp_path):
    assert why_no_job(opened(tmp_path, replace(STEADY, proxies=2))) is None


def test_hosts_whose_messages_go_one_way_are_refused(tmp_path):
    ring = Steady(steps=20, commands=4, ranks=3)
    reason = why_no_job(opened(tmp_path, ring, [*CLOCKS, HostClock()]))
    assert reason.startswith("they are of several hosts: no line fits between their clocks")
