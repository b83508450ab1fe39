"""Runs under the message roofline: where the points stand, what is drawn, and what a picture says of itself."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from operation_runs import every_outcome

from efaprof.analyzers.profile import LoopRow, profile_of
from efaprof.errors import UsageError
from efaprof.report.attribution_plot import write_attribution_plot
from efaprof.report.attribution_report import report_on
from efaprof.report.plotting import HOST_PATH, KERNEL_POSTED
from efaprof.report.roofline import MANY, roofline
from efaprof.trace.layers import DispatchPath
from efaprof.trace.reader import open_tables
from efaprof.trace.rundir import open_run
from efaprof.trace.steady import Steady, write_steady

STEADY = Steady(steps=40, commands=9, proxy_ns=7_000)
TIME_S = (STEADY.wall_ns - STEADY.compute_ns) / 1e9
PROFILE = profile_of(
    [LoopRow(64, 1, 10_000, 10**9, 9 * 10**8), LoopRow(4096, 64, 10**6, 10**9, 5 * 10**8),
     LoopRow(1 << 20, 16, 10_000, 10**9, 9 * 10**8)],
    {"provider": "tcp"}, ("device: softefa latency=20us",),
)  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("plot") / "run-7"
    write_steady(path, STEADY)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["fingerprint"]["provider"] = "tcp"
    manifest["emulated"] = ["device: softefa latency=20us"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    run = open_run(path)
    return report_on([(run, open_tables(run))], profile=PROFILE)


def test_a_run_stands_at_its_mean_size_and_at_what_it_moved_while_it_communicated(report):
    found = roofline([report], PROFILE)
    (point,) = found.runs
    costs = report.decode.decode.split
    assert point.size_bytes == costs.bytes_per_step / costs.operations_per_step
    assert point.bytes_s == pytest.approx(costs.bytes_per_step / TIME_S)
    assert (point.label, point.is_kernel_posted) == ("run-7", False)
    assert point.in_flight >= 1


def test_curves_rise_with_what_is_in_flight_and_end_at_the_peak(report):
    found = roofline([report], PROFILE)
    assert [curve.messages for curve in found.curves][0::2] == [1.0, MANY]
    for size in range(0, len(found.curves[0].sizes), 10):
        reached = [curve.bytes_s[size] for curve in found.curves]
        assert reached == sorted(reached)
    assert found.curves[-1].bytes_s[-1] == PROFILE.peak_bytes_s.value
    assert [one.size_bytes for one in found.calibrated] == [64, 4096, 1 << 20]


def test_without_a_profile_there_is_the_run_alone(report):
    found = roofline([report], None)
    assert (found.curves, found.calibrated) == ((), ())
    assert len(found.runs) == 1
    assert 0 < found.lowest <= found.highest


def test_a_program_without_steps_stands_there_too(tmp_path):
    run = every_outcome(tmp_path / "run")
    report = report_on([(run, open_tables(run))])
    (point,) = roofline([report], None).runs
    assert point.size_bytes == report.recorded.sent.bytes / report.recorded.sent.count
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    write_attribution_plot([report], tmp_path / "x.svg")
    assert HOST_PATH[0] in (tmp_path / "x.svg").read_text()


def test_the_host_path_is_orange_and_the_kernel_posted_one_violet(report, tmp_path):
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    posted = replace(report, run=replace(report.run, path=DispatchPath.GDAKI, runs=("run-8",)))
    write_attribution_plot([report], tmp_path / "host.svg", PROFILE)
    svg = (tmp_path / "host.svg").read_text()
    assert HOST_PATH[0] in svg
    assert KERNEL_POSTED[0] not in svg
    write_attribution_plot([report, posted], tmp_path / "both.svg", PROFILE)
    svg = (tmp_path / "both.svg").read_text()
    assert HOST_PATH[0] in svg
    assert KERNEL_POSTED[0] in svg
    write_attribution_plot([report], tmp_path / "host.png")
    assert (tmp_path / "host.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_emulated_stands_on_the_picture(report, tmp_path):
    matplotlib = pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        write_attribution_plot([report], tmp_path / "x.svg", PROFILE)
    svg = (tmp_path / "x.svg").read_text()
    assert "emulated: device: softefa latency=20us" in svg
    assert f"verdict {report.verdict.path}" in svg


@pytest.mark.parametrize("name", ["x.pdf", "x", "nowhere/x.svg"])
def test_a_plot_that_cannot_be_written_is_a_usage_error(report, tmp_path, name):
    with pytest.raises(UsageError):
        write_attribution_plot([report], tmp_path / name)
